"""Clocks of workers that train apart, by hand."""

from collections.abc import Sequence

import pytest

from zbench.runtime.job.step_job import StepReport
from zbench.runtime.worker_clocks import WorkerClocks


def reports(seconds: Sequence[float]) -> list[StepReport]:
    return [StepReport(None, one, {}, 0.0, {}, {}, 0, 0, 0.0) for one in seconds]


def test_a_round_takes_as_long_as_the_worker_whose_steps_take_longest_together() -> None:
    """Two workers of two ranks: 3 and 1 seconds, then 1 and 2; so 4 and 3, and the second comes first to the end."""
    clocks = WorkerClocks(2, 2)
    first = clocks.step(reports([3, 2, 1, 1]))
    second = clocks.step(reports([1, 1, 0.5, 2]))
    assert (first.seconds, second.seconds) == (3, 1)
    assert first.idle == [0, 1, 0, 0]  # for the other rank of the same worker
    assert second.idle == [0, 0, 1.5, 0]
    assert clocks.later == [1, 1, 0, 0]
    end = clocks.met(reports([0.5, 0.5, 1.25, 1.5]))  # of which a second is waiting for the first worker
    assert end.seconds == pytest.approx(0.5)
    assert end.idle == pytest.approx([0, 0, 0.25, 0])
    assert end.wait == 0.5
    assert clocks.later == [0, 0, 0, 0]
    whole = second.followed_by(end)
    assert (whole.seconds, whole.idle, whole.wait) == (1.5, [0, 0, 1.75, 0], 0.5)


def test_what_ranks_did_and_their_idle_seconds_sum_to_the_round() -> None:
    clocks, steps = WorkerClocks(3, 1), [reports(one) for one in ([2, 1, 4], [1, 5, 1], [3, 1, 1])]
    told = [clocks.step(one) for one in steps]
    end = reports([1.0, 2.0, 1.5])
    told.append(clocks.met(end))
    for rank in range(3):
        own = sum(one[rank].seconds for one in (*steps, end)) + sum(one.idle[rank] for one in told)
        assert own == pytest.approx(sum(one.seconds for one in told))
