"""Worlds: exactly what a cause changes and nothing else, what a machine has no world of, and what is no world."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given
from omegaconf import OmegaConf

from tests.helpers.strategies import REAL, clusters, models
from zbench import CONF
from zbench.correctness.combinations import choices
from zbench.describe.cluster import Cluster
from zbench.describe.curve import Curve
from zbench.describe.device import CURVES
from zbench.describe.model import Model
from zbench.describe.worlds import MOST_TIMES, NOMINAL, Machine, World
from zbench.run.parts import Parts
from zbench.run.settings import Settings

NAMES = sorted(path.stem for path in (CONF / "world").glob("*.yaml"))
MEASURED = replace(
    REAL,
    **{name: Curve((128.0, 4096.0), (1e14, 4e14)) for name in CURVES},
    matmul_by_tokens={"drawn": Curve((256.0, 4096.0), (2e14, 3e14))},
)


def preset(name: str) -> World:
    made: World = instantiate(OmegaConf.load(CONF / "world" / f"{name}.yaml"))
    return made


def machine(cluster: str, *settings: str) -> Machine:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"cluster={cluster}", "tracker=none", *settings])
        parts = Parts.of(config, Settings.of(config))
    return parts.nominal


@given(clusters(), models())
def test_the_nominal_world_is_the_machine_itself(cluster: Cluster, model: Model) -> None:
    given_one = Machine(cluster, model)
    assert World().of(given_one) is given_one
    assert preset(NOMINAL) == World()
    assert World().missing(given_one) is None
    assert World().words == NOMINAL


@given(clusters(), models())
def test_each_cause_changes_its_own_and_nothing_else(cluster: Cluster, model: Model) -> None:
    """Against clusters written down by hand."""
    device = cluster.device
    rates = {
        "attention_forward_flops": 1.2 * device.attention_forward_flops,
        "attention_backward_flops": 1.2 * device.attention_backward_flops,
    }
    host = None if cluster.host_latency is None else 3 * cluster.host_latency
    later = {"nic_latency": 3 * cluster.nic_latency, "nvlink_latency": 3 * cluster.nvlink_latency, "host_latency": host}
    domains = cluster.domains
    expected = {
        World(nic_channels=3): replace(cluster, nic_channels=3),
        World(nvlink_channels=7): replace(
            cluster, nvlink_channels=7, domains=tuple(replace(one, channels=7) for one in domains)
        ),
        World(latency=3): replace(
            cluster, **later, domains=tuple(replace(one, latency=3 * one.latency) for one in domains)
        ),
        World(nic_bandwidth=0.8): replace(cluster, nic_bandwidth=0.8 * cluster.nic_bandwidth),
        World(nvlink_bandwidth=1.2): replace(
            cluster,
            nvlink_bandwidth=1.2 * cluster.nvlink_bandwidth,
            domains=tuple(replace(one, bandwidth=1.2 * one.bandwidth) for one in domains),
        ),
        World(attention_rate=1.2): replace(cluster, device=replace(device, **rates)),
        World(matmul_rate=0.8): replace(cluster, device=replace(device, matmul_flops=0.8 * device.matmul_flops)),
        World(port_order="longest_waiting"): replace(cluster, port_order="longest_waiting"),
        World(compute_slowdown=1.3): replace(cluster, device=replace(device, compute_slowdown=1.3)),
    }
    for world, changed in expected.items():
        assert world.of(Machine(cluster, model)) == (changed, model)


def test_curves_of_measured_devices_are_faster_as_a_whole() -> None:
    cluster, model = machine("a800_4x8")
    changed = (
        World(attention_rate=1.5, matmul_rate=0.5).of(Machine(replace(cluster, device=MEASURED), model)).cluster.device
    )
    for name in CURVES:
        assert getattr(changed, name) == Curve((128.0, 4096.0), (1.5e14, 6e14))
    assert changed.matmul_by_tokens == {"drawn": Curve((256.0, 4096.0), (1e14, 1.5e14))}
    assert changed.memory_bytes == MEASURED.memory_bytes


def test_several_causes_at_once_are_all_changed_and_told() -> None:
    world = World(nic_channels=4, latency=2.5, matmul_rate=0.9, compute_slowdown=1.1256)
    assert world.words == ("latencies x 2.5, matmul rate -10 %, NIC channels 4, computes beside messages x 1.1256")
    there = machine("h100_4x8")
    cluster, model = world.of(there)
    assert (cluster.nic_channels, model) == (4, there.model)
    assert cluster.nic_latency == 2.5 * there.cluster.nic_latency


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("nic_1", 40e9),
        ("nic_2", 20e9),
        ("nic_3", 40e9 / 3),
        ("nvlink_1", 351e9),
        ("nvlink_3", 117e9),
        ("nvlink_7", 351e9 / 7),
    ],
)
def test_one_peer_reaches_what_the_yaml_says(name: str, rate: float) -> None:
    cluster = preset(name).of(machine("h100_4x8")).cluster
    link = name.partition("_")[0]
    bandwidth = getattr(cluster, f"{link}_bandwidth") * getattr(cluster, f"{link}_efficiency")
    assert bandwidth / getattr(cluster, f"{link}_channels") == pytest.approx(rate)


def test_every_preset_but_nominal_is_one_cause() -> None:
    usual = World()
    for name in NAMES:
        changed = {one.name for one in fields(World) if getattr(preset(name), one.name) != getattr(usual, one.name)}
        assert len(changed - {"nics_above"}) == (0 if name == NOMINAL else 1)
    assert len({preset(name).words for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(
    ("cluster", "absent"), [("a800_4x8", {"nic_1", "nic_3", "nvlink_1"}), ("h200_4x8", {"nic_2", "nvlink_1"})]
)
def test_worlds_that_a_machine_has_not(cluster: str, absent: set[str]) -> None:
    there = machine(cluster)
    assert {name for name in NAMES if preset(name).missing(there)} == absent


def test_why_a_machine_has_no_such_world() -> None:
    assert preset("nic_3").missing(machine("a800_4x8")) == (
        "it is of NICs of more than 200 Gbit/s (world.nics_above), and those of a800_4x8 have 200 Gbit/s"
    )
    told = preset("nic_2").missing(machine("h200_4x8"))
    assert told == "it changes nothing on h200_4x8, where NIC channels 2 is nominal"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"nic_channels": 0}, "world.nic_channels is 0; it takes a whole number from 1 to 32, or null"),
        ({"nvlink_channels": 1.5}, "world.nvlink_channels is 1.5"),
        ({"nic_channels": True}, "world.nic_channels is True"),
        ({"latency": 0}, "world.latency is 0; it takes how many times the nominal one it is"),
        ({"attention_rate": "fast"}, "world.attention_rate is 'fast'"),
        ({"matmul_rate": 2 * MOST_TIMES}, "world.matmul_rate is 2000000.0"),
        ({"nic_bandwidth": float("nan")}, "world.nic_bandwidth is nan"),
        ({"compute_slowdown": 0.9}, "world.compute_slowdown is 0.9; it takes how many times as long a compute takes"),
        ({"compute_slowdown": True}, "world.compute_slowdown is True"),
        ({"nics_above": "fast"}, "world.nics_above is 'fast'"),
        ({"nics_above": -1.0}, "world.nics_above is -1.0; it has to be at least 0 and finite"),
    ],
)
def test_what_is_no_world_is_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told.replace('.', '[.]')}"):
        World(**changes)


def test_a_world_of_ones_own_is_a_yaml(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "mine.yaml").write_text(
        "_target_: zbench.describe.worlds.World\nlatency: 2\nnic_channels: 4\n"
    )
    with initialize_config_dir(str(CONF), version_base="1.3"):
        found = compose("config", ["tracker=none", f"hydra.searchpath=[{tmp_path}]", "world=mine"])
        parts = Parts.of(found, Settings.of(found))
    assert parts.world == World(latency=2, nic_channels=4)
    assert parts.cost.cluster == parts.cluster == parts.world.of(parts.nominal).cluster
    assert (parts.cluster.nic_channels, parts.nominal.cluster.nic_channels) == (4, 1)
    assert parts.facts()["world"] == "latencies x 2, NIC channels 4"


def test_choices_of_the_group_are_listed() -> None:
    assert choices("world") == NAMES


def test_worlds_of_links_that_nothing_is_sent_over_are_missing() -> None:
    rack = machine("gb200_nvl72")
    nics = {name for name in NAMES if name.startswith("nic_")}
    assert {name for name in NAMES if preset(name).missing(rack)} == {*nics, "nvlink_1"}
    told = preset("nic_1").missing(rack)
    assert told == "it changes NICs alone, and gb200_nvl72 of 1 node of 72 GPUs sends nothing over them"
    alone = machine("h100_4x8", "cluster.gpus_per_node=1", "cluster.nics_per_node=1")
    assert {name for name in NAMES if preset(name).missing(alone)} == {
        "nic_2",
        *(name for name in NAMES if name.startswith("nvlink_")),
    }


def test_what_is_told_of_channels_names_the_links_that_change() -> None:
    frontier = machine("frontier_48x8")
    assert preset("nvlink_3").told(frontier) == "channels of card 3"
    assert preset("nvlink_7").told(frontier) == "NVLink channels 7"
    assert preset("nvlink_3").told(machine("a800_4x8")) == "NVLink channels 3"
