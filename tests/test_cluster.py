"""Clusters and devices: where ranks and NICs are, and what a description may not say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given
from strategies import REAL, clusters

from zbench.cluster import MAY_BE_ZERO, Cluster, Device

CONF = Path(__file__).parents[1] / "conf"


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
        ("name", 4090, "it takes text, as in '4090'"), ("name", None, "it takes text"),
        ("num_nodes", 0, "at least 1"), ("num_nodes", 1.0, "at least 1"), ("gpus_per_node", True, "at least 1"),
        ("nics_per_node", 9, "at most one per GPU, gpus_per_node=8"), ("nics_per_node", -1, "at least 1"),
        ("nic_bandwidth", 0, "above 0"), ("nic_bandwidth", "80 GB", "bytes/s"), ("nvlink_bandwidth", -1.0, "above 0"),
        ("nic_bandwidth", float("inf"), "above 0"), ("nvlink_latency", -1e-6, "at least 0"),
        ("nic_latency", float("nan"), "at least 0"), ("nic_latency", "1 GB", "seconds"),
        ("nic_efficiency", 0, "above 0 and at most 1"), ("nvlink_efficiency", 1.01, "above 0 and at most 1"),
        ("nvlink_efficiency", "0.5", "above 0 and at most 1"), ("nic_efficiency", True, "above 0 and at most 1"),
    ],
)  # fmt: skip
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
    if value != 0 or field not in MAY_BE_ZERO
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
