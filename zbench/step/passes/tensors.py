"""The tensors that a step's formulas name: their axes, natures, sizes and homes."""

from collections.abc import Mapping, Sequence

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.step.formula import Formula, Reference
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.zero import GRADIENT_BYTES, LAYER_WEIGHTS, MOMENT_BYTES, OTHER_WEIGHTS, ShardedParameters
from zbench.step.tensor import Tensor

_NATURE = {"=": "copy", "+=": "sum", ":=": "state"}
_OUTSIDE = ("w", "c", "l", "dc", "loss")  # tensors of what is before and after the layers


def tensors_of(
    model: Model,
    formulas: Sequence[Formula],
    parts: PlanParts,
    parameters: ShardedParameters,
    merges: Mapping[str, str],
) -> tuple[Tensor, ...]:
    """Returns the tensors that formulas make, and the parameters. merges: of sums that are not added."""
    weights = (*LAYER_WEIGHTS, *OTHER_WEIGHTS)
    found = {name: one for weight in weights for name, one in _parameter(model, weight, parameters).items()}
    tokens = parts.home
    for formula in formulas:
        for result in formula.results:
            name = result.tensor
            if name in found:
                continue
            axes = tuple(axis.map or {"s": "t"}.get(axis.slot, axis.slot) for axis in result.axes)
            home = tokens if axes == ("t",) else _sliced_home(axes, parts) if axes else np.zeros(1, np.int64)
            nature = _NATURE[formula.action]
            merge = merges.get(name.rstrip("~"), "add") if nature == "sum" else ""
            found[name] = Tensor(name, axes, nature, merge, _layers(result), _unit(model, name), home)
    return tuple(found.values())


def _layers(result: Reference) -> str:
    if result.tensor in ("x", "dx"):
        return "border"
    return "none" if result.tensor in _OUTSIDE else "layer"


def _sliced_home(axes: tuple[str, ...], parts: PlanParts) -> Ints:
    """Returns the home of the cells of a tensor of tokens and slices: in the tokens' group, the GPU with the slice."""
    share = {one.fine: one.part for one in parts.maps() if one.coarse == "j"}[axes[1]]
    group = parts.home // parts.degree
    return (group[:, None] * parts.degree + share).reshape(-1)


def _parameter(model: Model, weight: str, parameters: ShardedParameters) -> dict[str, Tensor]:
    """Returns a parameter, its gradient and its optimizer state."""
    axes, home = parameters.axes(weight), parameters.home(weight)
    layers = "layer" if weight in LAYER_WEIGHTS else "none"
    size = model.element_bytes if axes else model.element_bytes * model.hidden
    moments, summed = (size if axes else size * model.hidden for size in (MOMENT_BYTES, GRADIENT_BYTES))
    return {
        weight: Tensor(weight, axes, "state", "", layers, size, home),
        f"d{weight}": Tensor(f"d{weight}", axes, "sum", "add", layers, summed, home),
        f"s{weight}": Tensor(f"s{weight}", axes, "state", "", layers, moments, home),
    }


def _unit(model: Model, name: str) -> int:
    """Returns the bytes of a tensor for one token, and one head, column or word."""
    element, hidden, head = model.element_bytes, model.hidden, model.head_dim
    own = {
        "q": head * element, "dq": head * element, "do": head * element, "kv": 2 * head * element,
        "dkv": 2 * head * element, "o": head * element + model.lse_bytes, "e": 2 * model.lse_bytes, "z": 2 * element,
        "dz": 2 * element, "u": element, "du": element, "l": 2 * model.lse_bytes, "loss": model.lse_bytes,
    }  # fmt: skip
    return own.get(name.rstrip("~"), hidden * element)
