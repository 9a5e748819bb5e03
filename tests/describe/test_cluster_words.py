"""Sentences about the cluster that runs were on."""

from dataclasses import replace
from typing import Any

import pytest

from zbench.anchors.presets import cluster
from zbench.record.words import cluster_words, link_words

FACTS = {
    "cluster": "a800_4x8",
    "num_nodes": 4,
    "gpus_per_node": 8,
    "device": "A800-80G",
    "nics_per_node": 4,
    "nic_bandwidth": 25e9,
    "num_ranks": 32,
}
PLAIN = "a800_4x8: 4 nodes x 8 A800-80G, 4 NICs of 200 Gbit/s a node"


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, ""),
        ({"tensor_parallel": 1, "pipeline_parallel": 1}, ""),
        ({"tensor_parallel": 4, "num_tensor_parallel_groups": 8}, "; 8 tensor-parallel groups of 4 GPUs each"),
        ({"tensor_parallel": 2, "num_tensor_parallel_groups": 1}, "; 1 tensor-parallel group of 2 GPUs"),
        ({"pipeline_parallel": 2}, "; 2 pipeline stages"),
        ({"links": "3 NVLink channels", "world": "latencies x 3"}, "; 3 NVLink channels; world: latencies x 3"),
        (
            {"tensor_parallel": 2, "pipeline_parallel": 2, "num_tensor_parallel_groups": 16},
            "; 16 tensor-parallel groups of 2 GPUs each; 2 pipeline stages",
        ),
    ],
)
def test_the_cluster_is_told_as_configured_with_its_groups_and_stages(changes: dict[str, Any], more: str) -> None:
    assert cluster_words({**FACTS, **changes}) == PLAIN + more


def test_one_of_each_is_no_plural() -> None:
    one = {"num_nodes": 1, "gpus_per_node": 1, "nics_per_node": 1}
    assert cluster_words({**FACTS, **one}) == "a800_4x8: 1 node x 1 A800-80G, 1 NIC of 200 Gbit/s a node"


def test_domains_and_channels_that_are_not_the_usual_ones_are_told() -> None:
    assert [link_words(cluster(name)) for name in ("a800_4x8", "h100_4x8", "gb200_nvl72")] == ["", "", ""]
    frontier = cluster("frontier_48x8")
    assert link_words(frontier) == "2 GPUs a card with 200 GB/s and 1 channel, 3 NVLink channels"
    assert link_words(replace(cluster("h100_4x8"), nic_channels=1)) == "1 NIC channel"
    whole = replace(frontier, gpus_per_node=2, nics_per_node=1, nvlink_channels=1)
    assert link_words(whole).endswith("which is the whole node: nothing uses the node's own links")
