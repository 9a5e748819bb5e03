"""Experts that are cut over GPUs: exact, and counted token by token and column by column."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, fault, plan_of, rejected_mutants, routed_step
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.expert_schedule import (
    EXPERT_CHOICE,
    TOGETHER_AT_ONCE,
    TOKEN_CHOICE,
    TWO_LEVEL,
    ExpertChunks,
    Experts,
    GradientPieces,
)
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.step.byte_law import stated_bytes
from zbench.step.expert_cut import ExpertCut
from zbench.step.operations import COMPUTE, SEND
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.routing import ExpertParallel
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

# Ranks, tensor-parallel degree, groups of GPUs with all experts and the GPUs of each, GPUs of a node or 0, stages,
# stage, recomputation, shared experts, capacity, lengths of each micro-batch.
CASES = (
    (2, 1, 1, 2, 0, 1, "none", "none", 0, None, ([15, 3],)), (4, 1, 2, 2, 2, 1, "3", "full", 0, None, ([7, 3], [1])),
    (4, 2, 4, 2, 4, 1, "1", "selective", 2, 0.5, ([9, 4], [2])), (4, 1, 1, 4, 0, 1, "2", "full", 1, None, ([1], [13])),
    (4, 2, 2, 4, 4, 1, "3", "none", 0, None, ([9, 4],)), (4, 1, 2, 2, 2, 2, "1", "none", 1, 2.0, ([7, 3], [2])),
)  # fmt: skip
MODEL = replace(EXPERTS, num_experts=8, experts_per_token=3)


def built(number: int, chunks: ExpertChunks = TOGETHER_AT_ONCE) -> tuple[Step, list[Plan], ExpertParallel, float]:
    """A step, what it is built of, and its error."""
    ranks, degree, groups, gpus, node, stages, zero, recompute, shared, capacity, batches = CASES[number]
    how = ExpertParallel(groups * gpus, 1, 1.0, capacity=capacity, node=node, tensor_parallel=gpus)
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
        (3, ExpertChunks(1, 4, "last")),
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


# Of padding, of few seats, of experts that choose, and counted: groups of GPUs with all experts, GPUs of each,
# recomputation, chunks.
OF_SEATS = (
    (ExpertParallel(skew=1.0, capacity=1.25, padded=True), 2, 2, "full", ExpertChunks(2, 3)),
    (ExpertParallel(capacity=0.5, padded=True, routing=TOKEN_CHOICE), 2, 2, "selective", TOGETHER_AT_ONCE),
    (ExpertParallel(capacity=1.0, padded=True, routing=EXPERT_CHOICE), 1, 4, "none", TOGETHER_AT_ONCE),
    (ExpertParallel(routing=TOKEN_CHOICE), 2, 2, "full", TOGETHER_AT_ONCE),
    (ExpertParallel(routing=TOKEN_CHOICE), 1, 2, "none", ExpertChunks(3, 1, "last")),
)


def seated(number: int) -> tuple[Step, float]:
    """A step whose rows are of padding, or of seats, and its error; the second micro-batch has one token."""
    how, groups, gpus, recompute, chunks = OF_SEATS[number]
    how = replace(how, degree=groups * gpus, seed=1, node=gpus, tensor_parallel=gpus)
    model = replace(EXPERTS, gate="softmax_all", shared_experts=number % 2)
    step, _, error = routed_step(model, how, ([6, 3], [1]), (4, 1, 1), ("3", recompute), chunks)
    return step, error


@pytest.mark.parametrize("number", range(len(OF_SEATS)))
def test_padding_and_seats_are_gathered_as_rows_of_tokens_are(number: int) -> None:
    step, error = seated(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < 1e-12


def test_seats_go_to_a_group_once() -> None:
    """A home that is no GPU of a group sends one of them its rows, and this one sends them to the others."""
    step, _ = seated(1)
    layout, ops = step.layouts[0], step.templates[1].operations
    for name, inside in (("ni", False), ("pn", False), ("i", True), ("pa", True), ("v", True), ("nv", False)):
        sent = (ops.kind == SEND) & (ops.what == layout.number[name])
        assert sent.any()
        assert ((ops.src[sent] // 2 == ops.dst[sent] // 2) == inside).all()


def test_mutants() -> None:
    assert rejected_mutants(built(1)[0], 1) > 8
    assert rejected_mutants(seated(4)[0], 1) > 8


def test_a_step_reads_back() -> None:
    text = step_text(built(1)[0])
    assert step_text(read_step(text)) == text


def test_parts_are_columns_of_experts() -> None:
    cut = ExpertCut(4, 4, 2)
    assert cut.experts.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert cut.slice_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert ExpertCut(4, 2).experts.tolist() == [0, 1, 2, 3]


def test_rows_go_to_a_group_once_and_to_all_of_its_gpus() -> None:
    """Counted token by token of what it chose: to the GPU of the group that has the home's number, and on to the
    others, and as many home."""
    plans, how = [plan_of([29], 8, 4)], ExpertParallel(8, 1, 1.0, node=2, tensor_parallel=2)
    step = whole_step(MODEL, plans, 1, "none", 1, "none", how)
    parts = PlanParts(plans[0], MODEL, 1, how)
    assert parts.routing is not None
    layout, ops = step.layouts[0], step.templates[1].operations
    sent = dict.fromkeys(("ni", "i", "v", "nv"), 0)
    for name in sent:
        tensor = layout.tensors[layout.number[name]]
        amounts = tensor.amounts.reshape(layout.shape(layout.number[name]))
        for at in np.flatnonzero((ops.kind == SEND) & (ops.what == layout.number[name])):
            assert (ops.src[at] // 2 == ops.dst[at] // 2) == (name in ("i", "v"))
            lists = (layout.lists[int(column[at])] for column in (ops.list0, ops.list1))
            sent[name] += int(amounts[np.ix_(*lists)].sum())
    between = gathered = 0
    for home, chosen in zip(np.repeat(parts.home, parts.sizes).tolist(), parts.routing.chosen.tolist(), strict=True):
        groups = {expert // 2 for expert in chosen}  # of eight experts two are in each of four groups
        between += len(groups - {home // 2})
        gathered += len(groups)
    assert sent == {"ni": between, "nv": between, "i": gathered, "v": gathered}


def test_a_gpu_computes_its_columns_of_what_its_group_was_sent() -> None:
    """Rows times columns of z are those of experts that are whole, on as many GPUs as there are groups."""
    plans = [plan_of([29], 4, 4)]

    def work(how: ExpertParallel) -> list[int]:
        step = whole_step(MODEL, plans, 1, "none", 1, "none", how)
        layout, ops, found = step.layouts[0], step.templates[1].operations, [0] * 4
        number = layout.number["z"]
        amounts = layout.tensors[number].amounts.reshape(layout.shape(number))
        for row in ops.table[ops.kind == COMPUTE].tolist():
            formula = layout.formulas[row[1]]
            if formula.results[0].tensor == "z":
                lists = (layout.lists[row[4 + formula.slots.index(slot)]] for slot in ("t", "e"))
                found[row[2]] += int(amounts[np.ix_(*lists)].sum()) * layout.tensors[number].unit
        return found

    whole, cut = work(ExpertParallel(2, 1, 1.0)), work(ExpertParallel(4, 1, 1.0, node=2, tensor_parallel=2))
    assert cut[0] == cut[1] == (whole[0] + whole[2]) / 2
    assert cut[2] == cut[3] == (whole[1] + whole[3]) / 2


def test_parameters_are_those_of_whole_experts() -> None:
    """Each GPU has the share of all experts' parameters that its group's number of GPUs says."""
    how = ExpertParallel(4, 1, node=2, tensor_parallel=2)
    step = whole_step(MODEL, [plan_of([8], 8, 4)], 1, "none", 1, "none", how)
    layout = step.layouts[0]
    for name, of_expert in (("ez", 2 * MODEL.ffn_hidden), ("ed", MODEL.ffn_hidden)):
        axes = layout.tensors[layout.number[name]].axes
        assert axes == ("k", f"z{name}")
        assert layout.size_of[f"z{name}"] * len(layout.index["k"]) == 8 * MODEL.hidden * of_expert
    assert ShardedParameters(MODEL, 8, 1, "none", StepOverlap(), 4).slices("ez") == ("k", 4)


@pytest.mark.parametrize(
    ("degrees", "experts", "node"),
    [
        ((2, 1), Experts(), 0),
        ((2, 4), Experts(), 4),  # to one GPU of a group, and gathered there
        ((1, 4), Experts(), 0),  # every group has all experts: gathered alone
        ((4, 4), Experts(dispatch=TWO_LEVEL), 8),  # to one GPU of a node, and to those of its experts
        ((2, 4), Experts(dispatch=TWO_LEVEL), 4),  # in one node
        ((1, 4), Experts(routing=TOKEN_CHOICE), 4),  # seats are of the one group
        ((4, 1), Experts(routing=TOKEN_CHOICE), 0),
    ],
)
def test_dispatch_of_a_run(degrees: tuple[int, int], experts: Experts, node: int) -> None:
    found = ExpertParallel.chosen(*degrees, experts, 8)
    assert (found.degree, found.tensor_parallel, found.node) == (degrees[0] * degrees[1], degrees[1], node)


@pytest.mark.parametrize(
    ("how", "model", "told"),
    [
        (ExpertParallel(4, node=4, tensor_parallel=4), replace(MODEL, ffn_hidden=6), "divide model.ffn_hidden=6"),
        (ExpertParallel(2, tensor_parallel=2), replace(MODEL, num_experts=1, experts_per_token=1), "has no experts"),
        (ExpertParallel(4, node=4, tensor_parallel=2, capacity=1.0, padded=True), MODEL, "in two levels to 4 GPUs"),
        (ExpertParallel(2, tensor_parallel=2, routing=TOKEN_CHOICE), MODEL, "in one level; seats are of all GPUs"),
        (ExpertParallel(8, node=2, tensor_parallel=4), MODEL, "it has to divide their 2 GPUs"),
        (ExpertParallel(6, node=2, tensor_parallel=2), MODEL, "is 3; it has to divide model.num_experts=8"),
        (ExpertParallel(16, node=2, tensor_parallel=2), MODEL, "and parallel.expert_tensor_parallel 2, 16 GPUs"),
    ],
)
def test_bad_cuts_are_one_sentence(how: ExpertParallel, model: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        how.check(model, 8)
