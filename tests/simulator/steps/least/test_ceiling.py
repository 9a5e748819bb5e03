"""Bound and ceiling of whole steps: below what every system's steps take, and reached where nothing is lost."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import REAL, batches, costs, masks, plans, shaped
from zbench.cost.bound import bound_seconds
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.stage import in_whole_steps
from zbench.describe.batch import Batch
from zbench.describe.cluster import PORT_ORDERS, Cluster
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.expert_schedule import DROPLESS, Experts
from zbench.describe.model import RECOMPUTE, SHARDING, Model
from zbench.describe.overlap import ALL, BACKWARD, END, LAYER, USUAL, StepOverlap
from zbench.interfaces.dealt import Dealt
from zbench.interfaces.result import StepResult, kept_rows
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.least.bound import step_bound_seconds
from zbench.simulator.steps.least.ceiling import step_ceiling_seconds
from zbench.simulator.steps.least.work import step_work
from zbench.simulator.steps.play import play_some_layers
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

SYSTEMS = (
    AllGather, ByteScale, DpBalanced, FlexSP, HybridDP, Hydraulis, LocalPacking, Mesh, Nodewise, Ring, Ulysses, WLBLLM,
    Zeppelin,
)  # fmt: skip
ROUNDING = 1 + 1e-9


def in_order(result: StepResult) -> None:
    """Holds a step to its bound and its ceiling."""
    assert result.bound_seconds <= result.seconds * ROUNDING
    if result.ceiling_seconds is not None:
        assert result.bound_seconds <= result.ceiling_seconds <= result.seconds * ROUNDING


@st.composite
def jobs(draw: st.DrawFn) -> Simulated:
    """Executors of jobs with every sharding and overlap, with and without tensor parallelism and stages; networks from
    so slow that nothing else counts."""
    cost = draw(costs(nodes=3, gpus=4))
    kind = draw(st.sampled_from(("gpus", "gpus", "experts", "groups", "stages", "both")))
    sharding = draw(st.sampled_from((*SHARDING, "nested")))
    layers = draw(st.sampled_from((2, 4, 5)))
    model = replace(
        cost.model,
        num_layers=layers,
        sharding="zero3" if sharding == "nested" else sharding,
        loss_chunk_tokens=draw(st.sampled_from(("whole", "auto", 512))),
    )
    cluster = replace(
        cost.cluster,
        nic_bandwidth=draw(st.sampled_from((1e5, 1e7, 1e9, 1e11))),
        port_order=draw(st.sampled_from(PORT_ORDERS)),
        device=replace(draw(shaped(cost.cluster.device)), compute_slowdown=draw(st.sampled_from((1.0, 1.0, 1.5)))),
    )
    if kind != "experts":
        model = replace(model, num_experts=1, experts_per_token=1, shared_experts=0, gate="softmax")
    if kind in ("groups", "both"):
        cluster = replace(cluster, domains=()).part(cluster.num_nodes, 4, draw(st.sampled_from((1, 2, 4))))
        heads = draw(st.sampled_from((2, 4)))
        model = replace(model, num_heads=4, num_kv_heads=heads, tensor_parallel=draw(st.sampled_from((1, 2, heads))))
    if kind in ("stages", "both"):
        nodes = 2 if cluster.gpus_per_node % (2 * model.tensor_parallel) else draw(st.sampled_from((1, 2)))
        cluster = cluster.part(nodes, cluster.gpus_per_node, cluster.nics_per_node)
        model = replace(model, num_layers=4, pipeline_parallel=2, tied_embeddings=False)
    if sharding == "nested":
        ranks = cluster.num_ranks // model.tensor_parallel // model.pipeline_parallel
        of_node = min(ranks, cluster.gpus_per_node // model.tensor_parallel)
        model = replace(model, sharding=draw(nested_degrees(ranks, of_node)))
    if model.recompute != "none" and model.num_experts == 1:
        some = ("all", 1, (2, 1)) if model.pipeline_parallel == 2 else ("all", 1)
        model = replace(model, recompute_layers=draw(st.sampled_from(some)))
    return Simulated(make_cost(cluster, model), **draw(overlaps(model)))


@st.composite
def nested_degrees(draw: st.DrawFn, ranks: int, node: int) -> ShardDegrees | str:
    """Degrees that lie in one another, with hops and bits where they can be."""
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    found: list[int] = []
    for _ in range(4):
        found.append(draw(st.sampled_from([one for one in sizes if one % (found[-1] if found else 1) == 0])))
    secondary, weights, gradients, optimizer = found
    hop = node if gradients != 1 and gradients % max(node, 1) == 0 and draw(st.booleans()) else WORLD
    bits = TransferBits(
        8 if weights > 1 else None,
        8 if secondary > 1 else None,
        4 if gradients > 1 else None,
        8 if optimizer > weights else None,
        draw(st.sampled_from((16, 4096))),
    )
    few = draw(st.booleans())
    degrees = ShardDegrees(weights, secondary, gradients, optimizer, WORLD, hop, bits if few else TransferBits())
    return degrees.of_ranks(ranks, node)


@st.composite
def overlaps(draw: st.DrawFn, model: Model) -> dict[str, Any]:
    """Windows and buckets of every kind."""
    window: Any = draw(st.sampled_from((0, 1, 2, BACKWARD)))
    if model.sharding in ("zero1", "zero2") and draw(st.booleans()):
        window = ALL
    layer = 4 * 16 * 1000  # more than a layer has
    bucket = draw(st.sampled_from((LAYER, LAYER, END, layer, 3 * layer)))
    return {"window": window if model.sharding != "none" else 1, "gradient_bucket": bucket}


def stepped(executor: Simulated, system: type, batch: Batch, count: int = 2) -> StepResult:
    """Plays a step of what a system plans, in several micro-batches where there are stages."""
    cost = executor.cost
    planner = system(cost)
    whole = planner if cost.pp == 1 or getattr(planner, "plans_stages", False) else Dealt(planner, count)
    return executor.step(batch, whole.plan(batch))


@settings(max_examples=60)
@given(jobs(), st.sampled_from(SYSTEMS), st.data())
def test_no_system_s_step_is_faster(executor: Simulated, system: type, data: st.DataObject) -> None:
    """No step is faster than its ceiling, whatever the lengths, the GPUs and the strategy."""
    batch = data.draw(batches(data.draw(st.sampled_from((200, 6000)))))
    usual = StepOverlap(executor.window, executor.gradient_bucket) == USUAL
    executor = replace(executor, cost=replace(executor.cost, even_slices=True))
    if not (usual and in_whole_steps(executor.cost)):  # as in a run, planners have no pipelines of their own
        assume(system is not Hydraulis)
        executor = replace(executor, cost=replace(executor.cost, pipelines=False))
    in_order(stepped(executor, system, batch))


@settings(max_examples=40)
@given(costs(nodes=2, gpus=4, mask=masks()), st.data(), st.integers(1, 3))
def test_no_plan_is_faster(cost: Cost, data: st.DataObject, count: int) -> None:
    """Of any pattern, rewritten in any way; a plan over and over stands for a batch of its sequences as often."""
    model = replace(cost.model, num_layers=3)
    bandwidth, device = data.draw(st.sampled_from((1e6, 1e9))), data.draw(shaped(cost.cluster.device))
    cost = replace(cost, model=model, cluster=replace(cost.cluster, nic_bandwidth=bandwidth, device=device))
    plan = data.draw(plans(cost, 3000))
    batch = Batch(np.tile(plan.lengths, count), 0, 0)
    in_order(Simulated(cost, **data.draw(overlaps(model))).step(batch, (plan,) * count))


# -- layers that are not played ------------------------------------------------------------------------
def long_job(**fields: Any) -> tuple[Simulated, Batch]:
    """32 layers on NICs that carry all the time."""
    model = Model("m", 32, 256, 8, 8, 32, 1024, 1024, sharding="zero3", **fields)
    one = replace(cluster(2, 4), nic_bandwidth=2e9, nvlink_bandwidth=2e11, device=REAL, port_order="longest_waiting")
    return Simulated(Cost(one, model)), Batch(np.full(16, 2048), 0, 0)


def test_layers_that_are_left_out_make_no_step_too_short() -> None:
    """Where reductions wait behind gathers and pile up, what twelve layers come to is no step."""
    executor, batch = long_job()
    plan = LocalPacking(executor.cost).plan(batch)
    step = executor.built(batch, plan)
    some, every = (play_some_layers(step, plan, executor.cost, count).seconds for count in (12, 32))
    result = executor.step(batch, plan)
    assert result.ceiling_seconds is not None
    assert some < result.ceiling_seconds < result.seconds == every


# -- how near they are ---------------------------------------------------------------------------------
def cluster(nodes: int, gpus: int) -> Cluster:
    return Cluster("c", nodes, gpus, 1, 1e15, 1.0, 0.0, 1e15, 1.0, 0.0, REAL)


def equal(cost: Cost) -> tuple[Batch, tuple[Plan, ...]]:
    """A sequence on each rank."""
    ranks = cost.cluster.num_ranks
    builder = Builder(np.full(ranks, 32768), ranks, cost.model.num_heads)
    local(builder, np.arange(ranks), np.arange(ranks))
    plan = reverse(builder.build(), "keep")
    return Batch(plan.lengths, 0, 0), (plan,)


def model_of(**fields: Any) -> Model:
    return Model("m", 8, 4096, 32, 32, 128, 11008, 32000, **fields)


LEVELS = [
    ShardDegrees(2, 2, 4, WORLD, 4),
    ShardDegrees(4, 4, 4, 4),
    ShardDegrees(WORLD, 4, WORLD, WORLD, hop=4),
    ShardDegrees(WORLD, 4, WORLD, WORLD, hop=4, bits=TransferBits(8, 8, 4)),
    ShardDegrees(2, 2, 4, WORLD, 4, bits=TransferBits(gradients=4, updates=8)),
]


@pytest.mark.parametrize("degrees", LEVELS, ids=str)
@pytest.mark.parametrize("nic", [1e8, 1e10, 1e14])
def test_degrees_come_near_to_the_ceiling(degrees: ShardDegrees, nic: float) -> None:
    """Two nodes of four, equal sequences; where reductions of a node and between nodes take turns, links wait."""
    cost = make_cost(replace(cluster(2, 4), nic_bandwidth=nic), model_of(sharding=degrees))
    result = Simulated(cost).step(*equal(cost))
    assert result.ceiling_seconds is not None
    assert 0.8 < result.ceiling_seconds / result.seconds <= ROUNDING


CHOICES = [
    ({"sharding": sharding}, overlap)
    for sharding in SHARDING
    for overlap in ({}, {"gradient_bucket": END}, {"gradient_bucket": 500_000_000})
] + [({"sharding": "zero1"}, {"window": ALL}), ({"sharding": "zero1"}, {"window": ALL, "gradient_bucket": END})]


@pytest.mark.parametrize(("strategy", "overlap"), CHOICES, ids=str)
@pytest.mark.parametrize("nic", [1e8, 1e10, 1e14])
def test_the_ceiling_is_reached(strategy: dict[str, Any], overlap: dict[str, Any], nic: float) -> None:
    """By equal sequences that send nothing, whether NICs or computing are what a step waits for. Of four layers the
    beginning and the end are more than of many."""
    cost = Cost(replace(cluster(2, 2), nic_bandwidth=nic), replace(model_of(**strategy), num_layers=4))
    result = Simulated(cost, **overlap).step(*equal(cost))
    assert result.ceiling_seconds is not None
    assert 0.95 < result.ceiling_seconds / result.seconds <= ROUNDING
    assert nic > 1e9 or result.bound_seconds < 0.6 * result.seconds


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_the_bound_is_reached_over_an_endless_network(recompute: str) -> None:
    """Planners' estimate has a whole forward run again; a step makes no more of it than something reads."""
    cost = Cost(cluster(2, 4), model_of(recompute=recompute))
    batch, plan = equal(cost)
    result = Simulated(cost).step(batch, plan)
    assert 0.99 < result.bound_seconds / result.seconds <= 1
    assert (bound_seconds(batch, cost) > result.seconds) == (recompute == "full")


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("some", [1, 3])
def test_the_ceiling_counts_what_some_layers_make_again(recompute: str, some: int) -> None:
    cost = Cost(cluster(2, 2), model_of(recompute=recompute, recompute_layers=some))
    result = Simulated(cost).step(*equal(cost))
    none = Cost(cost.cluster, cost.model.keeping_all)
    alone = Simulated(none).step(*equal(none))
    assert result.ceiling_seconds is not None
    assert alone.ceiling_seconds is not None
    assert 0.95 < result.ceiling_seconds / result.seconds <= ROUNDING
    more = result.seconds - alone.seconds
    assert result.ceiling_seconds - alone.ceiling_seconds == pytest.approx(more, rel=0.02)


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_exchanges_of_a_group_that_nothing_is_beside_are_in_the_ceiling(recompute: str) -> None:
    narrow = replace(cluster(2, 4), nvlink_bandwidth=2e10)
    cost = make_cost(narrow, model_of(tensor_parallel=4, recompute=recompute, sharding="zero1"))
    result = Simulated(cost).step(*equal(cost))
    assert result.ceiling_seconds is not None
    assert 0.75 < result.ceiling_seconds / result.seconds <= ROUNDING
    assert result.ceiling_seconds > 1.3 * result.bound_seconds


