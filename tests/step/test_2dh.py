"""Rows that go to experts by 2DH, inside nodes first: exact, counted row by row, in messages of whole nodes."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, fault, plan_of, rejected_mutants, routed_step
from tests.step.test_two_level_experts import rows_sent
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.expert_schedule import (
    FLAT,
    TOGETHER_AT_ONCE,
    TWO_DIMENSIONAL,
    ExpertChunks,
    Experts,
    GradientPieces,
)
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE, SEND
from zbench.step.passes.build import whole_step
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.router.relays import Relays
from zbench.step.passes.routing import ExpertParallel
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

# Ranks, tensor-parallel degree, expert-parallel degree, GPUs of a node, stages, stage, recomputation, shared experts,
# capacity, whether it is filled up to, lengths of each micro-batch. Nodes of one GPU have none to pass rows on to, and
# of three nodes of two GPUs turns go around a ring.
CASES = (
    (4, 1, 4, 2, 1, "3", "none", 0, None, False, ([15, 3],)),
    (8, 1, 8, 2, 1, "2", "full", 2, 1.25, True, ([9, 3], [1])),
    (4, 2, 8, 4, 1, "1", "selective", 2, 0.5, False, ([9, 4], [2])),
    (8, 1, 8, 4, 1, "none", "full", 0, None, False, ([1], [29])),
    (2, 2, 4, 1, 1, "1", "none", 0, 1.0, True, ([9, 4],)),
    (4, 1, 4, 2, 2, "1", "none", 1, None, False, ([7, 3], [2])),
    (6, 1, 6, 2, 1, "1", "chunked", 1, None, False, ([11, 6],)),
    (8, 1, 4, 2, 1, "1", "none", 0, 0.7, True, ([11, 6],)),
)
MODEL = replace(EXPERTS, num_experts=8, experts_per_token=3)
Built = tuple[Step, list[Plan], ExpertParallel, float]


def built(number: int, chunks: ExpertChunks = TOGETHER_AT_ONCE, inside_first: bool = True, skew: float = 1.0) -> Built:
    """A step, what it is built of, and its error."""
    ranks, degree, experts, node, stages, zero, recompute, shared, capacity, padded, batches = CASES[number]
    how = ExpertParallel(experts, 1, skew, capacity=capacity, padded=padded)
    how = replace(how, node=node, inside_first=True) if inside_first else how
    shape, kept = (ranks, degree, stages), (zero, recompute)
    model = replace(MODEL, shared_experts=shared, num_experts=12 if experts == 6 else 8)
    step, plans, error = routed_step(model, how, batches, shape, kept, chunks)
    return step, plans, how, error


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact(number: int) -> None:
    step, _, _, error = built(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < 1e-12


@pytest.mark.parametrize("skew", [0.0, 50.0])
def test_exact_with_experts_that_nobody_or_everybody_chose(skew: float) -> None:
    step, _, _, error = built(3, ExpertChunks(3, 2), skew=skew)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < 1e-12


@pytest.mark.parametrize(
    ("number", "chunks"),
    [
        (1, ExpertChunks(2, 3)),
        (2, ExpertChunks(1, 4, "last")),
        (4, ExpertChunks(3, 1)),
        (5, ExpertChunks(2, 2, gradients=GradientPieces(2, 1, 0))),
        (7, ExpertChunks(4, 2)),
    ],
    ids=str,
)
def test_exact_in_chunks(number: int, chunks: ExpertChunks) -> None:
    """With as many bytes as at once: gradients' pieces are rounded apart."""
    step, _, _, error = built(number, chunks)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < 1e-12
    if chunks.gradients is None:
        assert stated_bytes(step) == stated_bytes(built(number)[0])


@pytest.mark.parametrize(("number", "chunks"), [(0, ExpertChunks()), (4, ExpertChunks()), (2, ExpertChunks(2, 3))])
def test_mutants(number: int, chunks: ExpertChunks) -> None:
    assert rejected_mutants(built(number, chunks)[0], number) > 8


@pytest.mark.parametrize("number", [1, 3])
def test_a_step_reads_back(number: int) -> None:
    text = step_text(built(number)[0])
    assert "realign" in text
    assert step_text(read_step(text)) == text


@pytest.mark.parametrize("number", [1, 6, 7])
def test_as_many_rows_cross_nodes_as_go_to_each_gpu_there(number: int) -> None:
    """To the row, out and home, rows of padding as well; in fewer messages, as one has what a node's GPUs all send."""
    node = CASES[number][3]
    step, flat = built(number)[0], built(number, inside_first=False)[0]
    for template, one in enumerate(flat.templates):
        if one.layout:
            continue
        for tensor in ("i", "v", "p", "di", "dv", "dp"):
            across = rows_sent(flat, template, tensor, True, node)
            assert rows_sent(step, template, tensor, True, node) == across
            if across:
                assert messages(step, template, tensor, node) <= messages(flat, template, tensor, node)
        assert one.name == step.templates[template].name
    forward = next(at for at, one in enumerate(flat.templates) if one.name.startswith("forward"))
    assert messages(step, forward, "i", node) < messages(flat, forward, "i", node)


