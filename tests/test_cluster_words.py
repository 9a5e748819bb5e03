"""Sentences about the cluster that runs were on."""

from typing import Any

import pytest

from zbench.words import cluster_words

FACTS = {"cluster": "a800_4x8", "num_nodes": 4, "gpus_per_node": 8, "device": "A800-80G", "nics_per_node": 4,
         "nic_bandwidth": 25e9, "num_ranks": 32}  # fmt: skip
PLAIN = "a800_4x8: 4 nodes x 8 A800-80G, 4 NICs of 200 Gbit/s a node"


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, ""),
        ({"tensor_parallel": 1, "pipeline_parallel": 1}, ""),
        ({"tensor_parallel": 4, "num_ranks": 8}, "; 8 ranks of 4 GPUs each (tensor parallelism)"),
        ({"pipeline_parallel": 2}, "; 2 pipeline stages"),
        ({"tensor_parallel": 2, "pipeline_parallel": 2, "num_ranks": 16},
         "; 16 ranks of 2 GPUs each (tensor parallelism); 2 pipeline stages"),
    ],
)  # fmt: skip
def test_the_cluster_is_told_as_configured_with_what_a_rank_is(changes: dict[str, Any], more: str) -> None:
    assert cluster_words({**FACTS, **changes}) == PLAIN + more
