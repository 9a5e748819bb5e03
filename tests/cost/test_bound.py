"""Bound and ceiling: below every plan's time, reached where nothing is lost, and not fooled by cutting."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.strategies import REAL, batches, cases, costs, masks, shaped
from zbench.cost.bound import bound_seconds, ceiling_seconds, least_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.ranks_of_gpus import grouped, stacked
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import RECOMPUTE, SHARDING, Model
from zbench.interfaces.dealt import Dealt
from zbench.passes import reverse
from zbench.plans.area import work
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ulysses_ring
from zbench.plans.plan import Ops, Plan
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.allgather import AllGather
from zbench.systems.bytescale.planner import ByteScale
from zbench.systems.dp_balanced import DpBalanced
from zbench.systems.flexsp.planner import FlexSP
from zbench.systems.hybrid_dp import HybridDP
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.local_packing import LocalPacking
from zbench.systems.mesh import Mesh
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses
from zbench.systems.wlb_llm.planner import WLBLLM
from zbench.systems.zeppelin.planner import Zeppelin


@examples(50)
@given(cases(nodes=2, gpus=6, most=6000, mask=masks()), st.data())
def test_no_plan_is_faster(case: tuple[Cost, Plan], data: st.DataObject) -> None:
    """Whether or not matmuls have the rate of their shape."""
    cost, plan = case
    cost = replace(cost, cluster=replace(cost.cluster, device=data.draw(shaped(cost.cluster.device))))
    batch = Batch(plan.lengths, 0, 0)
    ceiling = ceiling_seconds(batch, cost, Collectives.of(cost))
    assert bound_seconds(batch, cost) <= ceiling * (1 + 1e-9)
    assert ceiling <= StepEstimate(cost).seconds((plan,)) * (1 + 1e-9)


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


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_reached_by_equal_local_sequences(recompute: str) -> None:
    """One long sequence a rank, nothing to send but gradients over an endless network: nearly all of the bound."""
    model = Model("m", 8, 4096, 32, 32, 128, 11008, 32000, recompute=recompute)  # type: ignore[arg-type]
    cost = Cost(cluster(2, 4), model)
    builder = Builder(np.full(8, 32768), 8, 32)
    local(builder, np.arange(8), np.arange(8))
    plan = reverse(builder.build(), "keep")
    batch = Batch(plan.lengths, 0, 0)
    ratio = bound_seconds(batch, cost) / StepEstimate(cost).seconds((plan,))
    assert 0.97 < ratio <= 1


@given(costs(), batches(5000))
def test_more_work_needs_no_less_time(cost: Cost, batch: Batch) -> None:
    base = bound_seconds(batch, cost)
    assert base > 0
    longer = replace(batch, lengths=np.append(batch.lengths, 100))
    assert bound_seconds(longer, cost) > base
    assert bound_seconds(replace(batch, lengths=batch.lengths + 1), cost) >= base
    levels = [bound_seconds(batch, replace(cost, model=replace(cost.model, recompute=one))) for one in RECOMPUTE]
    assert levels[0] < levels[1] == levels[2] < levels[3]


def test_a_token_is_on_one_rank() -> None:
    """One token over 64 ranks takes as long as one token over one, but for the optimizer's share and attention."""
    model = Model("m", 8, 4096, 32, 32, 128, 11008, 32000)
    batch = Batch(np.array([1]), 0, 0)
    many, one = (Cost(cluster(nodes, gpus), model) for nodes, gpus in ((8, 8), (1, 1)))
    linear = 8 * 3 * float(one.linear_seconds(np.array([1]))[0])
    assert bound_seconds(batch, many) >= linear
    assert bound_seconds(batch, one) >= bound_seconds(batch, many)


# -- the ceiling ------------------------------------------------------------------------------------
SYSTEMS = (
    Ring,
    AllGather,
    Ulysses,
    FlexSP,
    Zeppelin,
    Nodewise,
    Hydraulis,
    ByteScale,
    Mesh,
    HybridDP,
    LocalPacking,
    WLBLLM,
    DpBalanced,
)


