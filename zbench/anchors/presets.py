"""Presets of conf/cluster and conf/model, as the command line has them. An edge: reads yaml with hydra."""

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from zbench.cluster import Cluster
from zbench.model import Model

_CONF = Path(__file__).resolve().parents[2] / "conf"


def cluster(name: str, num_nodes: int | None = None, device: str | None = None) -> Cluster:
    """The preset `name`, with another number of nodes or another device of conf/cluster/device."""
    overrides = [f"+cluster={name}"]
    overrides += [] if num_nodes is None else [f"cluster.num_nodes={num_nodes}"]
    overrides += [] if device is None else [f"cluster/device={device}"]
    found: Cluster = instantiate(_compose(overrides).cluster, _convert_="all")
    return found


def model(name: str, **changes: str) -> Model:
    """The preset `name` with some of its fields changed."""
    overrides = [f"+model={name}", *(f"model.{field}={value}" for field, value in changes.items())]
    found: Model = instantiate(_compose(overrides).model, _convert_="all")
    return found


def _compose(overrides: list[str]) -> Any:
    with initialize_config_dir(str(_CONF), version_base="1.3"):
        return compose(overrides=overrides)
