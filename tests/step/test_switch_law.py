"""What a change of pipelines moves, counted by hand."""

from dataclasses import replace

import pytest

from tests.helpers.steps import MODEL, pipeline_plans, plan_of
from zbench.step.byte_law import stated_bytes
from zbench.step.elements import ElementHolders, elements_held
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.switch import switch_step
from zbench.step.proof.prove import prove_step
from zbench.step.reading.read import read_step
from zbench.step.switch_law import switch_bytes
from zbench.step.template import Step
from zbench.step.text import step_text

FOUR = replace(MODEL, num_layers=4, num_kv_heads=4)
STATE = 2 + 12  # bytes of a parameter, its master copy and moments
GAINS = FOUR.hidden * (2 * FOUR.num_layers + 1)  # whole on every GPU that has their layer
CUT = FOUR.total_params - GAINS
OUTER = 2 * FOUR.vocab * FOUR.hidden
OF_LAYER = (CUT - OUTER) // FOUR.num_layers


def step_of(shapes: list[tuple[int, int]], zero: str = "none") -> Step:
    ranks = sum(tp * pp for tp, pp in shapes)
    return whole_step(FOUR, pipeline_plans(shapes, [[(3, 0)]], ranks), zero=zero)


@pytest.mark.parametrize("zero", ["none", "1", "3"])
def test_where_pipelines_stay_nothing_moves(zero: str) -> None:
    one = step_of([(2, 2), (1, 1), (1, 3)], zero)
    assert switch_bytes(one, one) == [(0, 0)] * 8
    plain = whole_step(FOUR, [plan_of([5, 3], 2, 4)], zero=zero)
    assert switch_bytes(plain, whole_step(FOUR, [plan_of([9], 2, 4)] * 2, zero=zero)) == [(0, 0)] * 2


def test_a_group_of_two_becomes_two_single_gpus() -> None:
    """Each lacks the half that the other has; the way back needs nothing."""
    wide, narrow = step_of([(2, 1)]), step_of([(1, 1)] * 2)
    assert switch_bytes(wide, narrow) == [(STATE * CUT // 2,) * 2] * 2
    assert switch_bytes(narrow, wide) == [(0, 0)] * 2


def test_who_lacks_an_element_asks_by_its_own_number() -> None:
    """GPU 2 lacks what 0, 1 and 3 have: it asks number 2 of these. GPU 3 lacks what 0, 1 and 2 have: number 0."""
    found = switch_bytes(step_of([(1, 1), (1, 1), (2, 1)]), step_of([(1, 1)] * 4))
    half = STATE * CUT // 2
    assert found == [(half, 0), (0, 0), (0, half), (half, half)]


def test_stages_have_other_layers() -> None:
    """Of four layers the first GPU lacks the last two and the head, the second one the first two and the embedding."""
    stages, narrow = step_of([(1, 2)]), step_of([(1, 1)] * 2)
    size = STATE * (2 * OF_LAYER + OUTER // 2 + 2 * 2 * FOUR.hidden)
    last = STATE * FOUR.hidden
    assert switch_bytes(stages, narrow) == [(size, size + last), (size + last, size)]


def test_shards_of_optimizer_state_and_parameters_move() -> None:
    """From ZeRO's stage 1 on a parameter rests in shards alone: what one GPU gets, another one gives."""
    every = [step_of(shapes, "1") for shapes in ([(1, 1)] * 4, [(2, 2)], [(2, 1), (1, 2)], [(4, 1)])]
    for before in every:
        for after in every:
            found = switch_bytes(before, after)
            sent, received = (sum(column) for column in zip(*found, strict=True))
            assert sent == received
            assert (sent > 0) == (before is not after)
            assert max(one for _, one in found) <= STATE * FOUR.total_params


@pytest.mark.parametrize("zero", ["none", "1", "3"])
def test_a_change_is_a_step_that_is_proven_and_sends_what_the_law_says(zero: str) -> None:
    shapes = ([(1, 1)] * 4, [(2, 2)], [(2, 1), (1, 2)], [(4, 1)], [(1, 4)], [(1, 1), (1, 3)])
    every = [step_of(one, zero) for one in shapes]
    for before in every:
        for after in every:
            law = switch_bytes(before, after)
            step = switch_step(elements_held(before, before.ends), elements_held(after, after.begins))
            if step is None:
                assert law == [(0, 0)] * 4
                continue
            prove_step(step)
            assert read_step(step_text(step)).num_operations == step.num_operations
            assert [one.get("parameters", (0, 0)) for one in stated_bytes(step)] == law


def test_what_no_gpu_has_cannot_move() -> None:
    step = step_of([(2, 1)])
    there = elements_held(step, step.ends)
    lost = ElementHolders(2, there.units, {**there.holders, ("wo", 1): {1: there.holders["wo", 1][1]}})
    with pytest.raises(ValueError, match=r"^no GPU has all of wo that GPU 0 lacks$"):
        switch_step(lost, there)


def test_what_rests_in_host_memory_is_refused() -> None:
    step = step_of([(1, 1)] * 2)
    with_host = replace(step, num_gpus=1, num_hosts=1)  # what is GPU 1 is the node's memory
    with pytest.raises(ValueError, match=r"^gl rests in host memory 0; changes are told of GPUs alone$"):
        switch_bytes(with_host, step)
