"""A cluster and a model as plain values, in SI units and by the names of their fields, and back. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from zbench.describe.cluster import Cluster
from zbench.describe.curve import Curve
from zbench.describe.degrees import PLAIN, ShardDegrees, TransferBits
from zbench.describe.device import CURVES, Device
from zbench.describe.links import Domain
from zbench.describe.mask import Mask
from zbench.describe.model import AUTO, WHOLE, Model
from zbench.planned.plan_values import check_plan_keys, shown

_CLUSTER, _DEVICE, _DOMAIN, _MODEL = (
    tuple(one.name for one in fields(kind) if one.init) for kind in (Cluster, Device, Domain, Model)
)
# Fields that files of this format lack where they were written before there were such: they are left out where they
# are as usual, so that what is written then is what was written before.
_ROUTER = ("router", "router_dim", "router_temperature")
LATER_FIELDS = {
    Cluster: ("port_order", "host_adam_bandwidth"),
    Device: ("compute_slowdown", "multiprocessors", "matmul_shapes"),
    Model: (
        "mlp_chunk_tokens",
        "loss_chunk_tokens",
        "offload",
        "offload_layers",
        "offload_tokens",
        "optimizer_layers",
        "parameter_layers",
        "host_updates",
        "carried_layers",
        "shared_experts",
        "gate",
        "recompute_layers",
        "stage_layers",
        *_ROUTER,
        "head",
        "dense_layers",
        "dense_ffn_hidden",
    ),
}
# A model's key of before with the one value that there is today: what hides collectives is played.
_HIDDEN = ("overlap_collectives", True)
_LOSS, _LOSS_TOKENS = "loss", {"whole": WHOLE, "chunked": AUTO}  # a model's key of before, and what it is today


def cluster_values(cluster: Cluster) -> dict[str, Any]:
    """Returns a cluster's constants: bytes/s, seconds, bytes and FLOP/s; a curve is its rates by size.

    Raises:
        ValueError: it is of a class of one's own, which a file cannot hold.
    """
    _check_type("cluster", cluster, Cluster)
    _check_type("cluster.device", cluster.device, Device)
    device: dict[str, Any] = {name: getattr(cluster.device, name) for name in _DEVICE}
    device |= {name: _curve_values(device[name]) for name in CURVES}
    device["matmul_by_tokens"] = {name: _curve_values(one) for name, one in device["matmul_by_tokens"].items()}
    domains = [{name: getattr(one, name) for name in _DOMAIN} for one in cluster.domains]
    values = {name: getattr(cluster, name) for name in _CLUSTER}
    return _without_usual(values, Cluster) | {"device": _without_usual(device, Device), "domains": domains}


def cluster_of(values: Any) -> Cluster:
    """Returns the cluster that `cluster_values` wrote.

    Raises:
        ValueError: something is missing, unknown, or no such constant.
    """
    values = _with_usual(values, Cluster, _CLUSTER, "cluster")
    device = _with_usual(values["device"], Device, _DEVICE, "cluster.device")
    if not isinstance(values["domains"], list):
        raise ValueError(f"cluster.domains is {shown(values['domains'])}; it has to be a list of domains")
    for number, one in enumerate(values["domains"]):
        check_plan_keys(one, _DOMAIN, f"cluster.domains[{number}]")
    try:
        domains = tuple(Domain(**one) for one in values["domains"])
        return Cluster(**{**values, "device": Device(**device), "domains": domains})
    except (TypeError, AttributeError) as error:
        raise ValueError(f"cluster has a constant of a type that it cannot be: {error}") from error


def model_values(model: Model) -> dict[str, Any]:
    """Returns a model's sizes and settings; its mask in words (zbench.describe.mask), degrees of sharding by name.

    Raises:
        ValueError: it is of a class of one's own, which a file cannot hold.
    """
    _check_type("model", model, Model)
    values = {name: getattr(model, name) for name in _MODEL} | {"mask": str(model.mask)}
    if isinstance(model.sharding, ShardDegrees):
        values["sharding"] = asdict(model.sharding)
    return _without_usual(values, Model)


def model_of(values: Any) -> Model:
    """Returns the model that `model_values` wrote.

    Raises:
        ValueError: something is missing, unknown, or no such size.
    """
    if isinstance(values, Mapping) and values.get(_LOSS) in _LOSS_TOKENS:
        values = {**values, "loss_chunk_tokens": _LOSS_TOKENS[values[_LOSS]]}
        del values[_LOSS]
    if isinstance(values, Mapping) and values.get(_HIDDEN[0]) is _HIDDEN[1]:
        values = {name: value for name, value in values.items() if name != _HIDDEN[0]}
    values = _with_usual(values, Model, _MODEL, "model")
    sharding = values["sharding"]
    try:
        if isinstance(sharding, Mapping):
            bits = TransferBits(**sharding["bits"]) if "bits" in sharding else PLAIN  # files of before have none
            sharding = ShardDegrees(**{**sharding, "bits": bits})
        return Model(**{**values, "mask": Mask.of(values["mask"]), "sharding": sharding})
    except TypeError as error:
        raise ValueError(f"model has a size of a type that it cannot be: {error}") from error


def _usual(kind: type) -> dict[str, Any]:
    """Returns the defaults of the fields that came later."""
    return {one.name: one.default for one in fields(kind) if one.name in LATER_FIELDS[kind]}


def _without_usual(values: dict[str, Any], kind: type) -> dict[str, Any]:
    usual = _usual(kind)
    return {name: value for name, value in values.items() if name not in usual or value != usual[name]}


def _with_usual(values: Any, kind: type, names: Sequence[str], where: str) -> dict[str, Any]:
    """Returns values with the defaults of those that came later; refuses what is missing or unknown otherwise."""
    found = {**_usual(kind), **values} if isinstance(values, Mapping) else values
    check_plan_keys(found, names, where)
    return dict(found)


def _curve_values(curve: Curve | None) -> Mapping[str, float] | None:
    if curve is None:
        return None
    return {repr(float(size)): rate for size, rate in zip(curve.sizes, curve.rates, strict=True)}


def _check_type(field: str, value: object, kind: type) -> None:
    if type(value) is not kind:
        found = type(value)
        raise ValueError(
            f"{field} is a {found.__module__}.{found.__qualname__}; a plan file holds a "
            f"{kind.__module__}.{kind.__qualname__}, which other programs can make again"
        )
