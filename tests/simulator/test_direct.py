"""Lists without contention, played in plan order, against the event loop: equal to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import REAL, cases
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import KV, Model
from zbench.passes import reverse, route
from zbench.plans.build import Builder
from zbench.plans.dataflow import Edges, edges
from zbench.plans.patterns import local, ring, ulysses_ring
from zbench.plans.plan import Ops, Plan
from zbench.simulator.attention import playable, prepare
from zbench.simulator.clock import Free
from zbench.simulator.direct import Direct, by_consumer, direct, is_direct
from zbench.simulator.estimate.carried import carried_bytes
from zbench.simulator.estimate.layers import ClockState, Layers


def state(cost: Cost) -> ClockState:
    """Ranks, queues and links, channel by channel, that are free at different times."""
    free = Free.zero(cost.cluster)
    later = np.linspace(0, 1e-4, free.queues.shape[1])
    free.queues += np.linspace(0, 2e-4, len(free.queues))[:, None] + later
    free.links += np.linspace(3e-4, 0, len(free.links))[:, None] + later
    return ClockState(np.linspace(0, 1e-4, cost.cluster.num_ranks), free)


def same(cost: Cost, plan: Plan, ops: Ops, backward: bool) -> None:
    found = edges(plan, ops, backward)
    assert isinstance(found, Edges)
    same_waits(cost, plan, ops, backward, found)


def same_waits(cost: Cost, plan: Plan, ops: Ops, backward: bool, found: Edges) -> None:
    linear = cost.linear_seconds(plan.tokens_per_rank)
    ends, carried = [], []
    waits = by_consumer(len(ops), found)
    for of in (direct(plan, ops, waits, cost, backward), prepare(plan, ops, found, cost, backward)):
        ends.append(state(cost))
        Layers(of, linear, 4).play(ends[-1])
        carried.append(carried_bytes(of, cost))
    assert np.array_equal(ends[0].ready, ends[1].ready)
    for name in Free.__slots__:
        assert np.array_equal(getattr(ends[0].free, name), getattr(ends[1].free, name)), name
    assert np.array_equal(*carried)


@given(cases(nodes=3, gpus=5))
def test_in_plan_order_is_the_event_loop(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        if is_direct(ops, cost.cluster):
            same(cost, plan, ops, backward)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
def test_messages_in_any_order_to_any_peer_are_the_event_loop(
    seed: int, nic_channels: int, nvlink_channels: int, gpus: int
) -> None:
    """Every GPU has a NIC, so links serve one queue; messages wait for some before them, or for no data at all."""
    cluster = Cluster("c", 4, gpus, gpus, 25e9, 0.8, 15e-6, 2e11, 0.6, 1e-5, REAL, nic_channels, nvlink_channels)
    cost = Cost(cluster, Model("m", 4, 4096, 32, 8, 128, 11008, 32000))
    rng, ranks = np.random.default_rng(seed), cluster.num_ranks
    builder = Builder(np.array([1, 40, 300, 301, 2000, 40000]), ranks, 32)
    local(builder, np.arange(6), np.arange(6) % ranks)
    plan = builder.build()
    sent = [
        Ops.transfers(KV, *_between(rng, ranks), (0, heads), rng.integers(0, len(plan.lists), 1), heads > 28)
        for heads in rng.integers(1, 33, 60).tolist()
    ]
    ops = Ops.concatenate([plan.forward, *sent])
    waits = np.unique(np.sort(rng.integers(0, len(ops), (20, 2)), axis=1), axis=0)
    waits = waits[waits[:, 0] < waits[:, 1]]
    assert is_direct(ops, cluster)
    same_waits(cost, plan, ops, False, Edges(waits[:, 0].copy(), waits[:, 1].copy()))


def _between(rng: np.random.Generator, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Two different ranks."""
    src, dst = rng.choice(ranks, 2, replace=False)
    return np.array([src]), np.array([dst])


def rings(mode: str = "carry", nics: int = 4, columns: int = 1, channels: int = 1) -> tuple[Cost, Plan]:
    cluster = Cluster("c", 4, 8, nics, 25e9, 0.8, 15e-6, 2e11, 0.6, 1e-5, REAL, channels, 1 + channels // 2)
    cost = Cost(cluster, Model("m", 4, 4096, 32, 8, 128, 11008, 32000))
    tokens = np.random.default_rng(0).integers(1, 5000, 40)
    builder = Builder(tokens, 32, 32)
    ulysses_ring(builder, np.arange(40), np.zeros(40, np.int64), np.arange(32).reshape(1, -1, columns))
    return cost, reverse(builder.build(), mode)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("mode", ["keep", "carry", "regather"])
def test_a_ring_over_nodes_is_direct(mode: str, channels: int) -> None:
    cost, plan = rings(mode, channels=channels)
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        assert is_direct(ops, cost.cluster)
        same(cost, plan, ops, backward)
    assert all(isinstance(of, Direct) for of in playable(plan, cost))


def test_shared_nics_and_routed_transfers_are_not_direct() -> None:
    cost, plan = rings()
    assert not is_direct(route(plan, cost).forward, cost.cluster)
    cost, plan = rings(columns=8)  # every rank's ring crosses nodes, two ranks to a NIC
    assert not is_direct(plan.forward, cost.cluster)
    cost, plan = rings(columns=8, nics=8)
    assert is_direct(plan.forward, cost.cluster)


def test_a_list_in_several_parts_takes_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    cost, plan = rings()
    whole = playable(plan, cost)
    monkeypatch.setattr("zbench.plans.columns.CHUNK", 100)
    for one, other in zip(whole, playable(plan, cost), strict=True):
        assert isinstance(one, Direct)
        assert isinstance(other, Direct)
        assert np.array_equal(one.busy, other.busy)
        assert np.array_equal(one.across, other.across)


def test_lists_are_proven_before_they_are_played() -> None:
    builder = Builder(Batch(np.array([64]), 0, 0).lengths, 4, 1)
    ring(builder, np.array([0]), np.array([0]), np.arange(4)[None])
    plan = reverse(builder.build(), "keep")
    cost = rings()[0]
    with pytest.raises(ValueError, match=r"forward operation \d+ uses kv of block"):
        playable(plan.with_(forward=plan.forward.take(plan.forward.kind == 1)), cost)
