"""The tensors that a step's formulas name: their axes, natures, sizes and homes."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.describe.routing.room import SEAT_BYTES
from zbench.step.formula import Formula, Reference
from zbench.step.layers import COUNTS, EVERY_COUNT, GROUP_COUNTS, MERGE
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.router.seats import SEATS, RouterSeats
from zbench.step.tensor import Tensor

_NATURE = {"=": "copy", "+=": "sum", ":=": "state"}
_OUTSIDE = ("w", "c", "l", "val", "dc", "loss")  # tensors of what is before and after the layers


def tensors_of(
    model: Model,
    formulas: Sequence[Formula],
    parts: PlanParts,
    parameters: ShardedParameters,
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Tensor, ...]:
    """Returns the tensors that formulas make, and the parameters. kinds: of layers, of what layers of one kind alone
    make."""
    found = dict(parameters.tensors)
    homes: dict[tuple[str, ...], Ints] = {("t",): parts.home}
    units = _units(model, parts.experts.tensor_parallel)
    for formula in formulas:
        for result in formula.results:
            name = result.tensor
            if name in found:
                continue
            axes = tuple(axis.map or {"s": "t"}.get(axis.slot, axis.slot) for axis in result.axes)
            if axes not in homes:
                homes[axes] = _sliced_home(axes, parts) if axes else np.zeros(1, np.int64)
            nature = _NATURE[formula.action]
            merge = MERGE.get(name.rstrip("~"), "add") if nature == "sum" else ""
            amounts, counted_by = parts.routed(axes), ""
            if amounts is not None and parts.experts.counted:
                amounts, counted_by = _counted(name, axes, amounts, parts)
            size = _unit(units, model, name)
            layers = kinds.get(name) or _layers(result)
            found[name] = Tensor(name, axes, nature, merge, layers, size, homes[axes], 0, amounts, counted_by)
    return tuple(found.values())


def _counted(name: str, axes: tuple[str, ...], amounts: Ints, parts: PlanParts) -> tuple[Ints, str]:
    """Returns the amounts of a tensor of seats, where those with a token are counted, and by what its are."""
    if name in EVERY_COUNT:  # a number for each expert of the slice
        return np.full_like(amounts, parts.experts.cut(parts.model.num_experts).each), ""
    return amounts, "" if name.rstrip("~") == SEATS else GROUP_COUNTS if axes[1] == "n" else COUNTS


def _layers(result: Reference) -> str:
    if result.tensor in ("x", "dx"):
        return "border"
    return "none" if result.tensor in _OUTSIDE else "layer"


def _sliced_home(axes: tuple[str, ...], parts: PlanParts) -> Ints:
    """Returns the home of the cells of a tensor of tokens and slices: in the tokens' group, the GPU with the slice."""
    if len(axes) == 1:
        assert isinstance(parts.routing, RouterSeats), "tokens of GPUs together are of a router that chooses"
        return parts.routing.home
    if axes[1] in ("e", "k", "n"):
        return parts.homes_of_experts(axes[1])
    share = {one.fine: one.part for one in parts.maps if one.coarse == "j"}[axes[1]] // parts.slices_of_gpu
    group = parts.home // parts.degree
    return (group[:, None] * parts.degree + share).reshape(-1)


def _unit(units: Mapping[str, int], model: Model, name: str) -> int:
    """Returns the bytes of a tensor for one token, and one head, column, word or part of an expert. units: of tensors
    that have other than a hidden state's."""
    gradient, name = name[0] == "d", name.rstrip("~").removeprefix("d")
    own = units.get(name, model.hidden * model.element_bytes)
    return own + (model.lse_bytes if name == "o" and not gradient else 0)


@lru_cache(maxsize=16)
def _units(model: Model, expert_gpus: int) -> Mapping[str, int]:
    """Returns the bytes of tensors that have other than a hidden state's, as of `_unit`. expert_gpus: that each expert
    is cut over."""
    element, head = model.element_bytes, model.head_dim
    wide = model.ffn_hidden // expert_gpus if model.num_experts > 1 else 1
    return MappingProxyType({
        "q": head * element, "o": head * element, "kv": 2 * head * element, "e": 2 * model.lse_bytes,
        "z": 2 * wide * element, "u": wide * element, "zs": 2 * element, "us": element,
        "zf": 2 * element, "uf": element,
        "r": model.num_experts * element, "rh": model.router_dim * element,
        "p": model.experts_per_token * model.lse_bytes, "np": model.experts_per_token * model.lse_bytes,
        "ra": model.num_experts * element, SEATS: SEAT_BYTES, **dict.fromkeys(EVERY_COUNT, SEAT_BYTES),
        "pa": model.lse_bytes, "pn": model.lse_bytes,
        "l": 2 * model.lse_bytes, "val": model.lse_bytes, "loss": model.lse_bytes,
    })  # fmt: skip