# -- what they are of ------------------------------------------------------------------------------------
def test_systems_that_choose_degrees_have_the_bound_of_all_others() -> None:
    batch = Batch(np.array([5000, 1800, 900, 400]), 0, 0)
    found = set()
    for degrees in ({}, {"tensor_parallel": 2}, {"tensor_parallel": 4}, {"pipeline_parallel": 2}):
        found.add(Simulated(make_cost(cluster(2, 4), model_of(sharding="zero1", **degrees))).bound_seconds(batch))
    assert len(found) == 1


def test_more_work_needs_no_less_time() -> None:
    cost = Cost(replace(cluster(2, 4), nic_bandwidth=1e10), model_of())
    of = Simulated(cost).steps.parameters
    few, more = (Batch(np.full(count, 2000), 0, 0) for count in (8, 9))
    for least in (step_bound_seconds(few, cost), step_ceiling_seconds(few, cost, of)):
        assert least is not None
        assert least > 0
    assert step_bound_seconds(more, cost) > step_bound_seconds(few, cost)
    part, full = (Cost(cost.cluster, model_of(recompute=level)) for level in ("selective", "full"))
    assert step_bound_seconds(few, cost) < step_bound_seconds(few, part) < step_bound_seconds(few, full)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("degree", [1, 4])
