"""The loop in one process: gradients by torch's autograd, updates by its fused AdamW, advantages as sums written out.

Prompts, rewards, and how tokens are drawn and updates divided, are those of what it is compared to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zbench.correctness.loop.cases import (
    CRITIC,
    GROUP,
    LIMIT,
    RATE,
    AloneReport,
    Loop,
    cost_seed,
    reward_seed,
    rewards_of,
)
from zbench.correctness.loop.reference import generated_alone, generated_batch, last_states, policy_logits
from zbench.correctness.steps.dense import drawn_weights
from zbench.describe.arrays import Ints
from zbench.describe.job import ONE_STEP_OFF
from zbench.rollouts.advantages.grpo import LEAST_DEVIATION
from zbench.rollouts.advantages.ppo import LEAST_VARIANCE
from zbench.rollouts.advantages.safe_rlhf import MARGIN, WINDOW
from zbench.rollouts.advantages.safe_rlhf import RATE as MULTIPLIER_RATE
from zbench.rollouts.experience import (
    CLIP,
    COST_CRITIC,
    CRITICS,
    DISCOUNT,
    GRPO,
    PPO,
    REMAX,
    SAFE_RLHF,
    TRACE,
    VALUE_CLIP,
    Learning,
    Rollout,
)
from zbench.rollouts.experience import CRITIC as CRITIC_NAME
from zbench.runtime.job.job import AdamW
from zbench.runtime.rollouts.policy_job import POLICY as POLICY_NAME
from zbench.runtime.rollouts.policy_job import TAIL

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class AloneIteration(AloneReport):
    """An iteration in one process. weights: of every model after it."""

    weights: Mapping[str, Weights] = field(default_factory=dict)


def alone(loop: Loop, policy: Weights, seed: int) -> list[AloneIteration]:
    """Runs a loop. policy: its weights to begin with, whole, by the names of a step, of all layers in one tensor."""
    learning, now = loop.learning, {POLICY_NAME: {name: value.clone() for name, value in policy.items()}}
    if learning.algorithm in (PPO, SAFE_RLHF):
        now[CRITIC_NAME] = drawn_weights(CRITIC, seed)
    costs = _Costs(drawn_weights(CRITIC, cost_seed(seed)))
    rewarding = drawn_weights(CRITIC, reward_seed(seed)) if loop.has_reward_model else None
    if learning.algorithm == SAFE_RLHF:
        now[COST_CRITIC] = {name: value.clone() for name, value in costs.model.items()}
    optimizers, found = {name: _Optimizer(weights) for name, weights in now.items()}, list[AloneIteration]()
    behind, left, updates = [now[POLICY_NAME]], list[Ints](), [0]
    for iteration in range(loop.iterations):
        late = int(loop.schedule == ONE_STEP_OFF and iteration > 0)
        by = behind[-1 - late]  # the policy that generates
        rollouts, left, given_up = generated_batch(loop.schedule == TAIL, by, (seed, iteration), left)
        asked = [one.tokens[: one.prompt] for one in rollouts[::GROUP]] if learning.algorithm == REMAX else []
        greedy = [generated_alone(by, prompt, None, LIMIT) for prompt in asked]
        age, done = updates[-1] - updates[-1 - late], updates[-1]
        known = _Known(learning, rollouts, greedy, policy, now, costs, rewarding)
        losses, scales, clipped = list[float](), list[float](), 0
        for which in learning.updates(len(rollouts), seed, iteration):
            done += 1
            for name in now:
                leaves = {one: value.clone().requires_grad_() for one, value in now[name].items()}
                terms, outside = known.losses(name, leaves, which)
                loss = terms.sum() / len(terms)
                loss.backward()
                gradients = {one: value.grad for one, value in leaves.items() if value.grad is not None}
                now[name] = optimizers[name].updated(now[name], gradients)
                losses.append(float(loss.detach()))
                scales.append(float(terms.detach().abs().mean()))
                clipped += outside
        if learning.algorithm == SAFE_RLHF:
            costs.follow(rollouts)
        sequences, multiplier = [one.tokens for one in rollouts], float(costs.log.exp())
        found.append(AloneIteration(sequences, losses, scales, clipped, multiplier, age, given_up, dict(now)))
        behind, updates = [*behind, now[POLICY_NAME]], [*updates, done]
    return found


@dataclass
class _Costs:
    """The cost model and its multiplier, whose logarithm a step of gradient ascent follows. model: its weights."""

    model: Weights
    log: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    found: list[Tensor] = field(default_factory=list)

    def of(self, one: Rollout) -> Tensor:
        """Returns the cost of a response."""
        return _valued(self.model, one)

    def follow(self, rollouts: Sequence[Rollout]) -> None:
        """Follows the costs of an iteration's responses."""
        self.found += [self.of(one) for one in rollouts]
        log = self.log.clone().requires_grad_()
        (log.exp() * (torch.stack(self.found[-WINDOW:]).mean() + MARGIN)).backward()
        assert log.grad is not None, "there was a backward"
        self.log = self.log + MULTIPLIER_RATE * log.grad


