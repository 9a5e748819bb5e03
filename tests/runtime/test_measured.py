"""What ranks measured as the result of a step."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.describe.batch import Batch
from zbench.interfaces.result import StepResult
from zbench.runtime.job.footprint import LevelChoice
from zbench.runtime.job.job import Report
from zbench.runtime.measured import step_result

PHASES = {"attention": 4.0, "reduction": 1.0, "optimizer": 0.5}
SLOW = Report(0.0, 10.0, 2.5, 4.5, 3.0, 2.0, (0, 0), (0, 0), 1, 2, PHASES, repacking_seconds=0.25)


def result(reports: list[Report]) -> StepResult:
    return step_result(
        Batch(np.array([64]), 0, 0), 1, small(1, 2), reports, "replicated", False, {}, LevelChoice("none", 1, 2)
    )


def test_seconds_go_to_what_ranks_measured_and_the_rest_is_the_slowest_s() -> None:
    """The second rank has nothing to do for two seconds; of attention's 4, 0.5 are around kernels."""
    found = result([SLOW, replace(SLOW, seconds=8.0)]).seconds_for
    assert found == {
        "attention": [2.5, 2.5],
        "linear": [4.5, 2.5],
        "optimizer": [0.5, 0.5],
        "repacking": [0.25, 0.25],
        "interpreter": [0.5, 0.5],
        "waiting_messages": [0.75, 0.75],
        "waiting_gradients": [1.0, 1.0],
        "end": [0.0, 2.0],
    }
    assert np.sum(list(found.values()), axis=0) == pytest.approx(10.0)


def test_parts_that_come_to_more_than_the_step_are_no_account() -> None:
    assert result([SLOW, replace(SLOW, seconds=5.0)]).seconds_for == {}
