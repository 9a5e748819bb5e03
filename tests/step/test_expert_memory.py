"""Feed-forwards of experts by chunks of memory: proven, exact, sent, computed and home a chunk at a time, and gone
after it; with chunks of exchanges inside them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import EXPERTS, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.expert_schedule import EXPERT_CHOICE, TOKEN_CHOICE, ExpertChunks, GradientPieces
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.simulator.steps.account import StepMemory, step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE, SEND
from zbench.step.passes.build import whole_step
from zbench.step.passes.overlap.token_slices import TokenChunk, slices_in_chunks
from zbench.step.passes.recompute import LEVELS
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step

FOUR = replace(EXPERTS, num_kv_heads=4)
DENSE_FIRST = replace(FOUR, shared_experts=1, dense_layers=1, dense_ffn_hidden=8)
SHARED = replace(FOUR, shared_experts=2)
ALL = ExpertParallel(4, 1)  # GPUs hold all experts together
ONE = ExpertChunks()


def built(
    model: Model,
    mlp: int | str,
    lengths: list[list[int]],
    level: str,
    how: ExpertParallel,
    shape: tuple[int, int, str] = (1, 1, "1"),
    chunks: ExpertChunks = ONE,
) -> tuple[Step, float]:
    """A step on four GPUs of a stage, and its error. shape: tensor parallelism, stages, and ZeRO's."""
    degree, stages, zero = shape
    own, ranks = replace(model, mlp_chunk_tokens=mlp), 4 // degree
    plans = [plan_of(one, ranks, ranks, first=9 * at) for at, one in enumerate(lengths)]
    overlap = StepOverlap(experts=chunks)
    step = whole_step(own, plans, degree, zero, overlap, level, how, stages)
    return step, execute(step, plans, degree, own, how.in_chunks(chunks), overlap.token_slices)


CASES = [
    ([[23, 1, 7], [1]], DENSE_FIRST, 3, "chunked", replace(ALL, skew=3.0), (1, 1, "3"), ONE),
    ([[7, 4]], FOUR, 1, "full", replace(ALL, skew=3.0), (1, 1, "1"), ONE),  # an expert without a token
    ([[23]], replace(FOUR, experts_per_token=1), 2, "selective", replace(ALL, skew=50.0), (1, 1, "2"), ONE),  # to one
    ([[1]], FOUR, 3, "full", ALL, (1, 1, "1"), ExpertChunks(2, 3)),  # one token in all
    ([[23, 1, 7]], SHARED, 3, "full", ALL, (2, 1, "2"), ExpertChunks(1, 4, "last")),  # experts over two groups
    ([[9, 7], [1]], FOUR, 3, "none", ExpertParallel(2, 1, 50.0), (2, 1, "1"), ExpertChunks(4, 1)),
    ([[9, 7]], FOUR, 3, "selective", ExpertParallel(2, 1, 20.0), (1, 2, "none"), ExpertChunks(2, 3)),  # stages
    ([[13, 4]], SHARED, 2, "chunked", replace(ALL, skew=1.0, node=2), (1, 1, "1"), ExpertChunks(2, 2)),  # two levels
    ([[13, 4]], FOUR, 2, "full", replace(ALL, node=2, tensor_parallel=2), (1, 1, "1"), ONE),  # cut by columns
    ([[7, 14]], FOUR, 2, "full", replace(ALL, skew=1.0, capacity=1.25, padded=True), (1, 1, "1"), ExpertChunks(2, 1)),
    ([[7, 14]], FOUR, 4, "elementwise", replace(ALL, skew=1.0, capacity=0.5), (1, 1, "3"), ONE),
    ([[7, 14]], FOUR, 2, "full", replace(ALL, routing=TOKEN_CHOICE), (1, 1, "1"), ExpertChunks(2, 3)),
    ([[7, 14]], SHARED, 3, "chunked", replace(ALL, node=2, tensor_parallel=2, routing=TOKEN_CHOICE), (1, 1, "1"), ONE),
    ([[7, 14]], FOUR, 3, "chunked", ExpertParallel(1, 1), (1, 1, "1"), ONE),  # all experts at home
    ([[7, 14]], FOUR, 3, "full", ALL, (1, 1, "1"), ExpertChunks(2, 3, gradients=GradientPieces(4, 1, 2))),
]


@pytest.mark.parametrize(("lengths", "model", "mlp", "level", "how", "shape", "chunks"), CASES)
def test_exact_and_as_many_bytes(
    lengths: list[list[int]],
    model: Model,
    mlp: int,
    level: str,
    how: ExpertParallel,
    shape: tuple[int, int, str],
    chunks: ExpertChunks,
) -> None:
    """Numbers of counted rows are as many more as there are chunks, all else is as much."""
    step, error = built(model, mlp, lengths, level, how, shape, chunks)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < 1e-12
    if how.routing != TOKEN_CHOICE:
        once = ExpertChunks(gradients=chunks.gradients)
        whole, _ = built(model, "whole", lengths, "selective" if level == "chunked" else level, how, shape, once)
        assert stated_bytes(step) == stated_bytes(whole)


