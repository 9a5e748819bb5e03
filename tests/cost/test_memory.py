"""Peak memory against a plain walk through the plan, holding what each operation brings until its last use."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import cases
from tests.plans.test_read_at_home import read_by_views
from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.memory.copies import kept_bytes, kept_over_own, moment_bytes
from zbench.cost.memory.lines import MemoryLines, MomentLine
from zbench.cost.memory.needs import check_memory, least_bytes, memory_of, moments_of_stages, pipeline_moments
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.memory.state import ADAM_BYTES
from zbench.cost.ranks_of_gpus import stacked
from zbench.cost.recompute import again_activation_bytes, chunk_activation_bytes, layer_activation_bytes
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import DKV, DO, DQ, KV, RECOMPUTE, SHARDING, O, Q
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Attend, Ops, Plan
from zbench.plans.read_at_home import head_edges
from zbench.systems.local_packing import LocalPacking

NUMBER = {"q": Q, "kv": KV, "o": O, "do": DO, "dq": DQ, "dkv": DKV}


def walk(plan: Plan, ops: Ops, backward: bool, cost: Cost) -> list[int]:
    """Per rank, the fullest moment: items (tensor, block) away from home, from first arrival to last use."""
    life: dict[tuple, list[int]] = {}  # (tensor, block, rank) -> [first, last, head_lo, head_hi]
    there = {}  # what stays until the backward is kept_bytes' to count, in either direction
    for op, keep in zip(plan.views(plan.forward), plan.forward.keep, strict=True):
        if keep:
            there |= {(op.tensor, block, op.dst): True for block in op.blocks}

    def touch(at: int, tensor: str, block: int, rank: int, heads: tuple[int, int], opens: bool) -> None:
        if plan.blocks.home[block] == rank or (tensor, block, rank) in there:
            return  # at home, or among what the layer keeps anyway
        span = life.setdefault((tensor, block, rank), [at if opens else -1, -1, *heads])
        span[1] = span[1] if opens else at
        span[2:] = [min(span[2], heads[0]), max(span[3], heads[1])]

    for at, op in enumerate(plan.views(ops)):
        if isinstance(op, Attend):
            reads = [("q", b) for b in op.q_blocks] + [("kv", b) for b in op.kv_blocks]
            adds = [("o", b) for b in op.q_blocks]
            if backward:
                reads += [("do", b) for b in op.q_blocks]
                adds = [("dq", b) for b in op.q_blocks] + [("dkv", b) for b in op.kv_blocks]
            for tensor, block in reads:
                touch(at, tensor, block, op.rank, op.heads, False)
            for tensor, block in adds:
                touch(at, tensor, block, op.rank, op.heads, True)
        else:
            for block in op.blocks:
                touch(at, op.tensor, block, op.src, op.heads, False)
                touch(at, op.tensor, block, op.dst, op.heads, True)
    peak = [0] * plan.num_ranks
    for at in range(len(ops)):
        now = [0] * plan.num_ranks
        for (tensor, block, rank), (first, last, lo, hi) in life.items():
            if first <= at <= last:
                per_token = cost.model.message_bytes_per_token(NUMBER[tensor], lo, hi)
                now[rank] += per_token * int(plan.blocks.tokens[block])
        peak = [max(pair) for pair in zip(peak, now, strict=True)]
    return peak


@given(cases(nodes=2, gpus=4))
def test_the_fullest_moment(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    assert moment_bytes(plan, plan.forward, False, cost).tolist() == walk(plan, plan.forward, False, cost)
    assert moment_bytes(plan, plan.backward, True, cost).tolist() == walk(plan, plan.backward, True, cost)


def unread(plan: Plan, cost: Cost) -> list[int]:
    """Per rank, the bytes of q and kv of its own tokens that its backward does not read. Kv heads that a range of the
    plan's heads shares with another one's go together."""
    model, edges = cost.model, head_edges(plan).tolist()
    group = model.num_heads // model.num_kv_heads
    together = [{head} for head in range(model.num_kv_heads)]
    for low, high in pairwise(edges):
        joined = {head // group for head in range(low, high)}
        near = [one for one in together if one & joined]
        together = [one for one in together if not one & joined] + [set[int]().union(*near)]
    queries, keys = read_by_views(plan)
    read_kv = {(block, head // group) for block, head in keys}
    gone = [0] * plan.num_ranks
    for block, rank in enumerate(plan.blocks.home.tolist()):
        heads = sum((block, head) not in queries for head in range(plan.num_heads))
        pairs = sum(len(one) for one in together if not any((block, head) in read_kv for head in one))
        sizes = model.message_bytes_per_token(Q, 0, 1), model.message_bytes_per_token(KV, 0, 1)
        gone[rank] += int(plan.blocks.tokens[block]) * (heads * sizes[0] + pairs * sizes[1])
    return gone


@given(cases(nodes=2, gpus=5))
def test_the_peak_is_the_sum_of_its_parts(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    model = cost.model
    kept = [0] * plan.num_ranks
    for op, keep in zip(plan.views(plan.forward), plan.forward.keep, strict=True):
        if keep:
            tokens = int(plan.blocks.tokens[list(op.blocks)].sum())
            kept[op.dst] += tokens * model.message_bytes_per_token(NUMBER[op.tensor], *op.heads)
    assert kept_bytes(plan, cost).tolist() == kept
    kept = [received - gone for received, gone in zip(kept, unread(plan, cost), strict=True)]
    assert kept_over_own(plan, cost).tolist() == kept
    moments = np.maximum(moment_bytes(plan, plan.forward, False, cost), moment_bytes(plan, plan.backward, True, cost))
    each = zip(plan.tokens_per_rank.tolist(), kept, moments.tolist(), strict=True)
    expected = [
        max(line.bytes(tokens) + line.received * received + line.copies * away for line in memory_of(cost).lines)
        for tokens, received, away in each
    ]
    assert peak_bytes((plan,), cost).tolist() == np.ceil(expected).tolist()
    assert peak_bytes((plan, plan), cost).tolist() == np.ceil(expected).tolist()  # one micro-batch after another
    assert peak_bytes((plan,), cost).max() >= least_bytes(cost, int(plan.lengths.sum()))
    layers = {line.received for line in memory_of(cost).lines}
    of_work = {0, 1} if model.recompute == "full" else {model.num_layers - 1, model.num_layers}
    assert layers == of_work  # behind attention this layer's are gone


@given(st.data())
def test_tokens_that_have_room_are_the_inverse_of_their_bytes(data: st.DataObject) -> None:
    """Of any lines: bytes grow with tokens, and what has room fills a moment and leaves some of the others."""
    sizes = st.floats(1, 1e6)
    lines = MemoryLines(
        tuple(
            MomentLine(
                *data.draw(st.tuples(st.floats(0, 1e9), sizes, sizes)), data.draw(st.integers(0, 4096)), 2.0, True
            )
            for _ in range(data.draw(st.integers(1, 4)))
        )
    )
    tokens, received, copies = data.draw(st.tuples(st.floats(0, 1e5), st.floats(0, 1e4), st.floats(0, 1e4)))
    memory = max(line.bytes(tokens, received, copies) for line in lines.lines)
    assert lines.tokens(memory, received, copies) == pytest.approx(tokens, rel=1e-6, abs=1e-2)
    assert lines.bytes(tokens, received, copies) == pytest.approx(memory, abs=1)
    few = lines.tokens(memory, received, copies, filled=0.9)
    assert few <= tokens * (1 + 1e-6) + 1e-2
    assert lines.tokens(min(line.constant for line in lines.lines) - 1) < 0


def test_room_is_that_of_the_fuller_moment() -> None:
    """Neither moment's constant is added to the other's tokens."""
    lines = MemoryLines((MomentLine(100.0, 10.0), MomentLine(1000.0, 1.0)))
    assert [lines.bytes(tokens) for tokens in (0, 50, 100, 200)] == [1000, 1050, 1100, 2100]
    assert [lines.tokens(memory) for memory in (900, 1050, 1100, 2100)] == [-100, 50, 100, 200]
    chunked = MemoryLines((MomentLine(0.0, 1.0, 9.0, 10),))
    assert [chunked.bytes(tokens) for tokens in (5, 10, 20)] == [50, 100, 110]
    assert [chunked.tokens(memory) for memory in (50, 100, 110)] == [5, 10, 20]
    assert [chunked.tokens(memory, filled=0.5) for memory in (100, 200, 220)] == [5, 10, 20]


@given(cases(nodes=2, gpus=5))
def test_recomputation_and_sharding_need_no_more(case: tuple[Cost, Plan]) -> None:
    cost, _ = case
    plain, part, chunked, full = (
        moments_of_stages(replace(cost, model=replace(cost.model, recompute=name, num_layers=4)))[0]
        for name in RECOMPUTE
    )
    model, hidden = cost.model, cost.model.element_bytes * cost.model.hidden
    assert chunked == part  # without chunks
    assert full.kept == 4 * hidden
    assert plain.kept - part.kept == 4 * again_activation_bytes(model)
    # While it is at work a layer has as much, however it was made again, and there is no more than without.
    assert (
        max(line.token for line in part.at_work) + part.kept <= max(line.token for line in plain.at_work) + plain.kept
    )
    assert full.at_loss == part.at_loss == plain.at_loss
    held = model.element_bytes + GRADIENT_BYTES
    none, one, two, three = (
        moments_of_stages(replace(cost, model=replace(model, sharding=name)))[0] for name in SHARDING
    )
    routers = model.num_layers * model.num_experts * (model.num_experts > 1)
    ranks, gains = cost.cluster.num_ranks, model.hidden * (2 * model.num_layers + 1 + routers)
    params, each = model.total_params - gains, gains * (held + ADAM_BYTES) + model.lse_bytes  # and a loss
    assert none.state == (held + ADAM_BYTES) * params + each
    cut = (
        (one.state, (held + ADAM_BYTES / ranks) * params + each),
        (two.state, (model.element_bytes + (GRADIENT_BYTES + ADAM_BYTES) / ranks) * params + each),
        (three.state, (held + ADAM_BYTES) / ranks * params + each),
    )
    for state, said in cut:
        assert state == pytest.approx(int(said), abs=1)  # a byte is rounded
    others = 1 - 1 / ranks if ranks > 1 else 0
    assert {line.constant for line in (*none.at_work, *none.at_loss, *one.at_work, *one.at_loss)} == {0}
    # A part of the table or of the head is a rank's own, and the fullest has the table's.
    whole = (ranks > 1) * (1 - model.tied_embeddings / ranks)
    assert two.at_loss[0].constant == pytest.approx(GRADIENT_BYTES * model.head_params * whole)
    assert two.at_work[-1].constant == pytest.approx(GRADIENT_BYTES * model.layer_params * others)
    assert three.at_work[-1].constant == pytest.approx(held * model.layer_params * others)
    gathered = model.element_bytes * model.layer_params * others
    assert three.at_loss[0].constant == pytest.approx(gathered + held * model.head_params * whole)


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_a_chunk_of_the_feed_forward_is_there_however_many_tokens_there_are(uneven: Cost, recompute: str) -> None:
    """What recomputation makes again of it there, and gradients of its halves; else all is kept, or made again
    before."""
    whole = replace(uneven, model=replace(uneven.model, recompute=recompute))  # type: ignore[arg-type]
    cost = replace(whole, model=replace(whole.model, mlp_chunk_tokens=100))
    model = cost.model
    again = again_activation_bytes(model) if recompute in ("chunked", "full") else 0
    halves = 2 * model.element_bytes * model.active_ffn
    (one,), (other,) = moments_of_stages(whole), moments_of_stages(cost)
    assert (one.kept, one.state, one.at_loss) == (other.kept, other.state, other.at_loss)
    assert one.at_work[0].token - other.at_work[0].token == again + halves
    assert {(line.chunk, line.chunk_tokens) for line in other.at_work[:2]} == {(again + halves, 100)}
    assert one.at_work[2:] == other.at_work[2:]  # attention knows of no chunks
    pair, same = pipeline_moments(whole, 2, 1), pipeline_moments(cost, 2, 1)
    assert pair.kept == same.kept
    assert pair.at_work[2:] == same.at_work[2:]
    grouped = replace(model, tensor_parallel=2)  # in which what the norm makes is gathered whole
    assert again - chunk_activation_bytes(grouped) == (model.element_bytes * model.hidden if again else 0)


@pytest.mark.parametrize("sharding", [*SHARDING, ShardDegrees(3, 3, 5, WORLD)])
def test_chunks_of_any_sharding_are_counted(uneven: Cost, sharding: str | ShardDegrees) -> None:
    """With parameters and gradients of the feed-forward whole at once, as the next chunk needs them."""
    model = replace(uneven.model, sharding=sharding, recompute="chunked")  # type: ignore[arg-type]
    whole, chunked = (replace(uneven, model=replace(model, mlp_chunk_tokens=tokens)) for tokens in ("whole", 100))
    (one,), (other,) = moments_of_stages(whole), moments_of_stages(chunked)
    ffn = model.layer_params - model.attention_params
    weights = model.element_bytes if sharding not in ("none", "zero1", "zero2") else 0
    assert other.at_work[0].constant - one.at_work[1].constant == pytest.approx(weights * ffn)


def test_keep_holds_more_than_carry_than_regather(uneven: Cost) -> None:
    builder = Builder(np.array([6000]), 15, 6)
    ring(builder, np.array([0]), np.array([0]), np.arange(15)[None])
    forward = builder.build()
    kept = {mode: kept_bytes(reverse(forward, mode), uneven) for mode in ("keep", "carry", "regather")}
    share = 400 * uneven.model.message_bytes_per_token(KV, 0, 6)
    assert set(kept["keep"].tolist()) == {14 * share}
    assert set(kept["carry"].tolist()) == {share}
    assert set(kept["regather"].tolist()) == {0}


def test_the_activations_of_llama_7b(uneven: Cost) -> None:
    """Korthikanti et al. 2022 (arXiv 2205.05198) count 34 hidden bytes a token for GPT with dropout.

    Without dropout's masks and with SwiGLU of 8/3 hidden a Llama layer keeps 4 + 4 + 8 bf16 values a hidden.
    """
    model = replace(uneven.model, hidden=4096, num_heads=32, num_kv_heads=32, head_dim=128, ffn_hidden=11008)
    assert layer_activation_bytes(model) / 4096 == pytest.approx(2 * 4 + 2 * 4 + 2 * 3 * 2.6875 + 4 * 32 / 4096)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(
    ("sharding", "remedy"), [("zero1", "sharding=zero3"), ("zero2", "sharding=zero3"), ("zero3", "more nodes")]
)
def test_only_what_no_micro_batch_fits_is_refused(uneven: Cost, sharding: str, remedy: str, stages: int) -> None:
    cost, other = (
        stacked(replace(uneven, model=replace(uneven.model, num_layers=3, sharding=one)), stages)  # type: ignore[arg-type]
        for one in (sharding, "zero3")
    )
    assert memory_of(other).bytes(1) <= memory_of(cost).bytes(1)
    least = least_bytes(cost, 1)

    def with_memory(size: int) -> Cost:
        return replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=size)))

    check_memory(with_memory(least))
    with pytest.raises(ValueError, match=rf"GiB on every GPU, .*: use {remedy} or another model$"):
        check_memory(with_memory(least - 1))


def test_tokens_that_fit_in_micro_batches_only_are_planned_within_memory(uneven: Cost) -> None:
    """More tokens than all ranks hold at once: nothing refuses them, and a plan in parts fits."""
    ranks = uneven.cluster.num_ranks
    room = memory_of(uneven).bytes(100)
    device = replace(uneven.cluster.device, memory_bytes=room)
    cost = replace(uneven, cluster=replace(uneven.cluster, device=device))
    lengths = np.full(4 * ranks, 90)
    assert least_bytes(cost, int(lengths.sum())) > room
    check_memory(cost)
    plans = LocalPacking(cost).plan(Batch(lengths, seed=0, step=0))
    assert len(plans) == 4
    assert peak_bytes(plans, cost).max() <= room