@st.composite
def jobs(draw: st.DrawFn) -> Cost:
    """Ranks that are GPUs or groups of them, with and without stages."""
    cost = draw(costs(nodes=3, gpus=4))
    model = replace(cost.model, num_layers=4)
    slow = replace(cost.cluster, nic_bandwidth=draw(st.sampled_from((1e6, 1e8, 1e10))))
    cost = replace(cost, model=model, cluster=slow)
    kind = draw(st.sampled_from(("ranks", "ranks", "groups", "stages")))
    if kind == "groups" and not cost.cluster.domains:
        cost = replace(cost, cluster=cost.cluster.part(cost.cluster.num_nodes, 4, draw(st.sampled_from((1, 2, 4)))))
        model = replace(cost.model, num_heads=4, num_kv_heads=draw(st.sampled_from((2, 4))))
        return grouped(replace(cost, model=model), 2)
    if kind == "stages":
        sharding = draw(st.sampled_from(("none", "zero1")))
        cluster = cost.cluster.part(2, cost.cluster.gpus_per_node, 1)
        return stacked(replace(cost, cluster=cluster, model=replace(cost.model, sharding=sharding)), 2)
    return cost


@examples(50)
@given(jobs(), st.sampled_from(SYSTEMS), st.data())
def test_no_system_is_faster_than_the_ceiling(cost: Cost, system: type, data: st.DataObject) -> None:
    """Of any lengths, on any ranks; with a memory that at times makes several micro-batches of a batch."""
    batch = data.draw(batches(data.draw(st.sampled_from((200, 6000)))))
    planner = system(cost)
    whole = planner if cost.pp == 1 or getattr(planner, "plans_stages", False) else Dealt(planner, 2)
    plans = whole.plan(batch)
    bound, ceiling = bound_seconds(batch, cost), ceiling_seconds(batch, cost, Collectives.of(cost))
    assert bound <= ceiling * (1 + 1e-9)
    least = ceiling if plans[0].pipelines is None else bound  # pipelines keep their parameters for the step
    assert least <= StepEstimate(cost).seconds(plans) * (1 + 1e-9)


@examples(25)
@given(cases(nodes=2, gpus=4, most=3000), st.integers(1, 4))
def test_more_micro_batches_are_no_way_under_it(case: tuple[Cost, Plan], count: int) -> None:
    """The same plan over and over stands for a batch of as many copies of its sequences."""
    cost, plan = case
    batch = Batch(np.tile(plan.lengths, count), 0, 0)
    ceiling = ceiling_seconds(batch, cost, Collectives.of(cost))
    assert ceiling <= StepEstimate(cost).seconds((plan,) * count) * (1 + 1e-9)


@pytest.mark.parametrize("sharding", SHARDING)
@pytest.mark.parametrize("nic", [1e8, 1e10, 1e14])
def test_the_ceiling_is_reached_by_equal_local_sequences(sharding: str, nic: float) -> None:
    """Whether NICs, computing, or one of them forward and the other backward is what a step waits for."""
    model = Model("m", 8, 4096, 32, 32, 128, 11008, 32000, sharding=sharding)  # type: ignore[arg-type]
    cost = Cost(replace(cluster(2, 4), nic_bandwidth=nic), model)
    builder = Builder(np.full(8, 32768), 8, 32)
    local(builder, np.arange(8), np.arange(8))
    plan = reverse(builder.build(), "keep")
    batch, seconds = Batch(plan.lengths, 0, 0), StepEstimate(cost).seconds((plan,))
    assert 0.97 < ceiling_seconds(batch, cost, Collectives.of(cost)) / seconds <= 1
    assert nic > 1e9 or bound_seconds(batch, cost) < 0.6 * seconds
