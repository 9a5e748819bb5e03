"""Experts by chunks of the tokens on one, four and eight processes: exact, with the bytes that the step says, the same
bits again."""

from dataclasses import replace
from itertools import product

import pytest

from tests.helpers.steps import plan_of
from tests.runtime.handlers.conftest import started
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import EXPERTS
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import judged_step
from zbench.describe.expert_schedule import DEGREES, ExpertChunks, GradientPieces
from zbench.describe.overlap import StepOverlap
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.proof.prove import prove_step

RANKS = StepCombination(
    1, 4, 1, 1, 4, 1, "even", 1, 1, "whole", "own", "1", 0, "none", 1, "carry", "uneven"
)  # in words
CHUNKS = (ExpertChunks(2, 2), ExpertChunks(4, 1), ExpertChunks(8, 8, "last"), ExpertChunks(3, 2))
# With gradients between messages, as lina, fsmoe and clock have them.
BETWEEN = (
    ExpertChunks(2, 2, gradients=GradientPieces(4, 1, 2)),
    ExpertChunks(2, 3, gradients=GradientPieces(8, 2, 3, apart=False)),
    ExpertChunks(4, 1, "last", GradientPieces(8, 0, 8, apart=False)),
)


def case_of(
    chunks: ExpertChunks,
    lengths: list[int],
    per_token: int,
    skew: float,
    recompute: str,
    shared: int = 0,
    room: ExpertParallel = TOGETHER,
    gate: str = "softmax",
    ranks: int = 4,
) -> StepCase:
    experts = max(EXPERTS.num_experts, ranks)  # each rank has some
    model = replace(EXPERTS, num_experts=experts, experts_per_token=per_token, shared_experts=shared, gate=gate)
    plans = [plan_of(lengths, ranks, 4)]
    degree = ranks if room.tensor_parallel == 1 else room.degree
    how, overlap = replace(room, degree=degree, seed=1, skew=skew), StepOverlap(experts=chunks)
    step = whole_step(model, plans, 1, "1", overlap, recompute, how)
    prove_step(step)
    return StepCase.of(step, model, plans, 1, experts=how, slices=overlap.token_slices)


