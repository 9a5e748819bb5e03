"""Clusters and devices: where ranks and NICs are, and what a description may not say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given

from tests.helpers.eventloop import nearest
from tests.helpers.oracles import MODELS
from tests.helpers.strategies import REAL, clusters
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.device import MAY_BE_ZERO, Device
from zbench.describe.links import NIC, NVLINK
from zbench.simulator.hops import num_links, ports

CONF = Path(__file__).parents[2] / "conf"


@given(clusters())
def test_every_nic_is_tied_to_its_node_s_gpus_evenly_and_in_order(cluster: Cluster) -> None:
    assert cluster.num_ranks == cluster.num_nodes * cluster.gpus_per_node
    assert cluster.num_nics == cluster.num_nodes * cluster.nics_per_node
    assert cluster.node_of.tolist() == [rank // cluster.gpus_per_node for rank in range(cluster.num_ranks)]
    assert (cluster.nic_of // cluster.nics_per_node == cluster.node_of).all()
    assert (np.diff(cluster.nic_of) >= 0).all()
    used = np.bincount(cluster.nic_of, minlength=cluster.num_nics)
    assert used.min() >= 1
    assert np.ptp(used) <= 1


def test_two_gpus_to_a_nic() -> None:
    cluster = Cluster("c", 2, 8, 4, "200 Gbit/s", 0.8, "15 us", "200 GB/s", 0.6, "10 us", REAL)  # type: ignore[arg-type]
    assert cluster.nic_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert (cluster.nic_bandwidth, cluster.nic_latency, cluster.nvlink_bandwidth) == (25e9, pytest.approx(15e-6), 200e9)


GOOD = Cluster("c", 2, 8, 4, 25e9, 0.8, 15e-6, 200e9, 0.6, 10e-6, REAL)


@pytest.mark.parametrize(
    ("field", "value", "bound"),
    [
        ("name", 4090, "it takes text, as in '4090'"),
        ("name", None, "it takes text"),
        ("num_nodes", 0, "at least 1"),
        ("num_nodes", 1.0, "at least 1"),
        ("gpus_per_node", True, "at least 1"),
        ("nics_per_node", 9, "at most one per GPU, gpus_per_node=8"),
        ("nics_per_node", -1, "at least 1"),
        ("nic_bandwidth", 0, "above 0"),
        ("nic_bandwidth", "80 GB", "bytes/s"),
        ("nvlink_bandwidth", -1.0, "above 0"),
        ("nic_bandwidth", float("inf"), "above 0"),
        ("nvlink_latency", -1e-6, "at least 0"),
        ("nic_latency", float("nan"), "at least 0"),
        ("nic_latency", "1 GB", "seconds"),
        ("nic_efficiency", 0, "above 0 and at most 1"),
        ("nvlink_efficiency", 1.01, "above 0 and at most 1"),
        ("nvlink_efficiency", "0.5", "above 0 and at most 1"),
        ("nic_efficiency", True, "above 0 and at most 1"),
    ],
)
def test_bad_clusters_are_one_sentence(field: str, value: object, bound: str) -> None:
    with pytest.raises(ValueError, match=rf"^cluster\.{field} is .*{bound}"):
        replace(GOOD, **{field: value})


def test_a_device_s_name_is_text() -> None:
    with pytest.raises(ValueError, match=r"^cluster\.device\.name is 4090; it takes text, as in '4090'$"):
        replace(REAL, name=4090)  # type: ignore[arg-type]


FIELDS = [name for name in Device.__dataclass_fields__ if name != "name"]
BAD_VALUES = [
    (field, value)
    for field in FIELDS
    for value in (0, -1.0, float("nan"), float("inf"), "much")
    if value != 0 or field not in {*MAY_BE_ZERO, "multiprocessors"}
]


@pytest.mark.parametrize(("field", "value"), BAD_VALUES)
def test_bad_devices_are_one_sentence(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^cluster\.device\.{field} is "):
        replace(REAL, **{field: value})


@pytest.mark.parametrize("path", sorted((CONF / "cluster").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_cluster_yaml_makes_a_cluster(path: Path) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("config", overrides=[f"cluster={path.stem}", "system=ring"])
    cluster = instantiate(config.cluster)
    assert isinstance(cluster, Cluster)
    device = cluster.device
    assert max(device.matmul_flops, device.attention_forward_flops, device.attention_backward_flops) < device.peak_flops
    assert device.strided_rate <= device.copy_bandwidth
    if "local" not in path.stem:  # whose nodes are one machine: both links are the same
        assert cluster.nic_bandwidth < cluster.nvlink_bandwidth
    assert cluster.name == path.stem


CARD = {"card": {"gpus": 2, "bandwidth": "400 GB/s", "efficiency": 0.5, "latency": "2 us", "channels": 2}}
HOST = {"host_bandwidth": 36e9, "host_efficiency": 0.8, "host_latency": 1e-5}


def test_a_message_takes_the_links_of_the_innermost_domain_with_both_ranks() -> None:
    quad = {"quad": {"gpus": 4, "bandwidth": 3e11, "efficiency": 1.0, "latency": 0.0}}
    cluster = replace(GOOD, domains={**quad, **CARD})  # type: ignore[arg-type]
    assert [(one.name, one.gpus) for one in cluster.domains] == [("card", 2), ("quad", 4)]
    names = [link.name for link in cluster.links]
    assert names == ["node", "NIC", "card", "quad"]
    found = cluster.link_of(np.array([0, 1, 1, 3, 2, 4, 7, 8]), np.array([1, 0, 2, 0, 3, 3, 8, 9]))
    assert [names[link] for link in found] == ["card", "card", "quad", "quad", "card", "node", "NIC", "card"]
    assert [names[link] for link in cluster.link_among(np.array([1, 2, 3, 4, 5, 8, 9]))] == [
        "card",
        "card",
        "quad",
        "quad",
        "node",
        "node",
        "NIC",
    ]
    cost = Cost(cluster, MODELS["mha"])
    link = np.array([NVLINK, NIC, 2])
    assert cost.transfer_seconds(np.full(3, 1e9), link) == pytest.approx([1e9 / 120e9, 1e9 / 20e9, 1e9 / 200e9])
    assert cost.message_seconds(np.full(3, 1e9), link) == pytest.approx([1e9 / 120e9, 1e9 / 20e9, 1e9 / 100e9])
    assert cost.latency_seconds(link) == pytest.approx([10e-6, 15e-6, 2e-6])


@given(clusters())
def test_classes_are_those_of_the_smallest_groups_of_ranks(cluster: Cluster) -> None:
    ranks = range(cluster.num_ranks)
    src, dst = np.array([(a, b) for a in ranks for b in ranks if a != b] or [(0, 0)]).T
    for a, b, link in zip(src.tolist(), dst.tolist(), cluster.link_of(src, dst).tolist(), strict=True):
        assert cluster.links[link].rate == nearest(cluster, a, b)[1] or a == b


@given(clusters())
def test_every_rank_has_ports_of_its_own_but_for_nics(cluster: Cluster) -> None:
    found = ports(replace(cluster, **HOST))
    assert len(found) == len(cluster.links) + 1
    own = np.delete(found, NIC, axis=0).ravel()
    every = np.unique(np.concatenate([own, found[NIC]]))
    assert len(np.unique(own)) == len(own)
    assert (every % 2 == 0).all()  # the next one receives
    assert every.max() + 2 == num_links(replace(cluster, **HOST)) == 2 * (len(own) + cluster.num_nics)


def test_a_part_of_a_cluster_keeps_the_domains_that_it_can_have() -> None:
    cluster = replace(GOOD, domains=CARD)  # type: ignore[arg-type]
    assert cluster.part(1, 6, 1).domains == cluster.part(1, 2, 1).domains == cluster.domains
    assert cluster.part(1, 3, 1).domains == ()
    alone = cluster.part(2, 1, 1)
    assert alone.link_of(np.array([0]), np.array([1])).tolist() == [NIC]


@pytest.mark.parametrize(
    ("domains", "told"),
    [
        (5, "domains is 5; it takes domains by name"),
        ({"card": 5}, r"domains\.card is 5; it takes gpus, bandwidth, efficiency and latency"),
        ({"card": {**CARD["card"], "width": 2}}, r"domains\.card\.width is not known; it has bandwidth, channels"),
        ({"card": {"gpus": 2}}, r"domains\.card\.bandwidth is not given"),
        *(
            ({"card": {**CARD["card"], name: value}}, rf"domains\.card\.{name} is {value!r}; it {takes}")
            for name, value, takes in (
                ("gpus", 3, "has to divide gpus_per_node=8"),
                ("gpus", 1, "takes a whole number of at least 2"),
                ("bandwidth", 0, "has to be above 0"),
                ("latency", -1, "has to be at least 0"),
                ("efficiency", 2, "takes a share above 0 and at most 1"),
                ("channels", 0, "takes a whole number from 1 to 32"),
            )
        ),
        ({**CARD, "other": CARD["card"]}, r"domains\.card\.gpus is 2; it has to divide the 2 of other, and be less"),
        ({**CARD, "six": {**CARD["card"], "gpus": 3}}, r"domains\.card\.gpus is 2; it has to divide the 3 of six"),
        ({4090: CARD["card"]}, r"domains is 4090; it takes text, as in '4090'"),
    ],
)
def test_bad_domains_are_one_sentence(domains: object, told: str) -> None:
    with pytest.raises(ValueError, match=rf"^cluster\.{told}"):
        replace(GOOD, domains=domains)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"host_latency": None}, "host_latency is not given; a link to the host has host_bandwidth, host_efficiency"),
        ({"host_bandwidth": None}, "host_bandwidth is not given"),
        ({"host_bandwidth": 0}, "host_bandwidth is 0; it"),
        ({"host_efficiency": 1.5}, "host_efficiency is 1.5; it takes a share"),
        ({"host_queues": 0}, "host_queues is 0; it takes a whole number from 1 to 32"),
        ({"host_memory": "much"}, "host_memory is 'much'; it takes bytes"),
        ({**dict.fromkeys(HOST), "host_queues": 2}, "host_bandwidth is not given"),
    ],
)
def test_bad_host_links_are_one_sentence(changes: dict[str, object], told: str) -> None:
    assert replace(GOOD, **HOST).host == 2
    with pytest.raises(ValueError, match=rf"^cluster\.{told}"):
        replace(GOOD, **{**HOST, **changes})


def test_a_card_of_frontier_is_nearer_than_its_node_and_is_reached_by_one_peer() -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        cluster = instantiate(compose("config", overrides=["cluster=frontier_48x8"]).cluster)
    assert cluster.link_of(np.array([0, 2, 8]), np.array([1, 0, 0])).tolist() == [2, NVLINK, NIC]
    cost = Cost(cluster, MODELS["mha"])
    assert cost.message_seconds(np.full(2, 150e9), np.array([2, NVLINK])) == pytest.approx([1.0, 4.0])
    assert cluster.host_memory == 512e9
