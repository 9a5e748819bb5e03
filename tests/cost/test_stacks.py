"""Jobs with pipeline stages: planners' seconds and memory, against the closed form and Hydraulis' pipelines. Whole
steps with stages: tests/simulator/steps/test_stages.py."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.oracles import small
from tests.helpers.strategies import batches, costs
from tests.helpers.variants import NEEDS, SYSTEMS, Variant
from zbench.cost.bound import bound_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.memory.needs import moments_of_stages, pipeline_moments
from zbench.cost.memory.peak import peak_bytes, step_bytes
from zbench.cost.ranks_of_gpus import grouped, stacked
from zbench.describe.batch import Batch
from zbench.describe.model import KV, SHARDING
from zbench.interfaces.dealt import Dealt, dealt
from zbench.passes import reverse
from zbench.passes.reverse import Mode
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import Plan
from zbench.proof.verify import OutOfMemory, verify, verify_step
from zbench.simulated.executor import Simulated
from zbench.simulator.attention import programs
from zbench.simulator.estimate.layers import ClockState, Layers
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.bytescale.planner import ByteScale
from zbench.systems.ring import Ring


def job(nodes: int, gpus: int, pp: int, **model: object) -> Cost:
    """A stage of a cluster of nodes x gpus."""
    cost = small(nodes, gpus)
    return stacked(replace(cost, model=replace(cost.model, **{"sharding": "zero1", **model})), pp)


def without_network(cost: Cost) -> Cost:
    """Messages take no time, and the head next to none."""
    free = replace(cost.cluster, nic_bandwidth=1e30, nvlink_bandwidth=1e30, nic_latency=0.0, nvlink_latency=0.0)
    return replace(cost, cluster=free, model=replace(cost.model, vocab=1))


def laid(
    cost: Cost, micro: list[list[tuple[int, list[int]]]], backward: Mode = "carry"
) -> tuple[Batch, tuple[Plan, ...]]:
    """Micro-batches, each sequences as (length, ranks): a ring over them, or whole on one."""
    plans, every = [], []
    for one in micro:
        lengths = np.array([length for length, _ in one])
        builder = Builder(
            lengths,
            cost.cluster.num_ranks,
            cost.model.num_heads,
            sequences=np.arange(len(every), len(every) + len(one)),
        )
        every += lengths.tolist()
        for seq, (_, ranks) in enumerate(one):
            if len(ranks) > 1:
                ring(builder, np.array([seq]), np.array([0]), np.array([ranks]))
            else:
                local(builder, np.array([seq]), np.array(ranks))
        plans.append(reverse(builder.build(), backward))
    return Batch(np.array(every), 0, 0), tuple(plans)


def layers_end(cost: Cost, plans: tuple[Plan, ...]) -> float:
    """Seconds until all micro-batches are done, where gathers and reductions take none."""
    return StepEstimate(cost).seconds(plans) - cost.optimizer_seconds()


# -- what cannot be ---------------------------------------------------------------------------------
def test_without_stages_nothing_is_different() -> None:
    cost = small(2, 2)
    assert stacked(cost, 1) is cost
    assert cost.ranks_of_stages == cost.cluster.num_ranks
    assert cost.layers == cost.model.num_layers
    assert len(moments_of_stages(cost)) == 1


@pytest.mark.parametrize(
    ("nodes", "pp", "model", "told"),
    [
        (3, 2, {}, "parallel.pipeline_parallel is 2; it has to divide cluster.num_nodes=3, or be 3 times"),
        (1, 4, {}, "parallel.pipeline_parallel is 4; it has to divide cluster.gpus_per_node=2$"),
        (2, 4, {"num_layers": 6}, "parallel.pipeline_parallel is 4; it has to divide model.num_layers=6"),
        (8, 8, {}, "parallel.pipeline_parallel is 8; it has to divide model.num_layers=4"),
    ],
)
def test_stages_that_cannot_be_alike_are_refused(nodes: int, pp: int, model: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        job(nodes, 2, pp, **model)


# -- time -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("rings", "near"), [(False, 1e-4), (True, 1e-2)]
)  # of the head; ranks of a ring are not done at once
@pytest.mark.parametrize(("pp", "count"), [(2, 1), (2, 5), (4, 3), (4, 8)])
def test_equal_micro_batches_take_m_and_p_minus_1_of_a_stage(
    pp: int, count: int, rings: bool, near: float, recompute: str
) -> None:
    """(m + p - 1)(f + b), where messages take no time."""
    cost = without_network(job(4, 2, pp, recompute=recompute))
    ranks = list(range(cost.cluster.num_ranks))
    _, plans = laid(cost, [[(16_384, ranks)] if rings else [(4096, [rank]) for rank in ranks]] * count)
    forward, backward = programs(plans[0], cost)
    linear = cost.linear_seconds(plans[0].tokens_per_rank)
    state = ClockState.zero(cost.cluster)
    back = cost.backward_linear_seconds(plans[0].tokens_per_rank)
    assert (back > 2 * linear).all() == (recompute == "selective")
    for part, seconds in ((forward, linear), *([(forward, linear)] if recompute == "full" else []), (backward, back)):
        Layers(part, seconds, cost.layers).play(state)
    stage = state.ready.max()
    assert layers_end(cost, plans) == pytest.approx((count + pp - 1) * stage, rel=near)


def test_the_bubble_grows_with_stages_and_its_share_shrinks_with_micro_batches() -> None:
    """The bubble is the share of a whole step in which GPUs wait for other stages: with two and with four of them, of
    one to eight micro-batches that have the same tokens together."""
    bubbles = []
    for pp in (2, 4):
        cost = without_network(job(4, 2, pp))
        whole = list(range(cost.cluster.num_ranks))
        shares = []
        for count in (1, 2, 4, 8):
            step = Simulated(cost).step(*laid(cost, [[(32_768 // count, whole)]] * count))
            shares.append(np.mean(step.seconds_for["waiting_stages"]) / step.seconds)
        assert shares == sorted(shares, reverse=True)
        bubbles.append(shares)
    assert all(few < many for few, many in zip(*bubbles, strict=True))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_whole_sequences_take_as_long_as_in_pipelines(recompute: str) -> None:
    """Pipelines (zbench.simulator.estimate.pipelined) have accounts of their own; here four nodes of one GPU in a row
    take as long in both, where messages take no time."""
    cost = small(4, 1)
    cost = replace(cost, model=replace(cost.model, sharding="zero1", recompute=recompute))
    stage = stacked(cost, 4)
    lengths = [900, 4000, 30, 2500, 2500, 7000]
    _, plans = laid(stage, [[(length, [0])] for length in lengths])
    _, alone = laid(cost, [[(length, [0])] for length in lengths])
    of = Pipelines(np.array([0]), np.array([1]), np.array([4]))
    side_by_side = tuple(plan.with_(pipelines=of) for plan in alone)
    one, other = layers_end(without_network(stage), plans), layers_end(without_network(cost), side_by_side)
    assert one == pytest.approx(other, rel=1e-6)
    (mine,), theirs = moments_of_stages(stage), pipeline_moments(cost, 1, 4)
    both = peak_bytes(plans, stage) - mine.state, peak_bytes(side_by_side, cost) - theirs.state
    assert both[0] == pytest.approx(both[1], abs=2)


@st.composite
def jobs(draw: st.DrawFn, tokens: int = 6000) -> tuple[Cost, Batch, ByteScale]:
    """Any stage, whole nodes or a part of one, any batch, and a system whose plans have rings and packs of every
    kind."""
    pp, cost = draw(st.integers(2, 4)), draw(costs(2, 4))
    sharding = draw(st.sampled_from(SHARDING))
    model = replace(cost.model, sharding=sharding, num_layers=pp * draw(st.integers(1, 3)))
    cluster = replace(cost.cluster, num_nodes=pp * cost.cluster.num_nodes)
    if draw(st.booleans()):
        nodes, gpus = draw(st.integers(1, 2)), cost.cluster.gpus_per_node
        pp, cluster = pp * nodes, replace(cost.cluster, num_nodes=nodes, gpus_per_node=pp * gpus, domains=())
        model = replace(model, num_layers=model.num_layers * nodes)
    cost = stacked(replace(cost, cluster=cluster, model=model), pp)
    return (
        cost,
        draw(batches(tokens, 16)),
        ByteScale(cost, balance_micro_batches=draw(st.sampled_from((True, False, "dp", "pp")))),
    )


@settings(max_examples=25)
@given(jobs())
def test_no_step_is_faster_than_the_bound(case: tuple[Cost, Batch, ByteScale]) -> None:
    cost, batch, system = case
    plans = system.plan(batch)
    verify_step(batch, plans)
    assert bound_seconds(batch, cost) <= StepEstimate(cost).seconds(plans) * (1 + 1e-9)


def test_the_bound_is_reached_by_many_equal_micro_batches() -> None:
    cost = without_network(job(4, 2, 4))
    batch, plans = laid(cost, [[(8192, [rank]) for rank in range(2)]] * 64)
    seconds = StepEstimate(cost).seconds(plans)
    assert 0.95 * 64 / 67 < bound_seconds(batch, cost) / seconds <= 64 / 67 * (1 + 1e-3)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize(("pp", "count"), [(2, 1), (2, 5), (4, 8)])
def test_every_turn_pays_for_what_it_does_not_hide(pp: int, count: int, sharding: str) -> None:
    """Of equal micro-batches on a slow network each takes what its stage's parameters and gradients do; with ZeRO-2
    parameters come once, before the first forward."""
    cost = job(4, 2, pp, sharding=sharding, vocab=1)
    slow = replace(cost.cluster, nic_bandwidth=1e30, nic_latency=0.0, nvlink_bandwidth=1e9)
    cost = replace(cost, cluster=slow)
    _, plans = laid(cost, [[(64, [rank]) for rank in range(cost.cluster.num_ranks)]] * count)
    of, state = Collectives.of(cost), ClockState.zero(cost.cluster)
    forward, backward = programs(plans[0], cost)
    Layers(forward, cost.linear_seconds(plans[0].tokens_per_rank), cost.layers).play(state)
    there = float(state.ready.max())
    Layers(backward, cost.backward_linear_seconds(plans[0].tokens_per_rank), cost.layers).play(state)
    back = float(state.ready.max()) - there
    gathers = of.forward(there, 0.0)
    turns_of_all = there + back + of.backward(back, 0.0) + (gathers if sharding == "zero3" else 0.0)
    assert gathers > there
    assert of.backward(back, 0.0) > back
    once = gathers if sharding == "zero2" else 0.0
    assert layers_end(cost, plans) == pytest.approx(once + (count + pp - 1) * turns_of_all, rel=1e-3)


# -- memory -----------------------------------------------------------------------------------------
def test_a_stage_holds_as_many_micro_batches_as_are_under_way() -> None:
    cost = job(4, 1, 4)
    batch, plans = laid(cost, [[(length, [0])] for length in (1000, 5000, 2000, 3000, 100, 100)])
    (of,) = moments_of_stages(cost)
    working, loss = max(line.token for line in of.at_work), max(line.token for line in of.at_loss)
    most = [5000 + 2000 + 3000 + 1000, 5000 + 2000 + 3000, 5000 + 2000, 5000]
    expected = [of.state + of.kept * tokens + working * 5000 for tokens in most]
    expected[3] += (loss - working) * 5000
    assert loss > working
    assert peak_bytes(plans, cost) == pytest.approx(expected, abs=2)
    verify_step(batch, plans, cost)
    tight = replace(
        cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=expected[0] - 9))
    )
    with pytest.raises(OutOfMemory):
        verify_step(batch, plans, tight)


def test_micro_batches_that_fit_one_by_one_may_not_fit_together() -> None:
    cost = job(4, 1, 4)
    batch, plans = laid(cost, [[(3000, [0])] for _ in range(6)])
    room = int(peak_bytes(plans, cost).max()) - 1
    tight = replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=room)))
    for plan in plans:
        verify(plan, tight)
    with pytest.raises(OutOfMemory, match=r"^stack 0 needs [\d.]+ GiB on one of its GPUs, "):
        verify_step(batch, plans, tight)


def test_received_kv_is_held_for_every_micro_batch_under_way() -> None:
    cost = job(2, 2, 2)
    more = []  # of a second micro-batch, [stages, ranks]
    for mode in ("regather", "keep"):
        _, (plan,) = laid(cost, [[(4000, [0, 1])]], mode)
        more.append((step_bytes(plan, cost) - peak_bytes((plan,), cost)).reshape(2, 2))
    received = cost.layers * 2000 * cost.model.message_bytes_per_token(KV, 0, cost.model.num_heads)
    assert more[1][0] - more[0][0] == pytest.approx(received, abs=2)
    assert not (more[0][1] | more[1][1]).any()  # the last stage has one at a time


@settings(max_examples=20)
@given(jobs(), st.integers(1, 6))
def test_what_planners_ask_of_a_plan_is_a_step_of_its_like(case: tuple[Cost, Batch, ByteScale], count: int) -> None:
    """As soon as there are as many micro-batches as stages; fewer need no more."""
    cost, batch, system = case
    plan = system.plan(batch)[0]
    found = peak_bytes((plan,) * count, cost)
    if count >= cost.pp:
        assert (found == step_bytes(plan, cost)).all()
    assert (found <= step_bytes(plan, cost)).all()
    assert (found >= peak_bytes((plan,), cost)).all()


# -- systems ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("nodes", "gpus", "pp"), [(4, 4, 2), (1, 16, 2), (2, 8, 16)])
@pytest.mark.parametrize("which", [one for one in SYSTEMS if one.path.stem not in NEEDS], ids=str)
def test_every_system_plans_a_stage(which: Variant, nodes: int, gpus: int, pp: int) -> None:
    """Of two nodes, of half a node, of one GPU; in parts where it does not choose a number of micro-batches itself; its
    plans are proven as any."""
    cost = job(nodes, gpus, pp, num_layers=16, micro_batches=3)
    batch = Batch(np.array([9000, 4000, 4000, 2500, 700, 700, 300, 20, 1]), 0, 0)
    system = which.make(cost)
    plans = (system if getattr(system, "plans_stages", False) else Dealt(system, 3)).plan(batch)
    verify_step(batch, plans, cost)
    assert len(plans) >= 3
    assert StepEstimate(cost).seconds(plans) >= bound_seconds(batch, cost)
    assert len(peak_bytes(plans, cost)) == 16


def test_tensor_parallel_groups_have_stages_too() -> None:
    plain = small(4, 4)
    plain = replace(plain, model=replace(plain.model, sharding="zero1"))
    cost = stacked(grouped(plain, 2), 2)
    assert (cost.cluster.num_ranks, cost.ranks_of_stages) == (4, 8)
    batch = Batch(np.array([9000, 4000, 700, 300]), 0, 0)
    plans = Dealt(Ring(cost), 2).plan(batch)
    verify_step(batch, plans, cost)
    assert StepEstimate(cost).seconds(plans) >= bound_seconds(batch, cost)


@given(batches(3000, 12), st.integers(1, 6))
def test_parts_hold_every_sequence_once(batch: Batch, count: int) -> None:
    cost = small(1, 2)
    documents = 100 + np.arange(len(batch.lengths))
    plans = Dealt(Ring(cost), count).plan(replace(batch, documents=documents))
    assert len(plans) == min(count, len(batch.lengths))
    verify_step(batch, plans)
    sizes = [int(batch.lengths[part].sum()) for part in dealt(np.arange(len(batch.lengths)), batch.lengths, len(plans))]
    assert sorted(sizes) == sorted(int(plan.lengths.sum()) for plan in plans)
