"""The dense reference of executed steps, with its update: loss and gradients as zbench.runtime.stepping.dense has them,
parameters after one step of torch's fused AdamW."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Ints
from zbench.describe.layers.model_parameters import VALUE, WORDS
from zbench.describe.model import COSINE, Model
from zbench.runtime.job.job import AdamW
from zbench.runtime.stepping.dense import DenseGradients, dense_gradients
from zbench.runtime.stepping.weights import OF_NO_LAYER

USUAL = AdamW()
# Where little of a gradient is left, as quantisation leaves zeros, its rounding is divided by epsilon: with the usual
# one a parameter differs by 3e4 times as much as its gradient, with this one by no more.
SMOOTH = AdamW(epsilon=USUAL.lr)


@dataclass(frozen=True)
class DenseStep(DenseGradients):
    """A step in one process. after: parameters after one update, as gradients are. begun, left: of a step that begins
    with gradients of the one before, these and those that it leaves for the next."""

    after: Mapping[str, Tensor]
    begun: Mapping[str, Tensor] = field(default_factory=dict)
    left: Mapping[str, Tensor] = field(default_factory=dict)


def drawn_weights(model: Model, seed: int) -> dict[str, Tensor]:
    """Draws parameters by the names of a step, whole, float64: large enough that attention and logits are uneven. Of
    tied embeddings there is the table of a head on a stage of its own as well."""
    h, d, f, v, c = model.num_heads, model.head_dim, model.ffn_hidden, model.vocab, model.hidden
    experts = model.num_experts
    shapes = {
        "g1": (c,), "wq": (h, d, c), "wkv": (model.num_kv_heads, 2, d, c), "wo": (h, d, c), "g2": (c,),
        "we": (v, c), "gl": (c,),
    }  # fmt: skip
    if model.kind_of_head == WORDS:
        shapes |= {"wh": (v, c)}
    if model.kind_of_head == VALUE:
        shapes |= {"vh": (1, c)}
    if experts > 1:
        shapes |= {"ez": (experts, 2, f, c), "ed": (experts, f, c)}
        cosine = {"wp": (model.router_dim, c), "wc": (experts, model.router_dim)}
        shapes |= cosine if model.router == COSINE else {"wr": (experts, c)}
        shared = model.shared_experts * f
        shapes |= {"wzs": (2, shared, c), "wds": (shared, c)} if shared else {}
        dense = model.dense_ffn_hidden
        shapes |= {"wzf": (2, dense, c), "wdf": (dense, c)} if dense else {}
    else:
        shapes |= {"wz": (2, f, c), "wd": (f, c)}
    found = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng([seed, *name.encode()])
        value = rng.standard_normal(shape if name in OF_NO_LAYER else (model.num_layers, *shape))
        found[name] = torch.from_numpy(1 + 0.1 * value if name[0] == "g" else value / c**0.5)
    return found | ({"wh": found["we"].clone()} if model.tied_embeddings else {})


def dense_step(
    model: Model, weights: Mapping[str, Tensor], sequences: Sequence[Ints], routes: Sequence[Ints]
) -> DenseStep:
    """Returns a step of whole sequences; arguments as of zbench.runtime.stepping.dense.dense_gradients."""
    num_tokens = sum(len(one) for one in sequences)
    found = dense_gradients(model, weights, sequences, routes)
    after = updated(weights, found.gradients, num_tokens)
    return DenseStep(found.loss, found.gradients, after, router_logits=found.router_logits)


def carried_step(
    model: Model,
    weights: Mapping[str, Tensor],
    sequences: Sequence[Ints],
    routes: Sequence[Ints],
    carried: Mapping[str, Sequence[int]],
) -> DenseStep:
    """Returns a step that updates some layers' parameters first, by gradients of the same sequences with the parameters
    before. carried: by parameter the layers, 0 of one that is of no layer."""
    before = dense_step(model, weights, sequences, routes)
    begun = {name: value.clone() for name, value in weights.items()}
    for name, layers in carried.items():
        for layer in [...] if name in OF_NO_LAYER else layers:
            begun[name][layer] = before.after[name][layer]
    found = dense_step(model, begun, sequences, routes)
    gradients, after = ({name: one.clone() for name, one in of.items()} for of in (found.gradients, found.after))
    for name, layers in carried.items():
        for layer in [...] if name in OF_NO_LAYER else layers:
            gradients[name][layer], after[name][layer] = before.gradients[name][layer], begun[name][layer]
    return DenseStep(found.loss, gradients, after, begun=before.gradients, left=found.gradients)


def updated(
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], num_tokens: int, of: AdamW = USUAL
) -> dict[str, Tensor]:
    """Returns parameters after one update. gradients: of the sum over all tokens."""
    return {
        name: _updated(value, gradients[name] / num_tokens, of)
        if name in OF_NO_LAYER
        else torch.stack([_updated(*one, of) for one in zip(value, gradients[name] / num_tokens, strict=True)])
        for name, value in weights.items()
    }


def _updated(value: Tensor, gradient: Tensor, of: AdamW) -> Tensor:
    """Returns a parameter after the first update, by the kernel of torch's fused AdamW: its optimizer class would take
    seconds to import torch's compiler."""
    found = value.clone()
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
