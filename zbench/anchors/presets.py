"""Presets of conf/cluster, as the command line has them. An edge: reads yaml with hydra."""

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from zbench import CONF
from zbench.describe.cluster import Cluster
from zbench.describe.worlds import World
from zbench.workloads.fill import Lengths


def cluster(name: str, num_nodes: int | None = None, device: str | None = None) -> Cluster:
    """Returns the preset `name`, with another number of nodes or another device of conf/cluster/device."""
    overrides = [f"+cluster={name}"]
    overrides += [] if num_nodes is None else [f"cluster.num_nodes={num_nodes}"]
    overrides += [] if device is None else [f"cluster/device={device}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=overrides)
    found: Cluster = instantiate(config.cluster, _convert_="all")
    return found


def worlds() -> list[str]:
    """Returns the names of the presets of conf/world."""
    return sorted(path.stem for path in (CONF / "world").glob("*.yaml"))


def world(name: str) -> World:
    """Returns the world of the preset `name`."""
    found: World = instantiate(OmegaConf.load(CONF / "world" / f"{name}.yaml"), _convert_="all")
    return found


def workload(name: str) -> Lengths:
    """Returns the length distribution of the preset `name`."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=[f"+workload={name}"])
    found: Lengths = instantiate(config.workload, seed=0, tokens=1, _convert_="all")
    return found
