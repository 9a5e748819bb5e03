"""The clusters of stages: whole nodes, or equal parts of a node."""

from dataclasses import replace

import numpy as np
import pytest

from zbench.cost.ranks_of_gpus import check_stage_gpus, stage_cluster, stages_are_alike
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.links import NIC, NVLINK, Domain

A100 = Device("A100", 312e12, 80e9, 2e12, 1.1e12, 280e12, 217e12, 174e12, 1e-6, 8e-6)
PAIR = Domain("pair", 2, 6e11, 1.0, 1e-6)


def cluster(nodes: int, gpus: int, nics: int = 4, domains: tuple[Domain, ...] = ()) -> Cluster:
    host = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5}
    one = Cluster("c", nodes, gpus, nics, 25e9, 0.8, 1e-5, 3e11, 0.6, 1e-5, A100, domains=domains, **host)
    return replace(one, host_memory=1e12, host_adam_bandwidth=2e11)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_of_whole_nodes_have_as_many_less(stages: int) -> None:
    assert stage_cluster(cluster(4, 8), stages) == cluster(4 // stages, 8)


@pytest.mark.parametrize(
    ("stages", "gpus", "nics", "bandwidth"), [(8, 4, 2, 25e9), (16, 2, 1, 25e9), (32, 1, 1, 12.5e9)]
)
def test_a_part_of_a_node_has_its_share(stages: int, gpus: int, nics: int, bandwidth: float) -> None:
    """Where eight stages share the four NICs of a node, each has one of half the bandwidth."""
    found = stage_cluster(cluster(4, 8), stages)
    assert (found.num_nodes, found.gpus_per_node, found.nics_per_node) == (1, gpus, nics)
    assert found.nic_bandwidth == bandwidth
    assert found.num_ranks * stages == cluster(4, 8).num_ranks
    inside = stages // 4
    assert (found.host_memory, found.host_adam_bandwidth) == (1e12 / inside, 2e11 / inside)
    assert found.link_of(found.node_of, found.node_of + gpus - 1).tolist() == [NVLINK] * gpus


def test_links_between_stages_are_the_whole_cluster_s() -> None:
    """Of two nodes with two stages each, the first GPUs: inside nodes, but from the second to the third."""
    whole, part = cluster(2, 8), stage_cluster(cluster(2, 8), 4)
    first = part.num_ranks * np.arange(3)
    assert whole.link_of(first, first + part.num_ranks).tolist() == [NVLINK, NIC, NVLINK]


def test_a_stage_inside_a_domain_has_its_links() -> None:
    """Pairs of GPUs: stages of one, of a pair and of two pairs."""
    whole = cluster(1, 8, domains=(PAIR,))
    for stages in (8, 4, 2):
        check_stage_gpus(whole, stages)
        assert stage_cluster(whole, stages).domains == (PAIR,)
    assert stage_cluster(whole, 4).links == whole.links


@pytest.mark.parametrize(
    ("shape", "stages", "tensor", "told"),
    [
        ((4, 8), 3, 1, "4, or be 4 times a number that divides cluster.gpus_per_node=8"),
        ((4, 8), 64, 1, "4, or be 4 times a number that divides cluster.gpus_per_node=8"),
        ((4, 8), 16, 4, "divides 2 (cluster.gpus_per_node=8 over parallel.tensor_parallel=4)"),
        ((3, 6), 2, 1, "cluster.num_nodes=3, or be 3 times a number that divides cluster.gpus_per_node=6"),
        ((1, 8), 3, 1, "parallel.pipeline_parallel is 3; it has to divide cluster.gpus_per_node=8"),
        ((1, 8), 8, 2, "it has to divide 4 (cluster.gpus_per_node=8 over parallel.tensor_parallel=2)"),
    ],
)
def test_what_does_not_divide_is_refused(shape: tuple[int, int], stages: int, tensor: int, told: str) -> None:
    assert not stages_are_alike(cluster(*shape), stages, tensor)
    with pytest.raises(ValueError, match=r"^parallel\.pipeline_parallel is") as caught:
        check_stage_gpus(cluster(*shape), stages, tensor)
    assert told in str(caught.value)


def test_stages_that_have_parts_of_domains_are_not_alike() -> None:
    whole = cluster(1, 12, domains=(replace(PAIR, gpus=4),))
    with pytest.raises(ValueError, match=r"stages of 6 GPUs; these have to divide cluster\.domains\.pair\.gpus=4"):
        check_stage_gpus(whole, 2)
    check_stage_gpus(replace(whole, num_nodes=2), 2)
