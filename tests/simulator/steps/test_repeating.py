"""Layers that repeat or add the same: what a program of twelve tells is what all layers show."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import zbench
from tests.simulator.steps.test_play import LENGTHS, planned
from zbench.cost.job import make_cost
from zbench.simulator.clock import Free, Timeline
from zbench.simulator.steps import play
from zbench.simulator.steps.left_out import LeftOut
from zbench.simulator.steps.play import PlayedStep
from zbench.simulator.steps.program import StepParts, program
from zbench.simulator.steps.repeating import RepeatingLayers
from zbench.simulator.steps.trains.clock import run_trains
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel


@cache
def parts_of(system: str, layers: int = 32) -> StepParts:
    found, cost = planned(system)
    model = replace(found.model, num_layers=layers)
    return StepParts(whole_step(model, found.plans, 1, "3"), found.plans, make_cost(cost.cluster, model))


def with_a_dense_first_layer() -> StepParts:
    found = zbench.plan(LENGTHS, cluster="a800_2x8", model="deepseek_moe_16b", system="ulysses")
    step = whole_step(found.model, found.plans, 1, "3", 1, "none", ExpertParallel(16, 1, skew=1.0))
    return StepParts(step, found.plans, make_cost(found.cluster, found.model))


@cache
def left_out(system: str, kept: int) -> LeftOut:
    """The layers that are left out of a program of so many, played to its end."""
    parts = parts_of(system)
    made = program(parts, parts.order.instances(kept))
    cluster = parts.cost.cluster
    return LeftOut(made, run_trains(made, cluster.num_ranks, Free.of(cluster, made.queues)), made.of.skipped)


def sums(played: PlayedStep) -> list[np.ndarray]:
    return [
        np.array([played.seconds, *(end for _, end in played.ends)]),
        played.moving,
        played.exposed,
        played.exposed_nic,
        *played.spent.values(),
    ]


@pytest.mark.parametrize("system", ["zeppelin", "ulysses", "of two kinds"])
def test_a_step_whose_layers_repeat_is_told_by_twelve(system: str) -> None:
    """To rounding: sums of the same numbers, of which some are multiplied in place of added again and again."""
    parts = with_a_dense_first_layer() if system == "of two kinds" else parts_of(system)
    assert play._settled(parts, 0.0).left_out.repeating
    some = play.play_step(parts.step, parts.plans, parts.cost)
    every = play.play_some_layers(parts.step, parts.plans, parts.cost, 32)
    for one, other in zip(sums(some), sums(every), strict=True):
        assert abs(one - other).max() <= 1e-12 * every.seconds


def test_a_step_whose_layers_add_the_same_ends_as_with_all() -> None:
    """Reductions of a ring's backward fall behind layer by layer, so that messages are under way otherwise."""
    parts, of = parts_of("ring"), left_out("ring", 12)
    assert [RepeatingLayers(of).found(cut) for cut in of.cuts] == [True, False, True]
    assert of.is_even(of.cuts[1])
    played = play._settled(parts, 0.0)
    assert len(played.left_out.repeating) == 1
    some, every = played.result(), play.play_some_layers(parts.step, parts.plans, parts.cost, 32)
    (ends, *others), (whole, *wanted) = sums(some), sums(every)
    assert abs(ends - whole).max() <= 1e-12 * every.seconds
    for one, other in zip(others, wanted, strict=True):
        assert abs(one - other).max() <= 0.01 * every.seconds


def test_what_tells_nothing_of_other_layers_is_played_with_all() -> None:
    parts, of = parts_of("distca"), left_out("distca", 12)
    assert not all(RepeatingLayers(of).tells_all(cut) for cut in of.cuts)
    assert len(play._settled(parts, 0.0).ends) == len(parts.of_step[1])


def test_layers_that_nearly_repeat_do_not() -> None:
    of = left_out("zeppelin", 12)
    cut, done = of.cuts[0], of.timeline.done.copy()
    for number in of.alike(cut):  # one hop is later by a millionth of a millisecond, layer by layer
        done[of.program.begin[number]] += 1e-9 * number
    nearly = replace(of, timeline=Timeline(of.timeline.start, of.timeline.release, done))
    assert RepeatingLayers(of).found(cut)
    assert not RepeatingLayers(nearly).found(cut)


def test_messages_of_what_comes_after_are_not_counted_once_a_layer() -> None:
    """Where a message of a later run is under way while layers repeat, all layers are played."""
    of = left_out("zeppelin", 12)
    assert RepeatingLayers(of).left_out() is not None
    program, start = of.program, of.timeline.start.copy()
    last = program.run_of(of.cuts[0])[-1]
    after = np.flatnonzero(program.hops.rows.link_a[program.hops.row] >= 0)
    start[after[after >= program.begin[last + 1]][0]] = 0.0
    early = replace(of, timeline=Timeline(start, of.timeline.release, of.timeline.done))
    assert RepeatingLayers(early).left_out() is None