@dataclass
class _Known:
    """The numbers that are known of rollouts before their first update.

    reference: the weights of the reference model; now: of the models then; rewarding: of the reward model, None where a
    rule rewards. Of each token of each response: its
    advantage, the logarithm of its likelihood under the reference model, and every critic's value and return."""

    learning: Learning
    rollouts: Sequence[Rollout]
    greedy: Sequence[Rollout]
    reference: Weights
    now: Mapping[str, Weights]
    costs: _Costs
    rewarding: Weights | None
    advantages: list[Tensor] = field(init=False)
    logs: list[Tensor] = field(init=False)
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    returns: dict[str, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of, rewards = self.learning, self._rewards(self.rollouts)
        self.logs = [_logs(self.reference, one) for one in self.rollouts]
        if of.algorithm == GRPO:
            groups = rewards.view(-1, GROUP)
            off = groups.std(1, correction=0, keepdim=True) + LEAST_DEVIATION
            self.advantages = list(((groups - groups.mean(1, keepdim=True)) / off).flatten().unbind())
            return
        if of.algorithm == SAFE_RLHF:
            paid = torch.stack([self.costs.of(one) for one in self.rollouts])
            gained = self._estimated(CRITIC_NAME, self._given(rewards, of.kl / 2))
            lost = self._estimated(COST_CRITIC, self._given(paid, -of.kl / 2))
            share = self.costs.log.sigmoid()  # of the cost: lambda / (1 + lambda)
            self.advantages = [(1 - share) * one - share * other for one, other in zip(gained, lost, strict=True)]
            return
        given = self._given(rewards, of.kl)
        if of.algorithm == REMAX:
            base = self._rewards(self.greedy).repeat_interleave(GROUP)
            self.advantages = [
                torch.stack([one[at:].sum() - less for at in range(len(one))])
                for one, less in zip(given, base, strict=True)
            ]
            return
        found = self._estimated(CRITIC_NAME, given)
        every = torch.cat(found)
        self.advantages = [(one - every.mean()) / (every.var(correction=0) + LEAST_VARIANCE).sqrt() for one in found]

    def _rewards(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Returns the reward of each response."""
        if self.rewarding is None:
            return torch.from_numpy(rewards_of(rollouts))
        return torch.stack([_valued(self.rewarding, one) for one in rollouts])

    def _given(self, last: Tensor, kl: float) -> list[Tensor]:
        """Returns what each token of each response is given: the KL term, and with the last token `last`."""
        given = [kl * (log + torch.from_numpy(one.before)) for log, one in zip(self.logs, self.rollouts, strict=True)]
        for one, more in zip(given, last, strict=True):
            one[-1] += more
        return given

    def _estimated(self, name: str, given: Sequence[Tensor]) -> list[Tensor]:
        """Returns advantages by a critic, whose values and returns it keeps."""
        values = self.values[name] = [_values(self.now[name], one) for one in self.rollouts]
        found = [_summed(*pair) for pair in zip(given, values, strict=True)]
        self.returns[name] = [one + value for one, value in zip(found, values, strict=True)]
        return found

    def losses(self, name: str, weights: Weights, which: Sequence[int]) -> tuple[Tensor, int]:
        """Returns the losses of a model, of the tokens of some responses, and how many of them are clipped."""
        found = [
            self._of_critic(name, weights, one) if name in CRITICS else self._of_policy(weights, one) for one in which
        ]
        return torch.cat([terms for terms, _ in found]), sum(outside for _, outside in found)

    def _of_policy(self, weights: Weights, number: int) -> tuple[Tensor, int]:
        one, advantage = self.rollouts[number], self.advantages[number]
        logs = _logs(weights, one)
        ratio = (logs + torch.from_numpy(one.before)).exp()
        bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
        terms = -torch.minimum(ratio * advantage, bounded * advantage)
        if self.learning.algorithm == GRPO and self.learning.kl:
            further = self.logs[number] - logs
            terms = terms + self.learning.kl * (further.exp() - further - 1)
        return terms, int((ratio * advantage > bounded * advantage).sum())

    def _of_critic(self, name: str, weights: Weights, number: int) -> tuple[Tensor, int]:
        values, before = _values(weights, self.rollouts[number]), self.values[name][number]
        wanted = self.returns[name][number]
        near = before + (values - before).clamp(-VALUE_CLIP, VALUE_CLIP)
        plain, clipped = ((one - wanted).square() / 2 for one in (values, near))
        return torch.where(clipped > plain, clipped, plain), int((clipped > plain).sum())


def _valued(weights: Weights, one: Rollout) -> Tensor:
    """Returns the value of a response's last token."""
    return (last_states(CRITIC, weights, torch.from_numpy(one.tokens))[-1] @ weights["vh"].T)[0]


def _logs(weights: Weights, one: Rollout) -> Tensor:
    """Returns the logarithms of the likelihoods of a response's tokens."""
    tokens = torch.from_numpy(one.tokens)
    logs = policy_logits(weights, tokens).log_softmax(1)[one.prompt - 1 : -1]
    return logs.gather(1, tokens[one.prompt :, None])[:, 0]


def _values(weights: Weights, one: Rollout) -> Tensor:
    """Returns the values of a response's tokens, each before it is there."""
    states = last_states(CRITIC, weights, torch.from_numpy(one.tokens))
    return (states @ weights["vh"].T)[one.prompt - 1 : -1, 0]


def _summed(rewards: Tensor, values: Tensor) -> Tensor:
    """Returns advantages, each as the sum of all differences that come after."""
    after = torch.cat([values[1:], values.new_zeros(1)])
    off = rewards + DISCOUNT * after - values
    found = list[Tensor]()
    for at in range(len(off)):
        weights = (DISCOUNT * TRACE) ** torch.arange(len(off) - at, dtype=torch.float64)
        found.append((weights * off[at:]).sum())
    return torch.stack(found)


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
