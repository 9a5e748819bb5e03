"""The cluster of systems' tests that look at their batches alone."""

import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost


@pytest.fixture(scope="package")
def cost() -> Cost:
    """Two nodes of two GPUs."""
    return small(2, 2)
