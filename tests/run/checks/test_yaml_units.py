"""Quantities in yamls and on the command line carry their unit."""

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from zbench import CONF
from zbench.describe.cluster import CLUSTER_KINDS, Cluster
from zbench.describe.device import CURVES, DEVICE_KINDS, Device
from zbench.describe.links import DOMAIN_KINDS, Domain
from zbench.run.checks.yaml_units import check_units
from zbench.run.parts import Parts
from zbench.run.settings import Settings


def test_every_number_of_the_classes_is_a_quantity_or_counted() -> None:
    """A field that is added has to be said to be one or the other."""
    counted = {
        "num_nodes",
        "gpus_per_node",
        "nics_per_node",
        "nic_efficiency",
        "nvlink_efficiency",
        "nic_channels",
        "nvlink_channels",
        "host_efficiency",
        "host_queues",
    }
    plain = {
        "name",
        "tile",
        "packed_rows",
        "backward_rows",
        "compute_slowdown",
        "matmul_by_tokens",
        "multiprocessors",
        "matmul_shapes",
    }
    words = {"name", "device", "domains", "links", "port_order"}
    assert set(Cluster.__dataclass_fields__) == {*CLUSTER_KINDS, *counted, *words}
    assert set(Domain.__dataclass_fields__) == {*DOMAIN_KINDS, "name", "gpus", "efficiency", "channels"}
    assert set(Device.__dataclass_fields__) == {*DEVICE_KINDS, *CURVES, *plain}


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "cluster").glob("*.yaml")))
def test_every_cluster_yaml_has_its_units(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        check_units(compose("config", [f"cluster={name}"]).cluster)


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "cluster" / "device").glob("*.yaml")))
def test_every_device_yaml_has_its_units(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        check_units(compose("config", [f"cluster/device={name}"]).cluster)


UNITS = {"bytes": "GiB", "bytes/s": "GB/s", "FLOP/s": "TFLOP/s", "seconds": "us"}


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        *CLUSTER_KINDS.items(),
        *((f"domains.card.{name}", kind) for name, kind in DOMAIN_KINDS.items()),
        *((f"device.{name}", kind) for name, kind in DEVICE_KINDS.items()),
        *((f"device.{name}.4096", "FLOP/s") for name in CURVES),
        ("device.matmul_by_tokens.llama_7b.256", "FLOP/s"),
    ],
)
@pytest.mark.parametrize("value", [400, 2.5])
def test_a_number_without_a_unit_is_one_sentence(key: str, kind: str, value: float) -> None:
    cluster: Any = value
    for part in reversed(key.split(".")):
        cluster = {part: cluster}
    unit = "Gbit/s" if kind == "bytes/s" and "nic" in key else UNITS[kind]  # as datasheets have NICs
    written = f"{value:g} {unit}"
    with pytest.raises(ValueError, match=rf"^cluster\.{key} is {value:g}, which has no unit; .*{key}='{written}'$"):
        check_units(OmegaConf.create(cluster))


@pytest.mark.parametrize(
    "cluster", [None, 3, "a", {}, {"device": 3}, {"nic_latency": 0, "nic_bandwidth": "fast"}, {"domains": {"card": 5}}]
)
def test_what_has_no_unit_to_miss_is_left_to_the_classes(cluster: Any) -> None:
    check_units(cluster)


def test_a_record_may_hold_si_numbers() -> None:
    """Records of earlier versions do, where the command line had them: they are made again as they were."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["cluster.nic_bandwidth=25e9", "tracker=none"])
    assert Parts.of(config, Settings.of(config)).cluster.nic_bandwidth == 25e9