def messages(step: Step, template: int, tensor: str, node: int) -> int:
    """How many messages of a tensor a template sends between nodes."""
    ops = step.templates[template].operations
    return int(
        ((ops.kind == SEND) & (ops.what == step.layouts[0].number[tensor]) & (ops.src // node != ops.dst // node)).sum()
    )


def test_every_row_goes_to_the_number_of_its_gpu_inside_the_node() -> None:
    """Counted token by token of what it chose, its GPU, and the GPUs of its experts."""
    step, plans, how, _ = built(3)
    parts = PlanParts(plans[1], MODEL, 1, how)  # of the 29 tokens
    assert parts.routing is not None
    step = whole_step(MODEL, plans[1:], 1, "none", 1, "none", how)
    across, inside = 0, 0
    for home, chosen in zip(np.repeat(parts.home, parts.sizes).tolist(), parts.routing.chosen.tolist(), strict=True):
        gpus = set(chosen)  # eight experts on eight GPUs
        across += sum(gpu // 4 != home // 4 for gpu in gpus)
        inside += sum(gpu % 4 != home % 4 for gpu in gpus)
    assert 0 < across < inside
    for tensor, relayed in (("i", "ni"), ("v", "nv"), ("p", "np")):
        if tensor != "v":
            assert rows_sent(step, 1, tensor, True, 4) == across
        assert rows_sent(step, 1, relayed, False, 4) == inside
        assert rows_sent(step, 1, relayed, True, 4) == rows_sent(step, 1, tensor, False, 4) == 0


def test_one_message_has_what_all_of_a_node_send() -> None:
    """Eight GPUs on two nodes, with tokens for all: eight messages between nodes in place of 32."""
    plans = [plan_of([256], 8, 4)]
    how = ExpertParallel(8, 1, node=4, inside_first=True)
    step, flat = (whole_step(MODEL, plans, 1, "none", 1, "none", one) for one in (how, ExpertParallel(8, 1)))
    assert (messages(step, 1, "i", 4), messages(flat, 1, "i", 4)) == (8, 32)


def test_order_on_a_relay() -> None:
    """A relay brings a chunk into order before experts compute the one before it, and back after they did the next."""
    plans, how = [plan_of([64], 4, 4)], ExpertParallel(4, 1, node=2, inside_first=True)
    step = whole_step(MODEL, plans, 1, "1", StepOverlap(experts=ExpertChunks(3, 1)), "none", how)
    ops, layout = step.templates[1].operations, step.layouts[0]
    told = []
    for row in ops.table[(ops.kind == COMPUTE) & (ops.src == 1)].tolist():
        name = layout.formulas[row[1]].results[0].tensor
        told += [name] if name in ("i", "z", "nv") and (not told or told[-1] != name) else []
    assert told == ["i", "z", "i", "z", "nv", "z", "nv"]


@pytest.mark.parametrize("inside_first", [False, True])
@pytest.mark.parametrize(("degree", "node"), [(8, 2), (8, 4), (6, 2), (6, 3), (4, 1), (4, 4)])
def test_relays_of_homes_and_of_experts_meet(degree: int, node: int, inside_first: bool) -> None:
    """Each pair of a home and an expert's GPU of its group has one relay, which sends on inside the node and receives
    between nodes, or the other way round; what goes in turns is each of these once."""
    relays, gpus = Relays(degree, node, inside_first), 2 * degree
    out = {(a, part): b for a, b, part in relays.to_relays(gpus)}
    on = {(a, part): b for a, b, part in relays.from_relays(gpus)}
    assert len(out) == gpus * (relays.parts - 1)
    assert len(on) == gpus * (degree // relays.parts - 1)
    for home in range(gpus):
        for slice_, part in enumerate(relays.of_slices.tolist()):
            expert = home // degree * degree + slice_
            relay = out.get((home, part), home)
            assert home in relays.homes(relay)
            assert relay == relays.relay(np.array([home]))[0, part]
            assert on.get((relay, slice_), relay) == expert
            first, second = home // node == relay // node, relay // node == expert // node
            assert first if inside_first else second
            other = (relay % node == expert % node) if inside_first else (home % node == relay % node)
            assert other


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            ExpertParallel(4, node=3, inside_first=True),
            "with experts.dispatch=2dh experts are held by whole nodes, so it",
        ),
        (
            ExpertParallel(4, node=2, inside_first=True, tensor_parallel=2),
            "parallel.expert_tensor_parallel is 2; with experts.dispatch=2dh",
        ),
    ],
)
def test_what_cannot_be(how: ExpertParallel, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        whole_step(MODEL, [plan_of([9], 4, 4)], 1, "1", 1, "none", how)


def test_inside_a_node_it_is_flat() -> None:
    chosen = [ExpertParallel.chosen(4, 1, Experts(dispatch=one), 4) for one in (FLAT, TWO_DIMENSIONAL)]
    assert chosen[0] == chosen[1]
    assert ExpertParallel.chosen(8, 1, Experts(dispatch=TWO_DIMENSIONAL), 4).inside_first
