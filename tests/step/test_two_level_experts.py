"""Rows that go to a node of experts once: exact, and counted token by token."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, fault, plan_of, rejected_mutants, routed_step
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.expert_schedule import TOGETHER_AT_ONCE, ExpertChunks, GradientPieces
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE, QUEUES, SEND
from zbench.step.passes.build import whole_step
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.routing import ExpertParallel
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

# Ranks, tensor-parallel degree, expert-parallel degree, GPUs of a node, stages, stage, recomputation, shared experts,
# capacity, lengths of each micro-batch; nodes of one GPU have no GPU to pass rows on to.
CASES = (
    (4, 1, 4, 2, 1, "3", "none", 0, None, ([15, 3],)), (4, 1, 4, 2, 1, "2", "full", 2, None, ([7, 3], [1])),
    (4, 2, 8, 4, 1, "1", "selective", 2, 0.5, ([9, 4], [2])), (8, 1, 8, 2, 1, "none", "full", 0, None, ([1], [29])),
    (2, 2, 4, 1, 1, "1", "none", 0, None, ([9, 4],)), (4, 1, 4, 2, 2, "1", "none", 1, None, ([7, 3], [2])),
)  # fmt: skip
MODEL = replace(EXPERTS, num_experts=8, experts_per_token=3)


def built(number: int, chunks: ExpertChunks = TOGETHER_AT_ONCE) -> tuple[Step, list[Plan], ExpertParallel, float]:
    """A step, what it is built of, and its error."""
    ranks, degree, experts, node, stages, zero, recompute, shared, capacity, batches = CASES[number]
    how = ExpertParallel(experts, 1, 1.0, capacity=capacity, node=node)
    shape, kept = (ranks, degree, stages), (zero, recompute)
    step, plans, error = routed_step(replace(MODEL, shared_experts=shared), how, batches, shape, kept, chunks)
    return step, plans, how, error


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact(number: int) -> None:
    step, _, _, error = built(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < 1e-12


@pytest.mark.parametrize(
    ("number", "chunks"),
    [
        (1, ExpertChunks(2, 3)),
        (2, ExpertChunks(1, 4, "last")),
        (4, ExpertChunks(3, 1)),
        (5, ExpertChunks(2, 2, gradients=GradientPieces(2, 1, 0))),
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


def test_mutants_in_chunks() -> None:
    assert rejected_mutants(built(2, ExpertChunks(2, 3))[0], 1) > 8


def test_order_on_a_relay() -> None:
    """A relay passes a chunk on before experts compute the one before it, and sums a chunk after they did the next."""
    plans, how = [plan_of([64], 4, 4)], ExpertParallel(4, 1, node=2)
    step = whole_step(MODEL, plans, 1, "1", StepOverlap(experts=ExpertChunks(3, 1)), "none", how)
    ops, layout = step.templates[1].operations, step.layouts[0]
    (home,) = (one.home for one in layout.tensors if one.name == "x")
    every = np.flatnonzero(home == 1)
    told = []
    for row in ops.table[(ops.kind == COMPUTE) & (ops.src == 1)].tolist():
        formula = layout.formulas[row[1]]
        name = formula.results[0].tensor
        if name in ("i", "z", "nv"):
            mine = np.intersect1d(layout.lists[row[4 + formula.slots.index("t")]], every)
            told.append((name, np.searchsorted(every, mine[0])))
    assert told == [("i", 0), ("i", 1), ("z", 0), ("i", 2), ("z", 1), ("nv", 0), ("z", 2), ("nv", 1), ("nv", 2)]


@pytest.mark.parametrize("number", [0, 2])
def test_mutants(number: int) -> None:
    step, *_ = built(number)
    assert rejected_mutants(step, number) > 8


def test_a_step_reads_back() -> None:
    text = step_text(built(3)[0])
    assert "visits" in text
    assert step_text(read_step(text)) == text


def rows_sent(step: Step, template: int, tensor: str, across: bool, node: int) -> int:
    """The rows of a tensor that a template sends between nodes (across) or inside them."""
    layout, ops = step.layouts[0], step.templates[template].operations
    number = layout.number[tensor]
    sent = np.flatnonzero((ops.kind == SEND) & (ops.what == number) & ((ops.src // node != ops.dst // node) == across))
    assert (ops.queue[sent] == QUEUES.index("experts")).all()
    amounts = layout.tensors[number].amounts.reshape(layout.shape(number))
    return sum(
        int(amounts[np.ix_(layout.lists[int(ops.list0[at])], layout.lists[int(ops.list1[at])])].sum()) for at in sent
    )


def test_a_row_crosses_to_a_node_once_and_goes_on_inside() -> None:
    """Counted token by token of what it chose, its GPU, and the GPUs of its experts."""
    step, plans, how, _ = built(3)
    parts = PlanParts(plans[1], MODEL, 1, how)  # of the 29 tokens
    assert parts.routing is not None
    step = whole_step(MODEL, plans[1:], 1, "none", 1, "none", how)
    across, inside, flat = 0, 0, 0
    for home, chosen in zip(np.repeat(parts.home, parts.sizes).tolist(), parts.routing.chosen.tolist(), strict=True):
        gpus = set(chosen)  # eight experts on eight GPUs
        across += len({gpu // 2 for gpu in gpus} - {home // 2})
        flat += sum(gpu // 2 != home // 2 for gpu in gpus)
        inside += sum(gpu % 2 != home % 2 for gpu in gpus)  # from the relay, which has the home's number
    assert 0 < across < flat
    assert rows_sent(step, 1, "ni", True, 2) == rows_sent(step, 1, "nv", True, 2) == across
    assert rows_sent(step, 1, "i", False, 2) == rows_sent(step, 1, "v", False, 2) == inside
    assert rows_sent(step, 1, "i", True, 2) == rows_sent(step, 1, "ni", False, 2) == 0
    once_a_gpu = whole_step(MODEL, plans[1:], 1, "none", 1, "none", replace(how, node=0))
    assert rows_sent(once_a_gpu, 1, "i", True, 2) == flat
