"""A cluster and a model as plain values, in SI units and by the names of their fields, and back. Pure."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from zbench.describe.cluster import CURVES, PLAN, Cluster, Device
from zbench.describe.curve import Curve
from zbench.describe.links import Domain
from zbench.describe.mask import Mask
from zbench.describe.model import Model
from zbench.planned.plan_values import check_plan_keys, shown

_CLUSTER, _DEVICE, _DOMAIN, _MODEL = (
    tuple(one.name for one in fields(kind) if one.init) for kind in (Cluster, Device, Domain, Model)
)


def cluster_values(cluster: Cluster) -> dict[str, Any]:
    """Returns all of a cluster's constants: bytes/s, seconds, bytes and FLOP/s; a curve is its rates by size.

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
    if cluster.port_order == PLAN:
        del values["port_order"]  # as files have it that were written before there was another
    return values | {"device": device, "domains": domains}


def cluster_of(values: Any, where: str) -> Cluster:
    """Returns the cluster that `cluster_values` wrote.

    Raises:
        ValueError: something is missing, unknown, or no such constant.
    """
    check_plan_keys({"port_order": PLAN, **values} if isinstance(values, Mapping) else values, _CLUSTER, where)
    check_plan_keys(values["device"], _DEVICE, f"{where}.device")
    if not isinstance(values["domains"], list):
        raise ValueError(f"{where}.domains is {shown(values['domains'])}; it has to be a list of domains")
    for number, one in enumerate(values["domains"]):
        check_plan_keys(one, _DOMAIN, f"{where}.domains[{number}]")
    try:
        domains = tuple(Domain(**one) for one in values["domains"])
        return Cluster(**{**values, "device": Device(**values["device"]), "domains": domains})
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{where} has a constant of a type that it cannot be: {error}") from error


def model_values(model: Model) -> dict[str, Any]:
    """Returns all of a model's sizes and settings; its mask in words (zbench.describe.mask).

    Raises:
        ValueError: it is of a class of one's own, which a file cannot hold.
    """
    _check_type("model", model, Model)
    return {name: getattr(model, name) for name in _MODEL} | {"mask": str(model.mask)}


def model_of(values: Any, where: str) -> Model:
    """Returns the model that `model_values` wrote.

    Raises:
        ValueError: something is missing, unknown, or no such size.
    """
    check_plan_keys(values, _MODEL, where)
    try:
        return Model(**{**values, "mask": Mask.of(values["mask"])})
    except TypeError as error:
        raise ValueError(f"{where} has a size of a type that it cannot be: {error}") from error


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