@pytest.mark.parametrize("of", [{}, {"padded": True}, {"padded": True, "routing": "token_choice"},
                                {"routing": "token_choice"}, {"padded": True, "routing": "expert_choice"}])  # fmt: skip
def test_they_are_of_the_rows_that_experts_compute(recompute: str, degree: int, of: dict[str, Any]) -> None:
    cost = Cost(replace(cluster(2, 4), nic_bandwidth=1e12), model_of(num_experts=8, experts_per_token=2))
    cost = replace(cost, model=replace(cost.model, recompute=recompute, gate="softmax_all"))
    batch = Batch(np.full(32, 4096), 0, 0)
    plan = LocalPacking(cost).plan(batch)
    kept = {}
    for capacity in (DROPLESS, 1.0, 0.01):
        if capacity == DROPLESS and of.get("padded"):
            continue
        how = Experts(capacity=capacity, **of)
        result = Simulated(cost, expert_parallel=degree, experts=how).step(batch, plan)
        in_order(result)
        assert (result.ceiling_seconds is None) == (degree > 1)
        kept[capacity] = result
    most, least = kept[1.0], kept[0.01]
    assert kept_rows(least.expert_rows) < 0.02 < 0.5 < kept_rows(most.expert_rows)
    assert least.bound_seconds < 0.8 * most.bound_seconds
    usual = kept.get(DROPLESS)
    assert usual is None or most.bound_seconds < usual.bound_seconds == step_bound_seconds(batch, cost)


