"""Peak memory against a plain walk through the plan, holding what each operation brings until its last use."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from tests.helpers.strategies import cases
from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.memory import (
    ADAM_BYTES,
    activation_bytes,
    check_memory,
    least_bytes,
    peak_bytes,
    static_bytes,
)
from zbench.cost.moment_memory import kept_bytes, moment_bytes
from zbench.cost.recompute import again_activation_bytes, chunk_activation_bytes, layer_activation_bytes
from zbench.cost.stage_memory import stage_bytes
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import DKV, DO, DQ, KV, RECOMPUTE, SHARDING, O, Q
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Attend, Ops, Plan
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
    held = 1 if model.recompute == "full" else model.num_layers
    moments = np.maximum(moment_bytes(plan, plan.forward, False, cost), moment_bytes(plan, plan.backward, True, cost))
    at_home = activation_bytes(model) * plan.tokens_per_rank
    expected = static_bytes(cost) + at_home + held * np.array(kept) + moments
    assert peak_bytes((plan,), cost).tolist() == expected.tolist()
    assert peak_bytes((plan, plan), cost).tolist() == expected.tolist()  # one micro-batch after another
    assert peak_bytes((plan,), cost).max() >= least_bytes(cost, int(plan.lengths.sum()))


@given(cases(nodes=2, gpus=5))
def test_recomputation_and_sharding_need_no_more(case: tuple[Cost, Plan]) -> None:
    cost, _ = case
    plain, part, chunked, full = (replace(cost.model, recompute=name, num_layers=4) for name in RECOMPUTE)
    assert activation_bytes(chunked) == activation_bytes(part)  # without chunks
    assert activation_bytes(full) <= activation_bytes(plain) + 4 * plain.element_bytes * plain.hidden
    assert activation_bytes(full) <= activation_bytes(part) + 4 * plain.element_bytes * plain.hidden
    # All but one layer have nothing of the feed-forward but its input.
    assert activation_bytes(plain) - activation_bytes(part) == 3 * again_activation_bytes(plain)
    held = cost.model.element_bytes + GRADIENT_BYTES
    none, one, two, three = (replace(cost, model=replace(cost.model, sharding=name)) for name in SHARDING)
    ranks, params = cost.cluster.num_ranks, cost.model.total_params
    assert static_bytes(none) == (held + ADAM_BYTES) * params
    assert static_bytes(one) == int((held + ADAM_BYTES / ranks) * params)
    shards, layer = (GRADIENT_BYTES + ADAM_BYTES) / ranks, cost.model.layer_params
    assert static_bytes(two) == int((cost.model.element_bytes + shards) * params) + layer * GRADIENT_BYTES
    gathered = 2 * cost.model.layer_params * cost.model.element_bytes
    assert static_bytes(three) == int((held + ADAM_BYTES) / ranks * params) + gathered


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_a_chunk_of_the_feed_forward_is_there_however_many_tokens_there_are(uneven: Cost, recompute: str) -> None:
    """Where recomputation makes it again there; else all of it is kept, or made again before."""
    whole = replace(uneven, model=replace(uneven.model, recompute=recompute))  # type: ignore[arg-type]
    cost = replace(whole, model=replace(whole.model, mlp_chunk_tokens=100))
    again = again_activation_bytes(cost.model) if recompute in ("chunked", "full") else 0
    assert activation_bytes(whole.model) - activation_bytes(cost.model) == again
    assert static_bytes(cost) - static_bytes(whole) == 100 * again
    (kept, working, _), (same, less, _) = (stage_bytes(one, 2, 1) for one in (whole, cost))
    assert kept == same
    hidden, ffn = (cost.model.element_bytes * size / 2 for size in (cost.model.hidden, cost.model.active_ffn))
    gathered = {"none": 0, "full": 2}.get(recompute, 1)
    product, halves = (gathered + 2) * hidden + ffn, (gathered + 1) * hidden + 2 * ffn
    norm = (max(gathered, 1) + 3) * hidden
    assert working - less == again / 2 + max(product, halves, norm - ffn) - norm  # gradients are of a chunk, too
    grouped = replace(cost.model, tensor_parallel=2)  # in which what the norm makes is gathered whole
    assert again - chunk_activation_bytes(grouped) == (cost.model.element_bytes * cost.model.hidden if again else 0)


@pytest.mark.parametrize("sharding", [*SHARDING, ShardDegrees(3, 3, 5, WORLD)])
def test_chunks_of_any_sharding_are_counted(uneven: Cost, sharding: str | ShardDegrees) -> None:
    model = replace(uneven.model, sharding=sharding, recompute="chunked")  # type: ignore[arg-type]
    whole, chunked = (replace(uneven, model=replace(model, mlp_chunk_tokens=tokens)) for tokens in ("whole", 100))
    assert static_bytes(chunked) - static_bytes(whole) == 100 * again_activation_bytes(model)


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


@pytest.mark.parametrize(
    ("sharding", "remedy"), [("zero1", "sharding=zero3"), ("zero2", "sharding=zero3"), ("zero3", "more nodes")]
)
def test_only_what_no_micro_batch_fits_is_refused(uneven: Cost, sharding: str, remedy: str) -> None:
    cost = replace(uneven, model=replace(uneven.model, sharding=sharding))
    least = static_bytes(cost) + activation_bytes(cost.model)

    def with_memory(size: int) -> Cost:
        return replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=size)))

    check_memory(with_memory(least))
    with pytest.raises(ValueError, match=rf"GiB on every GPU, .*: use {remedy} or another model$"):
        check_memory(with_memory(least - 1))


def test_tokens_that_fit_in_micro_batches_only_are_planned_within_memory(uneven: Cost) -> None:
    """More tokens than all ranks hold at once: nothing refuses them, and a plan in parts fits."""
    ranks = uneven.cluster.num_ranks
    room = static_bytes(uneven) + 100 * activation_bytes(uneven.model)
    device = replace(uneven.cluster.device, memory_bytes=room)
    cost = replace(uneven, cluster=replace(uneven.cluster, device=device))
    lengths = np.full(4 * ranks, 90)
    assert least_bytes(cost, int(lengths.sum())) > room
    check_memory(cost)
    plans = LocalPacking(cost).plan(Batch(lengths, seed=0, step=0))
    assert len(plans) == 4
    assert peak_bytes(plans, cost).max() <= room
