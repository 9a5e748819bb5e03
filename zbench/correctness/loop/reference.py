"""A policy and a critic in one process: whole weights, every token by a forward of the whole sequence."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from zbench.correctness.loop.cases import GROUP, LIMIT, MORE, POLICY, PROMPTS, SHORT_ROUNDS, prompts_of
from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.rollouts.experience import Rollout
from zbench.runtime.kernels.elementwise import NORM_EPSILON
from zbench.runtime.rollouts.sampling import END, generator_of, likeliest, sampled
from zbench.runtime.stepping.weights import OF_NO_LAYER
from zbench.runtime.training.transformer import ROPE_BASE


def policy_logits(weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Returns the logits of every token of a sequence, [tokens, words]."""
    return last_states(POLICY, weights, tokens) @ weights["wh"].T


def last_states(model: Model, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Returns what a head reads of every token of a sequence, [tokens, hidden]."""
    x = weights["we"][tokens]
    at = torch.arange(len(tokens), dtype=torch.float64)
    later = torch.ones(len(tokens), len(tokens)).triu(1).bool()
    for layer in range(len(weights["wq"])):
        own = {name: value[layer] for name, value in weights.items() if name not in OF_NO_LAYER}
        n = _normed(x) * own["g1"]
        q = _turned(torch.einsum("tc,hdc->htd", n, own["wq"]), at)
        k, v = torch.einsum("tc,gkdc->kgtd", n, own["wkv"])
        share = model.num_heads // model.num_kv_heads
        k, v = (one.repeat_interleave(share, 0) for one in (_turned(k, at), v))
        scores = (q @ k.transpose(1, 2) / model.head_dim**0.5).masked_fill(later, -torch.inf)
        x = x + torch.einsum("htd,hdc->tc", scores.softmax(2) @ v, own["wo"])
        gate, up = torch.einsum("tc,kfc->ktf", _normed(x) * own["g2"], own["wz"])
        x = x + (gate * gate.sigmoid() * up) @ own["wd"]
    return _normed(x) * weights["gl"]


def _normed(x: Tensor) -> Tensor:
    return x / ((x * x).mean(1, keepdim=True) + NORM_EPSILON).sqrt()


def _turned(x: Tensor, at: Tensor) -> Tensor:
    """Turns neighbours of x [heads, t, d] by their positions."""
    angles = at[:, None] * ROPE_BASE ** (-torch.arange(0, x.shape[2], 2, dtype=torch.float64) / x.shape[2])
    one, other = x[..., ::2], x[..., 1::2]
    turned = one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()
    return torch.stack(turned, 3).flatten(2)


def generated_alone(
    weights: Mapping[str, Tensor], prompt: Ints, rng: np.random.Generator | None, limit: int
) -> Rollout:
    """Returns a response to a prompt, every token by a forward of all before it. rng: that it is drawn with; None: the
    likeliest ones. limit: of its tokens."""
    tokens = torch.from_numpy(prompt)
    before: list[float] = []
    while len(before) < limit and (not before or tokens[-1] != END):
        logits = policy_logits(weights, tokens)[-1]
        token, likelihood = likeliest(logits) if rng is None else sampled(logits, rng)
        tokens, before = torch.cat([tokens, torch.tensor([token])]), [*before, likelihood]
    return Rollout(tokens.numpy(), len(prompt), np.array(before))


def generated_batch(
    tail: bool, weights: Mapping[str, Tensor], drawn: tuple[int, int], left: Sequence[Ints]
) -> tuple[list[Rollout], list[Ints], int]:
    """Returns the rollouts of an iteration, the prompts that are left to a long round, and tokens of responses that
    were given up. tail: whether batches are tail batches; drawn: seed and iteration; left: the prompts left so far."""
    is_short = tail and drawn[1] % (SHORT_ROUNDS + 1) < SHORT_ROUNDS
    prompts = list(left) if tail and not is_short else prompts_of(*drawn, PROMPTS + MORE * is_short)
    every = [generated_alone(weights, one, generator_of(*drawn, at), LIMIT) for at, one in enumerate(prompts)]
    if not is_short:
        return every, [], 0
    lengths = np.array([len(one.response) for one in every]).reshape(-1, GROUP)
    order = np.argsort(lengths.max(1), kind="stable")  # by the pass in which the last response to a prompt ends
    kept, others = np.sort(order[:PROMPTS]), np.sort(order[PROMPTS:])
    given_up = np.minimum(lengths[others], lengths[kept].max()).sum()
    rollouts, more = ([at * GROUP + one for at in some for one in range(GROUP)] for some in (kept, others))
    return [every[at] for at in rollouts], [*left, *(prompts[at] for at in more)], int(given_up)