def test_half_of_the_rows_are_those_of_half_of_the_experts() -> None:
    """But for what is done once for all choices of a token on a GPU, which half of the choices have no more than half
    of."""
    cost = Cost(cluster(2, 4), model_of(num_experts=8, experts_per_token=4, recompute="full"))
    half = replace(cost, model=replace(cost.model, experts_per_token=2))
    for way in ("forward", "backward"):
        found, wanted = (getattr(one, way).token for one in (step_work(cost, 1).of_rows(0.5), step_work(half, 1)))
        assert 0.98 * wanted < found < wanted
    assert step_work(cost, 1).of_rows(1.0) is step_work(cost, 1)


def test_there_is_none_where_nothing_is_proven() -> None:
    batch = Batch(np.array([5000, 1800, 900, 400]), 0, 0)
    experts = Cost(cluster(2, 4), model_of(num_experts=8, experts_per_token=2))
    plan = LocalPacking(experts).plan(batch)
    assert Simulated(experts).step(batch, plan).ceiling_seconds is not None
    assert Simulated(experts, expert_parallel=4).step(batch, plan).ceiling_seconds is None
    pipelines = Cost(cluster(2, 4), model_of(sharding="zero1"))
    planned = Hydraulis(pipelines, tp_pp_pairs=[[2, 2], [1, 1]]).plan(batch)
    assert planned[0].pipelines is not None
    assert Simulated(pipelines).step(batch, planned).ceiling_seconds is None


def test_the_bound_counts_each_kind_of_layers() -> None:
    """As if every kind had layers of its own: of 5 layers with experts, 5 dense ones, and 2 and 3 of them."""
    experts = Model("m", 5, 64, 4, 2, 16, 32, 256, num_experts=8, experts_per_token=2, shared_experts=1)
    dense = Model("m", 5, 64, 4, 2, 16, 400, 256)
    mixed, batch = replace(experts, dense_layers=2, dense_ffn_hidden=400), Batch(np.array([700, 41]), 0, 0)
    cluster = Cluster("test", 1, 2, 2, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, REAL)
    costs_of = [make_cost(cluster, one) for one in (mixed, dense, experts)]
    bound = [step_bound_seconds(batch, one) for one in costs_of]
    assert 5 * bound[0] == pytest.approx(2 * bound[1] + 3 * bound[2], rel=1e-12)
    assert step_ceiling_seconds(batch, costs_of[0], Simulated(costs_of[0]).steps.parameters) is None
