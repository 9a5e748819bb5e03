"""What the busiest NIC has to carry, by hand; runs that have no overlap of attention's."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.commands import called
from tests.runtime.network.test_wiring import CLUSTER
from zbench.cost.cost import Cost
from zbench.describe.model import Model
from zbench.desk.overlap import Overlap, attention_nic_seconds
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.run.parts import TORCH

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


def test_whole_steps_are_told_where_their_waits_are_set_beside_the_clock_s(tmp_path: Path) -> None:
    """The record is a simulated run's, which says that ranks ran it."""
    path = tmp_path / "runs.jsonl"
    small = ("cluster=local_2x2", "model=tiny", "tokens_per_gpu=64", "workload=fixed", "workload.length=64", "steps=1")
    assert called(*small, "system=ring", "baseline=null", "tracker=none", f"out={path}").returncode == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["facts"]["simulated"] = False
    lines[0]["config"]["executor"] = {"_target_": TORCH}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = called("overlap", str(path), module="zbench.desk")
    assert done.returncode == 2
    assert "trained by whole steps, in which attention has no time of its own" in done.stderr
    assert "python -m zbench.desk waits says" in done.stderr
    assert called("waits", str(path), module="zbench.desk").stdout.count("1 of 1") == 1
