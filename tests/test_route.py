"""Routing over some of a node's NICs: what every NIC carries, and that zeppelin takes as few as pay."""

from dataclasses import replace

import numpy as np
import pytest
from oracles import small

from systems.zeppelin import Zeppelin
from zbench.batch import Batch
from zbench.build import Builder
from zbench.cost import Cost
from zbench.legs import NIC
from zbench.patterns import ring
from zbench.plan import Plan
from zbench.rewrite import reverse, route
from zbench.rewrite.route import narrowed, routed, unrouted
from zbench.simulate import layer_seconds, programs
from zbench.verify import verify_step

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
    parts = programs(plan, cost)[0].legs
    nic = parts.link_class(8) == NIC
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
    (plan,) = Zeppelin(cost, order=False).plan(BATCH)
    assert routed(plan)
    assert plan.lanes.lengths.max() < 4
    everywhere = narrowed(plan, cost, 4)
    assert layer_seconds(plan, cost, 3) < layer_seconds(everywhere, cost, 3)