ROUTED = {
    "uneven": ([50, 1, 13], 2, 0.0, "selective"),
    "an expert without a token": ([7, 4], 2, 3.0, "full"),
    "all tokens to one": ([23], 1, 50.0, "none"),
    "one token": ([1], 2, 0.0, "none"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("chunks", "routed"), list(product((*CHUNKS, *BETWEEN), ROUTED)), ids=str)
def test_exact_with_the_bytes_of_the_step(ranks: LocalFleet, chunks: ExpertChunks, routed: str) -> None:
    """The only query of a step has no gradient but rounding errors, nor has a share that is always 1; Adam divides by
    their size, so that parameters are no number to compare then."""
    lengths, per_token, skew, recompute = ROUTED[routed]
    case = case_of(chunks, lengths, per_token, skew, recompute)
    found, stated = ranks.call("run", case), stated_bytes(case.step)
    if lengths == [1] or per_token == 1:
        found = [replace(one, parameters=0.0) for one in found]
    assert judged_step(RANKS, found, stated).fault == ""


@pytest.mark.parametrize("chunks", BETWEEN, ids=str)
def test_gradients_between_messages_in_two_levels(ranks: LocalFleet, chunks: ExpertChunks) -> None:
    """On two nodes of two GPUs each."""
    case = case_of(chunks, [50, 1, 13], 2, 1.0, "full")
    step = in_two_levels(case.step, 2)
    many, few = (sum(len(one.operations) for one in two.templates) for two in (step, case.step))
    assert many > few
    prove_step(step)
    assert judged_step(RANKS, ranks.call("run", replace(case, step=step)), stated_bytes(step)).fault == ""


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_shared_experts_beside_chunks(ranks: LocalFleet, recompute: str) -> None:
    case = case_of(ExpertChunks(2, 3), [50, 1, 13], 2, 0.0, recompute, shared=2)
    assert judged_step(RANKS, ranks.call("run", case), stated_bytes(case.step)).fault == ""


@pytest.mark.parametrize("room", [ExpertParallel(capacity=0.4), ExpertParallel(capacity=1.0, padded=True)], ids=str)
def test_experts_with_less_room_than_is_wanted(ranks: LocalFleet, room: ExpertParallel) -> None:
    """The dense process drops the same tokens; what is sent has rows of zeros where experts are padded."""
    case = case_of(ExpertChunks(2, 3), [50, 1, 13], 2, 1.0, "full", room=room)
    assert sum(int((one.chosen < 0).sum()) for one in case.tokens if one.chosen is not None) > 10
    assert judged_step(RANKS, ranks.call("run", case), stated_bytes(case.step)).fault == ""


@pytest.mark.parametrize("gate", ["softmax_all", "sigmoid"])
def test_whatever_makes_shares(ranks: LocalFleet, gate: str) -> None:
    case = case_of(ExpertChunks(2, 2), [50, 1, 13], 2, 1.0, "none", room=ExpertParallel(capacity=0.4), gate=gate)
    assert judged_step(RANKS, ranks.call("run", case), stated_bytes(case.step)).fault == ""


@pytest.mark.parametrize(
    ("chunks", "room"), [(ExpertChunks(), TOGETHER), (ExpertChunks(2, 3), ExpertParallel(capacity=0.4))], ids=str
)
def test_rows_go_to_a_node_once(ranks: LocalFleet, chunks: ExpertChunks, room: ExpertParallel) -> None:
    case = case_of(chunks, [50, 1, 13], 2, 1.0, "full", shared=1, room=replace(room, node=2))
    assert judged_step(RANKS, ranks.call("run", case), stated_bytes(case.step)).fault == ""


@pytest.mark.parametrize(
    ("chunks", "room", "skew", "lengths"),
    [
        (ExpertChunks(), TOGETHER, 1.0, [50, 1, 13]),
        (ExpertChunks(2, 3), ExpertParallel(capacity=0.4), 1.0, [50, 1, 13]),
        (ExpertChunks(4, 4, "last"), ExpertParallel(capacity=1.25, padded=True), 0.0, [50, 1, 13]),
        (ExpertChunks(8, 8), TOGETHER, 50.0, [7, 4]),
        (ExpertChunks(2, 2, gradients=GradientPieces(4, 1, 2)), TOGETHER, 3.0, [23]),
    ],
    ids=str,
)
def test_rows_go_by_2dh(
    ranks: LocalFleet, chunks: ExpertChunks, room: ExpertParallel, skew: float, lengths: list[int]
) -> None:
    """Dropless, with a capacity, filled up to it, with experts that nobody chose; twice with the same bits."""
    how = replace(room, node=2, inside_first=True)
    case = case_of(chunks, lengths, 2, skew, "full", shared=1, room=how)
    found = ranks.call("run", case)
    assert judged_step(RANKS, found, stated_bytes(case.step)).fault == ""
    assert found == ranks.call("run", case)


@pytest.mark.parametrize("gate", ["softmax_all", "sigmoid"])
def test_shares_go_by_2dh(ranks: LocalFleet, gate: str) -> None:
    room = ExpertParallel(node=2, inside_first=True)
    case = case_of(ExpertChunks(2, 2), [50, 1, 13], 3, 1.0, "none", room=room, gate=gate)
    assert judged_step(RANKS, ranks.call("run", case), stated_bytes(case.step)).fault == ""


@pytest.mark.parametrize(("chunks", "degree"), [(ExpertChunks(), (1, 2)), (ExpertChunks(2, 3), (2, 2))])
def test_experts_that_are_cut_over_gpus(ranks: LocalFleet, chunks: ExpertChunks, degree: tuple[int, int]) -> None:
    """Over two GPUs, which gather rows of their own; or with others, one of which gets these and sends them on."""
    groups, gpus = degree
    room = ExpertParallel(capacity=0.6, node=gpus if groups > 1 else 0, tensor_parallel=gpus)
    case = case_of(chunks, [50, 1, 13], 2, 1.0, "full", shared=1, room=replace(room, degree=groups * gpus))
    assert judged_step(RANKS, ranks.call("run", case), stated_bytes(case.step)).fault == ""


@pytest.mark.parametrize(
    ("layers", "zero", "pieces", "hosts", "when"),
    [
        (2, "1", GradientPieces(4, 1, 2), (2, 0, 0), "as_gradients_come"),
        (4, "2", GradientPieces(3, 1, 1, apart=False), (4, 0, 0), "after_backward"),
        (4, "3", GradientPieces(2, 2, 0), (2, 2, 0), "as_gradients_come"),
        (5, "1", GradientPieces(3, 0, 2), (4, 0, 2), "as_gradients_come"),
    ],
    ids=str,
)
def test_gradients_between_messages_of_stages_that_update_on_hosts(
    ranks: LocalFleet, layers: int, zero: str, pieces: GradientPieces, hosts: tuple[int, int, int], when: str
) -> None:
    """Two stages of two ranks, two micro-batches; the state, and parameters, of all layers or of some."""
    model = replace(EXPERTS, num_layers=layers)
    plans = [plan_of([9, 1, 6], 2, 4), plan_of([5], 2, 4, first=3)]
    how, overlap = ExpertParallel(2, skew=1.0, seed=1), StepOverlap(experts=ExpertChunks(2, 3, gradients=pieces))
    step = whole_step(model, plans, 1, zero, overlap, "full", how, 2)
    step = with_optimizer_on_hosts(step, 2, HostLayers(layers, *hosts), when)
    prove_step(step)
    case = StepCase.of(step, model, plans, 1, experts=how, slices=overlap.token_slices)
    one = replace(RANKS, context_parallel=2, expert_parallel=2, stages=2)
    assert judged_step(one, ranks.call("run", case), stated_bytes(step)).fault == ""


def test_two_runs_have_the_same_bits(ranks: LocalFleet) -> None:
    """Sums over chunks are added in the step's order, not in that of arrival."""
    for pieces in (None, GradientPieces(4, 1, 2)):
        case = case_of(ExpertChunks(4, 4, gradients=pieces), [50, 1, 13], 2, 0.0, "none")
        assert ranks.call("run", case) == ranks.call("run", case)


@pytest.mark.parametrize("ranks", [1, 8])
def test_more_chunks_than_a_schedule_chooses_on_one_rank_and_on_eight(ranks: int) -> None:
    """More than any choice by itself (DEGREES), by `experts.degree`, and more than some ranks have tokens: chunks of
    one token and of none."""
    chunks = ExpertChunks(max(DEGREES) + 3, max(DEGREES) + 1)
    case = case_of(chunks, [50, 1, 13], 2, 1.0, "full", ranks=ranks)
    for fleet in started(ranks):
        found = fleet.call("run", case)
        assert judged_step(replace(RANKS, context_parallel=ranks), found, stated_bytes(case.step)).fault == ""
