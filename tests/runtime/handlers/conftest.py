"""Two processes that execute steps, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from zbench.correctness.steps.command import RANK
from zbench.runtime.processes.launch import LocalFleet


@pytest.fixture(scope="package")
def fleet() -> Iterator[LocalFleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with LocalFleet(2, RANK, "single", timeout=60) as ranks:
            yield ranks
