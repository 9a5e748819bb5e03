"""Parameters by the names of a step and by those of the network (zbench.runtime.training.transformer), which are the
same numbers in other shapes: q, k and v are one weight of the network, experts lie one below another. Of a model with
tied embeddings the network has no head's, and a step has one where the head is on a stage of its own: the table's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from zbench.describe.model import COSINE, Model
from zbench.runtime.training.transformer import Transformer
from zbench.step.passes.parameters.weights import weights_of_layers

OUTSIDE: Mapping[str, str] = {"we": "embedding", "gl": "norm", "wh": "head"}  # of no layer: their names in the network
OF_NO_LAYER = (*OUTSIDE, "vh")  # with a head of one value, which the network does not have
# Of a layer: by names of a step, those in the network.
_ATTENTION = {"g1": "attention_norm", "wq": "qkv", "wkv": "qkv", "wo": "out", "g2": "ffn_norm"}
_DENSE = _ATTENTION | {"wz": "gate_up", "wd": "down"}
_EXPERTS = _ATTENTION | {"wr": "router", "ez": "gate_up", "ed": "down"}
_SHARED = {"wzs": "shared_gate_up", "wds": "shared_down"}
_LEADING = {"wzf": "gate_up", "wdf": "down"}  # of dense layers before those with experts
_COSINE = {"wp": "router_projection", "wc": "router"}


@dataclass(frozen=True)
class InitialWeights:
    """The parameters that a run begins with: those of the torch executor's network with the same seed, drawn one at a
    time, whenever they are asked for, so that no process ever holds more than one whole parameter of others."""

    model: Model
    seed: int

    def __call__(self, name: str, layer: int) -> Tensor:
        """Returns a parameter by the name of a step. layer: 0 of one that is of no layer."""
        if name == "wh" and self.model.tied_embeddings:
            return self._network.draw(OUTSIDE["we"])
        if name in OUTSIDE:
            return self._network.draw(OUTSIDE[name])
        if name == "vh":
            return torch.zeros(1, self.model.hidden)  # so a critic begins with values of 0
        return step_weight(self.model, name, self._network.draw(f"layers.{layer}.{layer_names(self.model)[name]}"))

    @cached_property
    def _network(self) -> Transformer:
        return Transformer(self.model, self.seed, "meta")


def layer_names(model: Model) -> Mapping[str, str]:
    """Returns the network's names of a layer's parameters, by those of a step."""
    if model.num_experts == 1:
        return _DENSE
    every = _EXPERTS | _LEADING | (_SHARED if model.shared_experts else {})
    every |= _COSINE if model.router == COSINE else {}
    return {name: every[name] for name in weights_of_layers(model)}


def step_weight(model: Model, name: str, value: Tensor) -> Tensor:
    """Returns a layer's parameter of the network, or its gradient, as a step's `name`; a view where it can be."""
    h, g, d, experts = model.num_heads, model.num_kv_heads, model.head_dim, model.num_experts
    found = value
    match name:
        case "wq":
            found = value[: h * d].unflatten(0, (h, d))
        case "wkv":
            found = torch.stack([x.unflatten(0, (g, d)) for x in value[h * d :].chunk(2)], 1)
        case "wo":
            found = value.T.unflatten(0, (h, d))
        case "wz" | "wzs" | "wzf":
            found = value.unflatten(0, (2, -1))
        case "wd" | "wds" | "wdf":
            found = value.T
        case "ez":
            found = value.unflatten(0, (experts, 2, -1))
        case "ed":
            found = value.unflatten(0, (experts, -1)).transpose(1, 2)
    return found


def by_step(model: Model, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the network's parameters, or their gradients, by the names of a step; those of all layers in one tensor,
    [layers, ...]."""
    found = {name: named[of] for name, of in OUTSIDE.items() if of in named}
    for name, of in layer_names(model).items():
        every = [step_weight(model, name, named[f"layers.{layer}.{of}"]) for layer in range(model.num_layers)]
        found[name] = torch.stack(every)
    return found


def network_weights(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a step's parameters by the names of the network of a model without experts, copies."""
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in _of_network(model, weights)}


def _of_network(model: Model, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from ((of, weights[name]) for name, of in OUTSIDE.items() if name in weights)
    for layer in range(model.num_layers):
        one = {name: value[layer] for name, value in weights.items() if name not in OUTSIDE}
        keys, values = one["wkv"].unbind(1)
        yield f"layers.{layer}.attention_norm", one["g1"]
        yield f"layers.{layer}.qkv", torch.cat([x.flatten(0, 1) for x in (one["wq"], keys, values)])
        yield f"layers.{layer}.out", one["wo"].flatten(0, 1).T
        yield f"layers.{layer}.ffn_norm", one["g2"]
        yield f"layers.{layer}.gate_up", one["wz"].flatten(0, 1)
        yield f"layers.{layer}.down", one["wd"].T
