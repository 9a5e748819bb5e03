"""The dense reference of executed steps: the network of the torch executor, in one process, by the names of a step.

That of a model with experts, whose choices are given, is zbench.correctness.steps.dense_experts. Loss, gradients and
updated parameters are those of torch's autograd and torch's fused AdamW.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from zbench.correctness.steps.dense_experts import OUTSIDE, expert_step
from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.runtime.job.job import AdamW
from zbench.runtime.training.dense import dense_loss


@dataclass(frozen=True)
class DenseStep:
    """A step in one process. loss: the sum over all tokens; gradients: of it, by name, of all layers in one tensor;
    after: parameters after one update."""

    loss: float
    gradients: Mapping[str, Tensor]
    after: Mapping[str, Tensor]


def drawn_weights(model: Model, seed: int) -> dict[str, Tensor]:
    """Draws parameters by the names of a step, whole, float64: large enough that attention and logits are uneven."""
    h, d, f, v, c = model.num_heads, model.head_dim, model.ffn_hidden, model.vocab, model.hidden
    experts = model.num_experts
    shapes = {
        "g1": (c,), "wq": (h, d, c), "wkv": (model.num_kv_heads, 2, d, c), "wo": (h, d, c), "g2": (c,),
        "we": (v, c), "gl": (c,),
    }  # fmt: skip
    if not model.tied_embeddings:
        shapes |= {"wh": (v, c)}
    if experts > 1:
        shapes |= {"wr": (experts, c), "ez": (experts, 2, f, c), "ed": (experts, f, c)}
    else:
        shapes |= {"wz": (2, f, c), "wd": (f, c)}
    found = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng([seed, *name.encode()])
        value = rng.standard_normal(shape if name in OUTSIDE else (model.num_layers, *shape))
        found[name] = torch.from_numpy(1 + 0.1 * value if name[0] == "g" else value / c**0.5)
    return found


def dense_step(
    model: Model, weights: Mapping[str, Tensor], sequences: Sequence[Ints], routes: Sequence[Ints]
) -> DenseStep:
    """Returns a step of whole sequences, in float64 whatever the model's dtype; the target of a sequence's last token
    is token 0. routes: the experts of their tokens, of a model that has some."""
    num_tokens = sum(len(one) for one in sequences)
    if model.num_experts > 1:
        total, gradients = expert_step(model, weights, sequences, routes)
        updated = {
            name: _updated(value, gradients[name] / num_tokens)
            if name in OUTSIDE
            else torch.stack([_updated(*one) for one in zip(value, gradients[name] / num_tokens, strict=True)])
            for name, value in weights.items()
        }
        return DenseStep(total, gradients, updated)
    plain = replace(model, recompute="none", element_bytes=8)
    named = network_weights(model, weights)
    loss, gradients = dense_loss(plain, named, sequences)
    after = {name: _updated(value, gradients[name]) for name, value in named.items()}
    summed = {name: value * num_tokens for name, value in gradients.items()}
    return DenseStep(loss * num_tokens, _by_step(model, summed), _by_step(model, after))


def _updated(value: Tensor, gradient: Tensor) -> Tensor:
    """Returns a parameter after the first update, by the kernel of torch's fused AdamW: its optimizer class would take
    seconds to import torch's compiler."""
    of, found = AdamW(), value.clone()
    torch._fused_adamw_(
        [found],
        [gradient],
        [torch.zeros_like(found)],
        [torch.zeros_like(found)],
        [],
        [torch.ones(())],
        lr=of.lr,
        beta1=of.beta1,
        beta2=of.beta2,
        weight_decay=of.weight_decay if found.ndim > 1 else 0.0,
        eps=of.epsilon,
        amsgrad=False,
        maximize=False,
    )
    return found


def network_weights(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a step's parameters by the names of the torch executor's network, copies."""
    found = {"embedding": weights["we"], "norm": weights["gl"]}
    if not model.tied_embeddings:
        found["head"] = weights["wh"]
    for layer in range(model.num_layers):
        one = {name: value[layer] for name, value in weights.items() if name not in OUTSIDE}
        keys, values = one["wkv"].unbind(1)
        found |= {
            f"layers.{layer}.attention_norm": one["g1"],
            f"layers.{layer}.qkv": torch.cat([x.flatten(0, 1) for x in (one["wq"], keys, values)]),
            f"layers.{layer}.out": one["wo"].flatten(0, 1).T,
            f"layers.{layer}.ffn_norm": one["g2"],
            f"layers.{layer}.gate_up": one["wz"].flatten(0, 1),
            f"layers.{layer}.down": one["wd"].T,
        }
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in found.items()}


def _by_step(model: Model, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns parameters, or their gradients, by the names of a step."""
    layers: dict[str, list[Tensor]] = {}
    h, g, d = model.num_heads, model.num_kv_heads, model.head_dim
    for layer in range(model.num_layers):
        of = {name.rpartition(".")[2]: value for name, value in named.items() if name.startswith(f"layers.{layer}.")}
        q, k, v = (x.unflatten(0, (-1, d)) for x in of["qkv"].split((h * d, g * d, g * d)))
        one = {
            "g1": of["attention_norm"], "wq": q, "wkv": torch.stack((k, v), 1), "wo": of["out"].T.unflatten(0, (h, d)),
            "g2": of["ffn_norm"], "wz": of["gate_up"].unflatten(0, (2, -1)), "wd": of["down"].T,
        }  # fmt: skip
        for name, value in one.items():
            layers.setdefault(name, []).append(value)
    stacked = {name: torch.stack(values) for name, values in layers.items()}
    head = {} if model.tied_embeddings else {"wh": named["head"]}
    return {**stacked, "we": named["embedding"], "gl": named["norm"], **head}
