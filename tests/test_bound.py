"""The bound: below every plan's time, reached where nothing is lost, and not fooled by cutting."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import REAL, batches, cases, costs, masks

from zbench.area import work
from zbench.batch import Batch
from zbench.bound import bound_seconds, least_seconds
from zbench.build import Builder
from zbench.cluster import Cluster
from zbench.cost import Cost
from zbench.model import Model
from zbench.patterns import local, ulysses_ring
from zbench.plan import Ops, Plan
from zbench.rewrite import reverse
from zbench.simulate import Simulated


@settings(max_examples=100)
@given(cases(nodes=2, gpus=6, most=6000, mask=masks()))
def test_no_plan_is_faster(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    batch = Batch(plan.lengths, 0, 0)
    assert bound_seconds(batch, cost) <= Simulated(cost).step(batch, (plan,)).seconds * (1 + 1e-9)


def attention(cost: Cost, plan: Plan) -> list[tuple[float, float]]:
    """(whole sequences as the bound takes them, all attends of the plan together), forward and backward."""
    found = []
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        attend, amount = work(plan, ops)
        seconds = cost.attend_seconds(plan, ops, attend, amount, backward).sum()
        found.append((float(least_seconds(plan.lengths, cost, backward).sum()), float(seconds)))
    return found


@given(cases(nodes=2, gpus=6, most=6000, mask=masks()))
def test_cutting_sequences_makes_attention_no_cheaper(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    for whole, cut in attention(cost, plan):
        assert whole <= cut * (1 + 1e-9)


def test_cutting_by_heads_makes_grouped_attention_no_cheaper() -> None:
    free = replace(REAL, kernel_seconds=1e-12, call_seconds=1e-12, strided_rate=1e30)
    cost = Cost(replace(cluster(1, 4), device=free), Model("m", 1, 64, 4, 1, 64, 64, 64))
    builder = Builder(np.array([3000]), 4, 4)
    ulysses_ring(builder, np.array([0]), np.array([0]), np.arange(4).reshape(1, 1, 4))
    for whole, cut in attention(cost, reverse(builder.build(), "keep")):
        assert whole <= cut * (1 + 1e-9)


@given(st.integers(1, 2000), st.integers(1, 7), st.randoms(use_true_random=False))
def test_scattering_tokens_over_blocks_makes_tiles_no_fewer(length: int, num_blocks: int, random: Random) -> None:
    """Pieces of any size dealt out to blocks at random: tiles of all pairs of blocks against those of the whole."""
    cuts = sorted({0, length, *(random.randrange(length + 1) for _ in range(random.randrange(12)))})
    start, stop = np.array(cuts[:-1]), np.array(cuts[1:])
    builder = Builder(np.array([length]), 1, 1)
    blocks = np.array([random.randrange(num_blocks) for _ in start])
    builder.add_blocks(np.zeros(len(start), np.int64), start, stop, blocks, np.zeros(num_blocks, np.int64))
    q, kv = (axis.reshape(-1) for axis in np.indices((num_blocks, num_blocks)))
    builder.add_ops(Ops.attends(np.zeros(len(q), np.int64), (0, 1), q, kv))
    plan = builder.build()
    rows = -(-length // 128)
    assert work(plan, plan.forward)[1].tiles.sum() >= rows * (rows + 1) // 2


def cluster(nodes: int, gpus: int) -> Cluster:
    return Cluster("c", nodes, gpus, 1, 1e15, 1.0, 0.0, 1e15, 1.0, 0.0, REAL)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_reached_by_equal_local_sequences(recompute: str) -> None:
    """One long sequence a rank, nothing to send but gradients over an endless network: nearly all of the bound."""
    model = Model("m", 8, 4096, 32, 32, 128, 11008, 32000, recompute=recompute)  # type: ignore[arg-type]
    cost = Cost(cluster(2, 4), model)
    builder = Builder(np.full(8, 32768), 8, 32)
    local(builder, np.arange(8), np.arange(8))
    plan = reverse(builder.build(), "keep")
    batch = Batch(plan.lengths, 0, 0)
    ratio = bound_seconds(batch, cost) / Simulated(cost).step(batch, (plan,)).seconds
    assert 0.97 < ratio <= 1


@given(costs(), batches(5000))
def test_more_work_needs_no_less_time(cost: Cost, batch: Batch) -> None:
    base = bound_seconds(batch, cost)
    assert base > 0
    longer = replace(batch, lengths=np.append(batch.lengths, 100))
    assert bound_seconds(longer, cost) > base
    assert bound_seconds(replace(batch, lengths=batch.lengths + 1), cost) >= base
    assert bound_seconds(batch, replace(cost, model=replace(cost.model, recompute="full"))) >= base * (1 - 1e-12)


def test_a_token_is_on_one_rank() -> None:
    """One token over 64 ranks takes as long as one token over one, but for the optimizer's share and attention."""
    model = Model("m", 8, 4096, 32, 32, 128, 11008, 32000)
    batch = Batch(np.array([1]), 0, 0)
    many, one = (Cost(cluster(nodes, gpus), model) for nodes, gpus in ((8, 8), (1, 1)))
    linear = 8 * 3 * float(one.linear_seconds(np.array([1]))[0])
    assert bound_seconds(batch, many) >= linear
    assert bound_seconds(batch, one) >= bound_seconds(batch, many)
