"""Two and four processes that execute steps, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from zbench.correctness.steps.cases import ProcessOptions
from zbench.correctness.steps.command import RANK
from zbench.runtime.processes.launch import LocalFleet


@pytest.fixture(scope="package")
def fleet() -> Iterator[LocalFleet]:
    yield from started(2)


@pytest.fixture(scope="package")
def ranks() -> Iterator[LocalFleet]:
    yield from started(4)


def started(count: int) -> Iterator[LocalFleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with LocalFleet(count, RANK, ProcessOptions(), timeout=60) as ranks:
            yield ranks
