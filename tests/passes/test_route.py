"""Routing: the same bytes over the NICs, spread; the busiest carries less; over some of them, where they pay."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import small
from tests.helpers.strategies import REAL, costs, forwards
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.links import NIC
from zbench.describe.model import Model
from zbench.passes import remap, reverse, route
from zbench.passes.reverse import MODES
from zbench.passes.route import busiest_nic_seconds, narrowed, routed, unrouted
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import COLUMNS, TRANSFER, Ops, Plan
from zbench.proof.verify import verify, verify_step
from zbench.simulator.attention import programs
from zbench.simulator.estimate.step import layer_seconds
from zbench.simulator.hops import hops
from zbench.systems.zeppelin.planner import Zeppelin


def nic_bytes(plan: Plan, ops: Ops, cost: Cost) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that every NIC sends and receives."""
    cluster = cost.cluster
    parts = hops(plan, ops, cost.message_bytes(plan, ops), cluster)
    nic = parts.link_class == NIC
    sides = [(link[nic] - side) // 2 - cluster.num_ranks for side, link in enumerate((parts.link_a, parts.link_b))]
    size, nics = parts.bytes[nic], cluster.num_nics
    tx, rx = (np.bincount(side, weights=size, minlength=nics).astype(np.int64) for side in sides)
    return tx, rx


@given(st.data(), costs(), st.sampled_from(MODES))
def test_bytes_over_the_nics_are_the_same_and_the_busiest_has_less(data: st.DataObject, cost: Cost, mode: str) -> None:
    plan = reverse(remap(data.draw(forwards(cost)), cost, 0), mode)
    routed = route(plan, cost)
    verify(routed)
    for name in ("forward", "backward"):
        before, after = getattr(plan, name), getattr(routed, name)
        for column in COLUMNS:
            assert column == "via" or (getattr(before, column) == getattr(after, column)).all()
        old, new = nic_bytes(plan, before, cost), nic_bytes(routed, after, cost)
        assert [side.sum() for side in old] == [side.sum() for side in new]
        node_of_nic = np.arange(cost.cluster.num_nics) // cost.cluster.nics_per_node
        for one, other in zip(old, new, strict=True):
            assert np.bincount(node_of_nic, one).tolist() == np.bincount(node_of_nic, other).tolist()
        lanes = cost.cluster.nics_per_node
        spread = (after.via >= 0).sum()  # a share differs from an even one by less than a byte
        if spread:
            assert max(side.max() for side in new) <= max(side.max() for side in old) + spread
            node = cost.cluster.node_of
            assert (node[after.src[after.via >= 0]] != node[after.dst[after.via >= 0]]).all()
            assert (after.kind[after.via >= 0] == TRANSFER).all()
            assert lanes > 1
        assert all(routed.lanes[index].tolist() == list(range(lanes)) for index in range(len(routed.lanes)))


def ring_of(nics: int, nodes: int = 2, gpus: int = 8) -> tuple[Plan, Cost]:
    cluster = Cluster("c", nodes, gpus, nics, 25e9, 0.8, 1e-5, 2e11, 0.8, 1e-5, REAL)
    cost = Cost(cluster, Model("m", 8, 4096, 32, 32, 128, 11008, 32000))
    builder = Builder(np.array([65536]), nodes * gpus, 32)
    ring(builder, np.array([0]), np.array([0]), np.arange(nodes * gpus)[None])
    return reverse(builder.build(), "carry"), cost


def test_a_ring_uses_one_nic_a_node_and_routed_all_of_them() -> None:
    plan, cost = ring_of(4)
    routed = route(plan, cost)
    before, after = nic_bytes(plan, plan.forward, cost)[0], nic_bytes(routed, routed.forward, cost)[0]
    assert (before > 0).tolist() == [False, False, False, True] * 2
    assert (after > 0).all()
    assert after.max() <= before.max() / 4 + len(plan.forward)
    assert (routed.forward.via >= 0).sum() == 2 * 15  # the two border crossings of every step
    assert layer_seconds(routed, cost, 2) < 0.8 * layer_seconds(plan, cost, 2)


def test_nothing_is_routed_with_one_nic_a_node_or_one_node() -> None:
    for plan, cost in (ring_of(1), ring_of(4, nodes=1)):
        routed = route(plan, cost)
        assert not (routed.forward.via >= 0).any()
        assert not (routed.backward.via >= 0).any()


def test_nothing_is_routed_where_every_nic_is_busy_already() -> None:
    """Every GPU sends to its counterpart over a NIC of its own: detours would only cost."""
    _, cost = ring_of(8)
    builder = Builder(np.full(8, 8192), 16, 32)
    ring(builder, np.arange(8), np.arange(8), np.stack([np.arange(8), np.arange(8) + 8], axis=1))
    plan = reverse(builder.build(), "carry")
    assert not (route(plan, cost).forward.via >= 0).any()


def test_nothing_is_routed_where_nvlink_is_no_faster() -> None:
    plan, cost = ring_of(4)
    slow = replace(cost, cluster=replace(cost.cluster, nvlink_bandwidth=25e9))
    assert not (route(plan, slow).forward.via >= 0).any()


# -- over some of the NICs ---------------------------------------------------------------------------
BATCH = Batch(np.array([60_000, 1_000, 500]), 0, 0)


def four_nics(**changes: object) -> Cost:
    cost = small(2, 4)
    cluster = replace(cost.cluster, nics_per_node=4, nic_bandwidth=2.5e10)
    return replace(cost, cluster=replace(cluster, **changes))


def long_ring(cost: Cost) -> Plan:
    builder = Builder(BATCH.lengths, 8, 32)
    ring(builder, np.arange(3), np.zeros(3, np.int64), np.arange(8)[None, :])
    return route(reverse(builder.build(), "keep"), cost)


def carried(plan: Plan, cost: Cost) -> np.ndarray:
    """Bytes that every NIC sends in the forward, [num_nics]."""
    parts = programs(plan, cost)[0].hops
    nic = parts.link_class == NIC
    return np.bincount(parts.link_a[nic] // 2 - 8, parts.bytes[nic], 8)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_shares_go_over_the_senders_nic_and_others_evenly_apart(count: int) -> None:
    cost = four_nics()
    plan = long_ring(cost)
    assert routed(plan)
    fewer = narrowed(plan, cost, count)
    verify_step(BATCH, (fewer,), cost)
    sent = carried(fewer, cost)
    assert sent.sum() == carried(plan, cost).sum()
    per_node = sent.reshape(2, 4)
    assert ((per_node > 0).sum(axis=1) == count).all()  # one GPU of a node sends across, the last of the ring's four
    assert (per_node[:, 3] > 0).all()
    if count == 1:
        assert np.array_equal(sent, carried(unrouted(plan), cost))


def test_zeppelin_takes_fewer_proxies_where_they_help() -> None:
    """Slow NVLink: half the NICs carry twice as much each, and GPUs hand on less."""
    cost = four_nics(nvlink_bandwidth=7e10)
    (plan,) = Zeppelin(cost, list_schedule=False).plan(BATCH)
    assert routed(plan)
    assert plan.lanes.lengths.max() < 4
    everywhere = narrowed(plan, cost, 4)
    assert layer_seconds(plan, cost, 3) < layer_seconds(everywhere, cost, 3)


@given(st.data(), costs(), st.sampled_from(MODES))
def test_no_layer_of_direct_messages_is_shorter_than_what_the_busiest_nic_needs(
    data: st.DataObject, cost: Cost, mode: str
) -> None:
    plan = reverse(data.draw(forwards(cost)), mode)
    assert busiest_nic_seconds(plan, cost) <= layer_seconds(plan, cost, 1) * (1 + 1e-9)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_pair_of_ranks_has_one_channel_and_a_nic_all_of_them(channels: int) -> None:
    """Of a ring of four nodes of one GPU each NIC has one peer; with three peers three channels are used."""
    cluster = Cluster("c", 4, 1, 1, 1e9, 1.0, 0.0, 1e11, 1.0, 0.0, REAL, nic_channels=channels)
    cost = Cost(cluster, Model("m", 1, 16, 2, 2, 8, 24, 64))
    tokens, size = 800, 200 * 2 * 2 * 8 * 2  # of a rank: key and value, heads, head_dim, bytes
    for lay, share in ((ring, channels), (_everybody, max(1.0, channels / 3))):
        builder = Builder(np.array([tokens]), 4, 2)
        lay(builder, np.array([0]), np.array([0]), np.arange(4)[None])
        found = busiest_nic_seconds(reverse(builder.build(), "keep"), cost)
        assert found == pytest.approx(share * 2 * 3 * size / 1e9)


def _everybody(builder: Builder, seqs: np.ndarray, group: np.ndarray, ranks: np.ndarray) -> None:
    """As a ring, but that every block goes from its home to all others."""
    count = len(builder._ops)
    ring(builder, seqs, group, ranks)
    for at in range(count, len(builder._ops)):
        ops = builder._ops[at]
        away = ops.kind == TRANSFER
        builder._ops[at] = replace(ops, src=np.where(away, ops.blocks, ops.src))
