"""One rank of a loop that generates with a policy and trains it: GPUs of training first, then those that generate only.

Training is by whole steps, as of any run of them (zbench.runtime.stepping.rank); what it trains with are rollouts, each
token with its own loss. Other models of the loop, a critic and a reference model, lie on ranks of it beside the policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch.distributed as dist

from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.rollouts.engines import resharding_of
from zbench.rollouts.experience import Rollout, TrainingTokens
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.handlers.token_loss import Scored
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.model_rank import ModelRank
from zbench.runtime.rollouts.policy import PolicySlice
from zbench.runtime.rollouts.policy_job import POLICY, GenerationReport, PolicyJob
from zbench.runtime.rollouts.policy_weights import PolicyWeights
from zbench.runtime.stepping.rank_state import RankState
from zbench.runtime.steps.tokens import TokenParts
from zbench.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from zbench.step.template import Step

ModelStep = tuple[Batch, Step, tuple[TokenParts, ...], TrainingTokens]


class PolicyRank(ModelRank):
    """A rank that trains a policy, generates with it, or both. models: all models of its loop by name, itself among
    them. kind: of others' ranks."""

    kind: type[ModelRank] = ModelRank

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: PolicyJob) -> None:
        super().__init__(rank, num_ranks, rendezvous, job.steps)
        self.loop = job
        self.weights: PolicyWeights | None = None
        change = resharding_of(job.engine, job.train, job.generate, job.replicas)
        self.groups = change.generation_groups
        opened = [dist.new_group(members) for members in self.groups]  # every rank makes every group, as torch asks
        self.own = next(((at, group) for at, group in enumerate(opened) if rank in self.groups[at]), None)
        self.models: dict[str, ModelRank] = {POLICY: self}
        for name, one in job.others.items():
            self.models[name] = self.kind(rank, num_ranks, rendezvous, one.steps, one.first)

    def begin_all(self, steps: Mapping[str, ModelStep]) -> None:
        """Draws the parameters of every model to where its step begins with them."""
        for name, one in steps.items():
            self.models[name].begin(*one)
        changing = StepRunner(self.runner.machine, self.board, where="to generation, ")
        self.weights = PolicyWeights(
            self.loop.resharded(steps[POLICY][1]), self.loop.generate.tensor, self.rank, changing
        )

    def generate(self, iteration: int, prompts: Sequence[Ints], greedy: bool = False) -> GenerationReport:
        """Brings weights to generation, generates a response to each prompt, and goes back to training. Collective:
        groups have even shares of the prompts in their order. greedy: the likeliest tokens, none is drawn."""
        weights = self.weights
        assert self.resting is not None, "parameters are drawn before generation"
        assert weights is not None, "parameters are drawn before generation"
        moved = weights.to_generation(self.resting, self.runner.stores)
        shared = tuple(weights.is_shared(self.runner.stores))
        found: dict[int, Rollout] = {}
        if self.own is not None:
            at, group = self.own
            policy = PolicySlice(self.model, weights.weight, weights.part, group if len(self.groups[at]) > 1 else None)
            numbers = np.array_split(np.arange(len(prompts)), len(self.groups))[at].tolist()
            mine = {number: prompts[number] for number in numbers}
            draws = None if greedy else (self.job.seed, iteration)
            found = policy.responses(mine, self.loop.limit, draws, self.board.say)
            found = found if self.rank == self.groups[at][0] else {}
        weights.to_training(self.runner.stores)
        return GenerationReport(found, moved, shared)

    def score_by(self, model: str, *step: Any) -> list[Scored]:
        """Returns what a model makes of rollouts, as of ModelRank.score. Collective."""
        return self.models[model].score(*step)

    def update(self, steps: Mapping[str, ModelStep]) -> dict[str, StepReport]:
        """Trains models with rollouts for a step each. Collective."""
        return {name: self.models[name].learn(*one) for name, one in steps.items()}

    def save(self, path: str, iteration: int, multiplier: Mapping[str, Any]) -> None:
        """Writes a checkpoint that goes on with an iteration. multiplier: of the cost, as its driver has it.
        Collective."""
        meta = {"next_step": iteration, "run": self.loop.told(), "multiplier": multiplier}
        save_checkpoint(path, self._all_kept(), meta)

    def load(self, path: str) -> None:
        """Takes over a checkpoint, after parameters were drawn. Collective."""
        kept = self._all_kept()
        load_checkpoint(path, kept)
        for name, one in kept.models.items():
            self.models[name].updates = one.updates

    def digest(self) -> str:
        """Names the parameters and the optimizer state here by their bits."""
        found = sha256()
        for name, value in sorted(self._all_kept().state().items()):
            found.update(name.encode() + value.numpy().tobytes())
        return found.hexdigest()

    # -- inside ---------------------------------------------------------------------------------------
    def _all_kept(self) -> "KeptModels":
        return KeptModels({name: one.kept() for name, one in self.models.items()})


@dataclass(frozen=True)
class KeptModels:
    """The state of all models of a rank, by their names."""

    models: Mapping[str, RankState]

    def state(self) -> dict[str, Any]:
        """Returns it, by name."""
        return {f"{model}.{name}": value for model, one in self.models.items() for name, value in one.state().items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state` has, by the same names."""
        for model, one in self.models.items():
            begin = f"{model}."
            one.load({name.removeprefix(begin): value for name, value in state.items() if name.startswith(begin)})
