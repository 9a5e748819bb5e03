"""The loop in one process: whole weights, every token by a forward of the whole sequence, gradients by torch's
autograd, updates by its fused AdamW. Prompts, rewards and how tokens are drawn are those of what it is compared to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zbench.correctness.loop.cases import (
    GROUP,
    ITERATIONS,
    LIMIT,
    POLICY,
    RATE,
    UPDATES,
    AloneReport,
    prompts_of,
    rewards_of,
)
from zbench.describe.arrays import Ints
from zbench.rollouts.grpo import CLIP, Rollout, group_advantages
from zbench.runtime.job.job import AdamW
from zbench.runtime.kernels.elementwise import NORM_EPSILON
from zbench.runtime.rollouts.sampling import END, generator_of, sampled
from zbench.runtime.training.transformer import ROPE_BASE


@dataclass(frozen=True)
class AloneIteration(AloneReport):
    """An iteration in one process. weights: after it."""

    weights: Mapping[str, Tensor]


def alone(weights: Mapping[str, Tensor], seed: int) -> list[AloneIteration]:
    """Runs the loop. weights: to begin with, whole, by the names of a step, of all layers in one tensor."""
    now = {name: value.clone() for name, value in weights.items()}
    optimizer, found = _Optimizer(now), list[AloneIteration]()
    for iteration in range(ITERATIONS):
        rollouts = [
            generated_alone(now, prompt, generator_of(seed, iteration, number), LIMIT)
            for number, prompt in enumerate(prompts_of(seed, iteration))
        ]
        losses, scales, clipped = list[float](), list[float](), 0
        for _ in range(UPDATES):
            leaves = {name: value.clone().requires_grad_() for name, value in now.items()}
            terms, outside = _losses(leaves, rollouts)
            loss = terms.sum() / len(terms)
            loss.backward()
            now = optimizer.updated(now, {name: value.grad for name, value in leaves.items() if value.grad is not None})
            losses.append(float(loss.detach()))
            scales.append(float(terms.detach().abs().mean()))
            clipped += outside
        found.append(AloneIteration([one.tokens for one in rollouts], losses, scales, clipped, now))
    return found


def _losses(weights: Mapping[str, Tensor], rollouts: Sequence[Rollout]) -> tuple[Tensor, int]:
    """Returns the losses of the tokens of all responses, and how many of their ratios are clipped."""
    found, outside = [], 0
    for one, advantage in zip(rollouts, group_advantages(rewards_of(rollouts), GROUP).tolist(), strict=True):
        tokens = torch.from_numpy(one.tokens)
        logs = policy_logits(weights, tokens).log_softmax(1)[one.prompt - 1 : -1]
        taken = logs.gather(1, tokens[one.prompt :, None])[:, 0]
        ratio = (taken + torch.from_numpy(one.before)).exp()
        bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
        found.append(-torch.minimum(ratio * advantage, bounded * advantage))
        outside += int((ratio * advantage > bounded * advantage).sum())
    return torch.cat(found), outside


def policy_logits(weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Returns the logits of every token of a sequence, [tokens, words]."""
    x = weights["we"][tokens]
    at = torch.arange(len(tokens), dtype=torch.float64)
    later = torch.ones(len(tokens), len(tokens)).triu(1).bool()
    for layer in range(len(weights["wq"])):
        own = {name: value[layer] for name, value in weights.items() if name not in ("we", "gl", "wh")}
        n = _normed(x) * own["g1"]
        q = _turned(torch.einsum("tc,hdc->htd", n, own["wq"]), at)
        k, v = torch.einsum("tc,gkdc->kgtd", n, own["wkv"])
        share = POLICY.num_heads // POLICY.num_kv_heads
        k, v = (one.repeat_interleave(share, 0) for one in (_turned(k, at), v))
        scores = (q @ k.transpose(1, 2) / POLICY.head_dim**0.5).masked_fill(later, -torch.inf)
        x = x + torch.einsum("htd,hdc->tc", scores.softmax(2) @ v, own["wo"])
        gate, up = torch.einsum("tc,kfc->ktf", _normed(x) * own["g2"], own["wz"])
        x = x + (gate * gate.sigmoid() * up) @ own["wd"]
    return (_normed(x) * weights["gl"]) @ weights["wh"].T


def _normed(x: Tensor) -> Tensor:
    return x / ((x * x).mean(1, keepdim=True) + NORM_EPSILON).sqrt()


def _turned(x: Tensor, at: Tensor) -> Tensor:
    """Turns neighbours of x [heads, t, d] by their positions."""
    angles = at[:, None] * ROPE_BASE ** (-torch.arange(0, x.shape[2], 2, dtype=torch.float64) / x.shape[2])
    one, other = x[..., ::2], x[..., 1::2]
    turned = one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()
    return torch.stack(turned, 3).flatten(2)


def generated_alone(weights: Mapping[str, Tensor], prompt: Ints, rng: np.random.Generator, limit: int) -> Rollout:
    """Returns a response to a prompt, every token by a forward of all before it. limit: of its tokens."""
    tokens = torch.from_numpy(prompt)
    before: list[float] = []
    while len(before) < limit and (not before or tokens[-1] != END):
        token, likelihood = sampled(policy_logits(weights, tokens)[-1], rng)
        tokens, before = torch.cat([tokens, torch.tensor([token])]), [*before, likelihood]
    return Rollout(tokens.numpy(), len(prompt), np.array(before))


class _Optimizer:
    """AdamW by torch's fused kernel: its optimizer class would take seconds to import torch's compiler."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.of, self.steps = AdamW(lr=RATE), torch.zeros(())
        self.first, self.second = ({name: 0 * value for name, value in weights.items()} for _ in range(2))

    def updated(self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights after another update."""
        self.steps = self.steps + 1
        found = {name: value.clone() for name, value in weights.items()}
        for name, value in found.items():
            torch._fused_adamw_(
                [value],
                [gradients[name]],
                [self.first[name]],
                [self.second[name]],
                [],
                [self.steps.clone()],
                lr=self.of.lr,
                beta1=self.of.beta1,
                beta2=self.of.beta2,
                weight_decay=0.0 if name[0] == "g" else self.of.weight_decay,
                eps=self.of.epsilon,
                amsgrad=False,
                maximize=False,
            )
        return found
