"""Steps that are the same but for which tokens attend to which: what is prepared of one serves the next, to the last
bit."""

from dataclasses import replace

import numpy as np
import pytest

import zbench
from zbench.cost.job import make_cost
from zbench.simulator.steps.play import PlayedStep, play_parts
from zbench.simulator.steps.program import KeptStep, StepParts
from zbench.simulator.steps.same_step import is_same
from zbench.step.passes.build import whole_step

LENGTHS = [9000, 700, 700, 5000, 300, 12000, 4000, 68]
OTHERS = [68, 20000, 3000, 700, 8000]


def parts_of(system: str, lengths: list[int]) -> StepParts:
    """The first of two steps tells the lists that no batch changes, which later ones begin with."""
    found = zbench.plan(lengths, cluster="a800_2x8", model="llama_7b", system=system)
    for _ in range(2):
        step = whole_step(found.model, found.plans, 1, "3")
    return StepParts(step, found.plans, make_cost(found.cluster, found.model))


def numbers(played: PlayedStep) -> list[list[float]]:
    found = [[played.seconds], [end for _, end in played.ends], played.moving.tolist(), played.exposed_nic.tolist()]
    found += [one.tolist() for one in (*played.spent.values(), *played.busy.values(), *played.nic_tx.values())]
    return [*found, played.memory.peak.tolist(), *(one.tolist() for one in played.memory.held.values())]


@pytest.mark.parametrize(("system", "shares"), [("ring", True), ("zeppelin", False)])
def test_a_step_after_another_is_what_it_is_by_itself(system: str, shares: bool) -> None:
    first, own = parts_of(system, LENGTHS), parts_of(system, OTHERS)
    play_parts(first)
    after = own.after(first)
    assert (after is not own) == shares
    one, other = play_parts(after), play_parts(own)
    assert numbers(one) == numbers(other)


def test_what_is_prepared_is_of_the_seconds_that_a_step_has() -> None:
    first, own = parts_of("ring", LENGTHS), parts_of("ring", OTHERS)
    play_parts(first)
    after = own.after(first)
    for one in after.of_step[0]:
        assert one.of.step is own.step
        alone = next(
            each for each in own.of_step[0] if (each.of.template, each.missing) == (one.of.template, one.missing)
        )
        assert np.array_equal(one.lowered.busy, alone.lowered.busy)
        assert np.array_equal(one.relations.begins.rows, alone.relations.begins.rows)


def test_steps_that_differ_are_not_the_same() -> None:
    first = parts_of("ring", LENGTHS)
    step, plans = first.step, first.plans
    assert is_same((step, plans), (parts_of("ring", OTHERS).step, plans))
    one = step.templates[1]
    fewer = replace(one, needs=one.needs.take(np.arange(1, len(one.needs))))
    others = [
        replace(step, templates=(step.templates[0], fewer, *step.templates[2:])),
        replace(step, order=step.order[:-1]),
        replace(step, ends=step.ends.take(np.arange(len(step.ends) - 1))),
        parts_of("zeppelin", LENGTHS).step,
    ]
    assert not any(is_same((step, plans), (other, plans)) for other in others)
    assert not is_same((step, plans), (step, [plan.with_(until_sent=True) for plan in plans]))


def test_a_run_shares_a_step_as_long_as_the_others_are_the_same() -> None:
    run, first, same = KeptStep(), parts_of("ring", LENGTHS), parts_of("ring", OTHERS)
    others = parts_of("zeppelin", LENGTHS), parts_of("zeppelin", OTHERS)
    assert run.prepared(first) is first
    assert run.prepared(same) is not same
    assert all(run.prepared(other) is other for other in others)
    assert run.prepared(same) is same
    assert run.prepared(same) is same


def test_a_run_whose_first_step_learned_what_others_begin_with_shares_the_second() -> None:
    run, first, same = KeptStep(), parts_of("zeppelin", LENGTHS), parts_of("ring", OTHERS)
    second = parts_of("ring", LENGTHS)
    assert (run.prepared(first), run.prepared(second)) == (first, second)
    assert run.prepared(same) is not same


def test_another_machine_shares_nothing() -> None:
    first, own = parts_of("ring", LENGTHS), parts_of("ring", OTHERS)
    slow = replace(own.cost.cluster, nic_bandwidth=own.cost.cluster.nic_bandwidth / 2)
    other = StepParts(own.step, own.plans, make_cost(slow, own.cost.model))
    assert other.after(first) is other
