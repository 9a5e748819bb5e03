"""Checks numbers that people write in yamls and on the command line: those that are quantities carry their unit. An
edge.

Inside the program numbers are SI, so the classes take them as they are; a record may hold them too. Only where a
person's text comes in, a number without a unit is a mistake: nic_bandwidth=400 would be 400 bytes/s.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from zbench.describe.cluster import CLUSTER_KINDS
from zbench.describe.device import CURVES, DEVICE_KINDS
from zbench.describe.links import DOMAIN_KINDS
from zbench.describe.units import check_unit


def check_units(cluster: Any, world: Any = None, job: Any = None) -> None:
    """Checks a composed configuration's `cluster`, its domains, its device and the device's curves, its `world` and its
    `job`.

    Raises:
        ValueError: a quantity is a number without a unit; the message names its key and shows how to write it.
    """
    for key, value, kind in _quantities(cluster):
        check_unit(key, value, kind)
    check_unit("world.nics_above", _mapping(world).get("nics_above"), "bytes/s")
    check_unit("job.host_kv", _mapping(job).get("host_kv"), "bytes")


def _quantities(cluster: Any) -> Iterator[tuple[str, Any, str]]:
    """Yields (key, value, kind) of everything in `cluster` that has a unit."""
    given = _mapping(cluster)
    device = _mapping(given.get("device"))
    yield from ((f"cluster.{name}", given.get(name), kind) for name, kind in CLUSTER_KINDS.items())
    for domain, of in _mapping(given.get("domains")).items():
        yield from ((f"cluster.domains.{domain}.{name}", _mapping(of).get(name), k) for name, k in DOMAIN_KINDS.items())
    yield from ((f"cluster.device.{name}", device.get(name), kind) for name, kind in DEVICE_KINDS.items())
    curves = {name: device.get(name) for name in CURVES}
    curves |= {f"matmul_by_tokens.{name}": curve for name, curve in _mapping(device.get("matmul_by_tokens")).items()}
    for name, curve in curves.items():
        yield from ((f"cluster.device.{name}.{size}", rate, "FLOP/s") for size, rate in _mapping(curve).items())


def _mapping(node: Any) -> Mapping[Any, Any]:
    """Returns plain keys and values; none of what is no mapping, which the classes refuse themselves."""
    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    return plain if isinstance(plain, Mapping) else {}
