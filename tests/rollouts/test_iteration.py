"""Schedules of an iteration, by hand and against a list of moments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.rollouts.iteration import StageSeconds, scheduled_iteration, scored_meanwhile

STAGES = StageSeconds(reshard=1.0, generated=10.0, score=2.0, train=4.0)


@pytest.mark.parametrize("schedule", ["synchronous", "streamed"])
def test_stages_follow_each_other_whatever_went_before(schedule: str) -> None:
    for beside in (0.0, 6.0, 50.0):
        found = scheduled_iteration(schedule, STAGES, beside)
        assert (found.seconds, found.waited, found.beside) == (17.0, 10.0, 6.0)


@pytest.mark.parametrize(("beside", "waited"), [(0.0, 10.0), (6.0, 4.0), (50.0, 0.0)])
def test_one_step_off_hides_generation_behind_the_iteration_before(beside: float, waited: float) -> None:
    found = scheduled_iteration("one_step_off", STAGES, beside)
    assert (found.seconds, found.waited, found.beside) == (7.0 + waited, waited, 6.0)


def test_iterations_one_step_off_take_what_two_clocks_side_by_side_take() -> None:
    """Generation of a batch begins when weights have come, and so does training of the one before."""
    rng, moment, total, beside = np.random.default_rng(0), 0.0, 0.0, 0.0
    every = [StageSeconds(*rng.random(4)) for _ in range(20)]
    generated = every[0].generated
    for at, one in enumerate(every):
        moment = max(moment, generated) + one.reshard
        if at + 1 < len(every):
            generated = moment + every[at + 1].generated
        moment += one.score + one.train
        found = scheduled_iteration("one_step_off", one, beside)
        total, beside = total + found.seconds, found.beside
    assert total == pytest.approx(moment)


def test_replicas_that_are_free_score_what_has_ended() -> None:
    last, spent = scored_meanwhile(np.array([1.0, 2.0, 9.0]), np.array([3.0, 10.0]), np.array([2.0, 3.0, 1.0]))
    assert (last, spent.tolist()) == (10.0, [6.0, 0.0])  # at 3, 5 and 9; the other one is free at 10


@given(st.integers(0, 10_000))
def test_nothing_is_scored_before_it_has_ended_or_by_who_is_not_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends, free, seconds = rng.random(rng.integers(1, 20)), 1 + rng.random(rng.integers(1, 5)), rng.random(1)
    work = np.full(len(ends), seconds[0])
    last, spent = scored_meanwhile(ends, free, work)
    assert spent.sum() == pytest.approx(work.sum())
    assert last >= max(free.max(), float((free + spent * (spent > 0)).max()) - 1e-12)
    assert last <= free.max() + work.sum() + 1e-12