def order(step: Step, template: str, tensors: tuple[str, ...]) -> list[tuple[str, int]]:
    """What a template computes and sends of some tensors on all GPUs, in order, with its tokens, alike ones in a row
    as one."""
    one = next(one for one in step.templates if one.name == template)
    layout, found = step.layouts[one.layout], list[tuple[str, int]]()
    for row in one.operations.table.tolist():
        if row[0] not in (COMPUTE, SEND):
            continue
        compute = row[0] == COMPUTE
        name = layout.formulas[row[1]].results[0].tensor if compute else layout.tensors[row[1]].name
        if name not in tensors:
            continue
        column = 4 + layout.formulas[row[1]].slots.index("t") if compute else 4
        tokens = int(layout.index["t"].sizes[layout.lists[row[column]]].sum())
        name = name if compute else f"send {name}"
        if found and found[-1][0] == name:
            found[-1] = name, found[-1][1] + tokens
        else:
            found.append((name, tokens))
    return found


def test_a_chunk_is_home_before_the_next_one_is_sent() -> None:
    """Of 16 tokens on four GPUs two of each at a time: m and b are of 8 tokens each time."""
    step, _ = built(FOUR, 2, [[16]], "full", ALL)
    names = ("m", "i", "z", "u", "v", "b")
    there = order(step, "forward", names)
    assert [name for name, _ in there] == 2 * ["m", "i", "send i", "z", "u", "v", "send v", "b"]
    assert [tokens for name, tokens in there if name in ("m", "b")] == [8, 8, 8, 8]
    names = ("m~", "i~", "z~", "u~", "dv", "du", "dz", "di", "dm")
    back = [name for name, _ in order(step, "backward", names)]
    each = ["m~", "i~", "send i~", "z~", "u~", "dv", "send dv", "du", "dz", "di", "send di", "dm"]
    assert back == 2 * each


def test_chunks_of_exchanges_are_inside() -> None:
    """Both chunks of exchanges of a chunk of memory are out before one of them comes home, and none of the next."""
    step, _ = built(FOUR, 2, [[16]], "full", ALL, chunks=ExpertChunks(2, 1))
    there = [name for name, _ in order(step, "forward", ("m", "i", "z", "v"))]
    assert there == 2 * ["m", "i", "send i", "z", "v", "send v", "z", "v", "send v"]


def test_shared_experts_of_a_group_go_between_its_exchanges() -> None:
    """What a group gathers and reduces is of all tokens; routed experts wait until shared ones are done with them, so
    that a chunk of theirs is all that is there."""
    step, _ = built(SHARED, 4, [[16]], "full", ExpertParallel(4, 1), (2, 1, "1"))
    there = [name for name, _ in order(step, "forward", ("m", "us", "i", "z", "v"))]
    assert there == ["m", *["us"], *2 * ["i", "send i", "z", "v", "send v"]]


def test_mutants() -> None:
    step, _ = built(SHARED, 3, [[7, 4]], "full", ExpertParallel(2, 1, 1.0), (1, 1, "3"), ExpertChunks(2, 1))
    assert rejected_mutants(step, 3) > 8


def test_gpus_that_exchange_have_as_many_chunks() -> None:
    """One with more tokens than the others has chunks of more tokens, and others as many of fewer, or of none."""
    gpu, sizes = np.arange(4), np.array([10, 1, 4, 4])
    assert slices_in_chunks(gpu, sizes, 1, TokenChunk(4)).tolist() == [3, 1, 1, 1]
    assert slices_in_chunks(gpu, sizes, 1, TokenChunk(4, 2)).tolist() == [3, 3, 1, 1]
    assert slices_in_chunks(gpu, sizes, 2, TokenChunk(4, 4)).tolist() == [3, 3, 3, 3]


def memory(mlp: int | str, level: str, chunks: ExpertChunks = ONE) -> StepMemory:
    model = replace(FOUR, ffn_hidden=64, mlp_chunk_tokens=mlp)
    plans = [plan_of([64], 4, 4)]
    step = whole_step(model, plans, 1, "1", StepOverlap(experts=chunks), level, ALL)
    return step_memory(StepParts(step, plans, replace(small(1, 4), model=model)))


@pytest.mark.parametrize("level", LEVELS)
def test_less_is_there_at_the_fullest_moment(level: str) -> None:
    """With experts' rows of all tokens, rows, gate and up and gradients of these are; of chunks one chunk's."""
    whole = memory("whole", "selective" if level == "chunked" else level)
    few = memory(4, level)
    assert (few.peak < whole.peak).all()
    if level == "full":
        of_chunk = sum(few.held.get(name, 0 * few.peak) for name in ("z~", "u~", "i~", "dz", "du", "dv", "di"))
        of_all = sum(whole.held.get(name, 0 * few.peak) for name in ("z~", "u~", "i~", "dz", "du", "dv", "di"))
        assert int(np.sum(of_chunk)) * 2 < int(np.sum(of_all))


def test_chunks_of_exchanges_alone_save_little() -> None:
    """All of them are sent before any comes home; what they compute is there by chunks, but rows are not."""
    whole, sent, both = memory("whole", "full"), memory("whole", "full", ExpertChunks(4, 4)), memory(4, "full")
    assert int(both.peak.sum()) < int(sent.peak.sum()) < int(whole.peak.sum())
    # Rows that come for all chunks at once are there while the last chunk's are computed.
    assert int(sent.held["i~"].sum()) > int(both.held["i~"].sum())


@pytest.mark.parametrize("routing", [TOKEN_CHOICE, EXPERT_CHOICE])
def test_room_that_is_of_all_tokens_takes_all_tokens(routing: str) -> None:
    how = replace(ALL, routing=routing, capacity=1.25, padded=True)
    told = rf"^memory.mlp_chunk_tokens is 3, experts.routing {routing} and experts.capacity 1.25; .* takes whole$"
    with pytest.raises(ValueError, match=told):
        how.check(replace(FOUR, gate="softmax_all", mlp_chunk_tokens=3), 4)
