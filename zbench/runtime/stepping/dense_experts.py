"""The dense reference of executed steps of a model with experts: one process, whole sequences, torch's autograd.

The experts of every token are given, as a step draws them or as its routers chose. All experts see all tokens, and
those that a token did not choose, or that have no room for it (~expert), have a share of 0: no row is sorted, sent or
left out, so nothing is shared with what runs steps but the conventions of the torch executor's network (norm, RoPE,
SwiGLU), which are written out once more.

Shapes: t tokens, c hidden, h heads, g kv heads, d their dimension, f columns of the feed-forward, x experts.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zbench.describe.arrays import Flags, Ints
from zbench.describe.model import LINEAR, SIGMOID, SOFTMAX_ALL, Model
from zbench.runtime.kernels.elementwise import NORM_EPSILON
from zbench.runtime.stepping.weights import OUTSIDE
from zbench.runtime.training.dense import attention
from zbench.runtime.training.transformer import rope

_IGNORED = -100  # the label of a token whose label does not count, as in torch


def expert_step(
    model: Model,
    weights: Mapping[str, Tensor],
    sequences: Sequence[Ints],
    routes: Sequence[Ints],
    tell: Callable[[str], None] = lambda place: None,
    logits: list[Tensor] | None = None,
    counts: Sequence[Flags] | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """Returns the loss, summed over all labels that count, and its gradients by the names of a step, of all layers in
    one tensor.

    routes: the experts of every token of every sequence, int64 [t, experts a token], or [layers, t, experts a token]
    where layers choose apart, of which those of dense layers are not read. The target of a sequence's last token is
    token 0. logits: gets those of each sequence's routers, [layers, t, x], zeros of dense layers. tell: is told of
    every sequence. counts: as of zbench.runtime.stepping.dense.dense_gradients.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    total = 0.0
    for number, (tokens, chosen) in enumerate(zip(sequences, routes, strict=True)):
        tell(f"a dense sequence of {len(tokens)} tokens")
        x, routers = leaves["we"][torch.from_numpy(tokens)], list[Tensor]()
        for layer in range(model.num_layers):
            of = {name: value[layer] for name, value in leaves.items() if name not in OUTSIDE}
            mine = chosen if chosen.ndim < 3 else chosen[layer]
            x = _layer(model, x, of, torch.from_numpy(mine), routers, layer < model.dense_layers)
        if logits is not None:
            logits.append(torch.stack(routers))
        labels = np.append(tokens[1:], 0)
        targets = torch.from_numpy(labels if counts is None else np.where(counts[number], labels, _IGNORED))
        words = _norm(x, leaves["gl"]) @ leaves["we" if model.tied_embeddings else "wh"].T
        loss = F.cross_entropy(words, targets, ignore_index=_IGNORED, reduction="sum")
        loss.backward()
        total += loss.item()
    return total, {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in leaves.items()}


def _layer(
    model: Model, x: Tensor, w: Mapping[str, Tensor], chosen: Tensor, routers: list[Tensor], dense: bool
) -> Tensor:
    """Returns the next layer's x. chosen: int64 [t, experts a token]. routers: gets the logits. dense: whether it is a
    dense layer before those with experts."""
    n = _norm(x, w["g1"])
    keys, values = w["wkv"].unbind(1)
    q, k = (_turned(torch.einsum("tc,hdc->thd", n, one)) for one in (w["wq"], keys))
    o = attention(0, q, k, torch.einsum("tc,gdc->tgd", n, values), mask=model.mask)
    y = x + torch.einsum("thd,hdc->tc", o, w["wo"])
    m = _norm(y, w["g2"])
    if dense:
        routers.append(torch.zeros(len(m), model.num_experts, dtype=m.dtype))  # as there is no router
        gate, up = torch.einsum("tc,kfc->ktf", m, w["wzf"]).unbind(0)
        return y + (F.silu(gate) * up) @ w["wdf"]
    logits = _logits(model, m, w)
    routers.append(logits.detach())
    every = torch.where(chosen < 0, ~chosen, chosen)
    share = torch.zeros_like(logits).scatter(1, every, _shares(model, logits, every) * (chosen >= 0))
    gate, up = torch.einsum("tc,xkfc->ktxf", m, w["ez"]).unbind(0)
    y = y + torch.einsum("tx,txf,xfc->tc", share, F.silu(gate) * up, w["ed"])
    if not model.shared_experts:
        return y
    gate, up = torch.einsum("tc,kfc->ktf", m, w["wzs"]).unbind(0)
    return y + (F.silu(gate) * up) @ w["wds"]


def _logits(model: Model, m: Tensor, w: Mapping[str, Tensor]) -> Tensor:
    """Returns the router's logits, [t, x]."""
    if model.router == LINEAR:
        return m @ w["wr"].T
    return F.cosine_similarity((m @ w["wp"].T)[:, None], w["wc"][None], dim=2) / model.router_temperature


def _shares(model: Model, logits: Tensor, chosen: Tensor) -> Tensor:
    """Returns the shares of the experts that tokens chose, [t, experts a token]."""
    if model.gate == SOFTMAX_ALL:
        return logits.softmax(1).gather(1, chosen)
    picked = logits.gather(1, chosen)
    return F.normalize(picked.sigmoid(), p=1, dim=1) if model.gate == SIGMOID else picked.softmax(1)


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + NORM_EPSILON) * gain


def _turned(x: Tensor) -> Tensor:
    """Turns the neighbours (2i, 2i + 1) of every head by the tokens' positions; x [t, heads, d]."""
    cos, sin = (one[:, None] for one in rope(torch.arange(len(x)), x.shape[2]))
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), 3).flatten(2)
