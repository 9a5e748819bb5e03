"""What the busiest NIC has to carry, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.network.test_wiring import CLUSTER
from zbench.cost.cost import Cost
from zbench.describe.model import Model
from zbench.desk.overlap import Overlap, attention_nic_seconds
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring

MODEL = Model("small", 3, 16, 2, 2, 8, 24, 64, element_bytes=4)
COST = Cost(CLUSTER, MODEL)


def test_a_ring_s_busiest_nic_carries_all_that_crosses_one_way() -> None:
    builder = Builder(np.array([800]), 8, MODEL.num_heads)
    ring(builder, np.array([0]), np.array([0]), np.arange(8)[None])
    plan = reverse(builder.build(), "keep")
    hop = 100 * 2 * 2 * 8 * 4  # tokens, key and value, heads, head_dim, bytes
    # Seven hops of kv forward; backward as many of its gradient.
    assert attention_nic_seconds(plan, COST) == pytest.approx(3 * 2 * 7 * hop / CLUSTER.nic_bandwidth)


@pytest.mark.parametrize("channels", [2, 3])
def test_what_goes_to_one_peer_has_one_channel(channels: int) -> None:
    """A ring's messages across nodes go to one peer a NIC; two peers' would have two channels."""
    builder = Builder(np.array([800]), 8, MODEL.num_heads)
    ring(builder, np.array([0]), np.array([0]), np.arange(8)[None])
    plan = reverse(builder.build(), "keep")
    several = replace(COST, cluster=replace(CLUSTER, nic_channels=channels))
    assert attention_nic_seconds(plan, several) == pytest.approx(channels * attention_nic_seconds(plan, COST))


def test_without_messages_no_nic_carries_anything() -> None:
    builder = Builder(np.full(8, 10), 8, MODEL.num_heads)
    local(builder, np.arange(8), np.arange(8))
    assert attention_nic_seconds(reverse(builder.build(), "keep"), COST) == 0


def test_the_larger_of_both_counts() -> None:
    assert Overlap("ring", 1.2, 1.0, 0.5).ratio == pytest.approx(1.2)
    assert Overlap("ring", 1.2, 0.3, 0.6).ratio == pytest.approx(2.0)
