"""A layer with experts on several GPUs: by hand, against whole steps, and what more tokens on a rank cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import A100, H100, small
from zbench.cost.cost import Cost
from zbench.cost.expert_gathers import expert_collectives
from zbench.cost.job import cost_like, make_cost
from zbench.describe.batch import Batch
from zbench.describe.device import Device
from zbench.describe.expert_schedule import ExpertSchedule
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.simulator.attention import programs
from zbench.simulator.estimate.beside import projected, seconds_beside
from zbench.simulator.estimate.expert_layer import ExpertLayer, with_messages
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.nodewise.rivals import predicted_seconds
from zbench.systems.zeppelin.planner import Zeppelin


def job(nodes: int, gpus: int, experts_on: int, device: Device = A100, recompute: str = "none") -> Cost:
    """The job of a model with 16 experts, held together by so many GPUs."""
    one = small(nodes, gpus, device)
    model = replace(one.model, num_layers=8, sharding="zero2", num_experts=16, experts_per_token=2, ffn_hidden=2048)
    return make_cost(one.cluster, replace(model, recompute=recompute), pipelines=False, expert_gpus=experts_on)


def on_each(cost: Cost, lengths: np.ndarray) -> Plan:
    """A sequence on each rank, which attends to it by itself."""
    count = cost.cluster.num_ranks
    builder = Builder(lengths, count, cost.model.num_heads, cost.model.mask)
    local(builder, np.arange(count), np.arange(count))
    return reverse(builder.build(), "keep")


def routed(plan: Plan, cost: Cost) -> float:
    return seconds_beside(plan, programs(plan, cost), cost, 2, ExpertLayer.of(cost))


def test_tokens_with_all_experts_at_home_are_nothing_of_its_own() -> None:
    dense = small(2, 4)
    assert ExpertLayer.of(dense) is None
    assert ExpertLayer.of(job(2, 4, 1)) is None
    assert ExpertLayer.of(replace(job(2, 4, 2), tp=2)) is None  # one rank has them all


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_ranks_that_are_alike_wait_for_nothing_but_messages(recompute: str) -> None:
    """By hand: a layer is attention, all linear modules, and messages to experts and home, forward and backward, which
    run a forward more with full recomputation."""
    cost = job(1, 4, 4, recompute=recompute)
    plan, layer = on_each(cost, np.full(4, 4096)), ExpertLayer.of(cost)
    assert layer is not None
    one, again = layer.seconds(plan.tokens_per_rank, projected(cost.model)), cost.model.forwards_again
    attention = [float(part.busy.max()) for part in programs(plan, cost)]
    forwards, linear = 1 + again, float(cost.linear_seconds(plan.tokens_per_rank)[0])
    assert one.before[0] + one.after[0] + one.experts[0] == pytest.approx(linear, rel=1e-3)  # starts of kernels apart
    wanted = forwards * attention[0] + attention[1] + 2 * (forwards + 1) * float(one.out[0]) + float(one.again[0])
    wanted += (forwards + 2) * (one.before[0] + one.after[0] + one.experts[0])
    uncovered = expert_collectives(cost).uncovered / cost.layers
    assert routed(plan, cost) == pytest.approx(wanted + uncovered, rel=1e-6)


@given(st.integers(1, 12), st.integers(0, 7))
def test_a_layer_is_as_long_as_its_fullest_rank_makes_it(more: int, where: int) -> None:
    """More tokens on one rank delay all that hold experts with it, twice: in what it computes, and in what it sends."""
    cost = job(2, 4, 8)
    layer = ExpertLayer.of(cost)
    assert layer is not None
    even, lengths = np.full(8, 2048), np.full(8, 2048)
    lengths[where] += 128 * more
    one, other = (layer.seconds(each, projected(cost.model)) for each in (even, lengths))
    assert other.out[where] > one.out[where]
    assert np.ptp(other.experts) == 0
    assert routed(on_each(cost, lengths), cost) > routed(on_each(cost, even), cost)


@given(st.lists(st.integers(1, 9), min_size=8, max_size=8))
def test_groups_wait_for_their_own_ranks_alone(tiles: list[int]) -> None:
    cost = job(2, 4, 4)
    layer = ExpertLayer.of(cost)
    assert layer is not None
    tokens = 128 * np.array(tiles)
    one = layer.seconds(tokens, projected(cost.model))
    for group in (slice(0, 4), slice(4, 8)):
        alone = layer.seconds(np.tile(tokens[group], 2), projected(cost.model))
        assert (one.out[group] == alone.out[group]).all()
        assert one.experts[group] == pytest.approx(alone.experts[group])


def test_chunks_hide_matmuls_behind_messages() -> None:
    out, experts = np.array([4.0]), np.array([2.0])
    at_once, in_four = (with_messages(out, experts, ExpertSchedule("tutel", degree)) for degree in (1, 4))
    assert at_once == [6.0]
    assert in_four == [4.5]


@pytest.mark.parametrize("experts_on", [4, 16])
def test_it_tells_whole_steps(experts_on: int) -> None:
    """Plans of two systems, two batches each, on four nodes with a NIC a GPU: within 12 % of whole steps, where the
    estimate that has experts at home is up to a third off or more."""
    rng, near, far = np.random.default_rng(5), [], []
    for device in (A100, H100):
        narrow = job(4, 4, experts_on, device)
        cost = cost_like(narrow, replace(narrow.cluster, nics_per_node=4), narrow.model, False)
        for step in range(2):
            batch = Batch(np.exp(rng.uniform(np.log(256), np.log(32768), 12)).astype(np.int64), 0, step)
            for system in (Nodewise(cost, adopt_rivals=False), Zeppelin(cost)):
                (plan,) = system.plan(batch)
                played = Simulated(cost, expert_parallel=experts_on).step(batch, (plan,)).seconds
                near.append(played / predicted_seconds((plan,), routed(plan, cost), cost))
                home = seconds_beside(plan, programs(plan, cost), cost, 2)
                far.append(played / predicted_seconds((plan,), home, cost))
    assert np.abs(np.log(near)).max() < 0.12
    assert np.abs(np.log(far)).max() > 0.35
