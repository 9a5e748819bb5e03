"""One rank of a loop that generates with a policy and trains it: GPUs of training first, then those that generate only.

Training is by whole steps, as of any run of them (zbench.runtime.stepping.rank); what it trains with are rollouts, each
token with its own loss. Other models of the loop, a critic and a reference model, lie on ranks of it beside the policy
or behind them. What a rank trains with comes in messages of other ranks (zbench.runtime.rollouts.columns).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from zbench.rollouts.columns import ColumnMoves
from zbench.rollouts.experience import Rollout, TrainingTokens
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.columns import Run, TokenColumns
from zbench.runtime.rollouts.generating import Generating
from zbench.runtime.rollouts.model_rank import ModelRank
from zbench.runtime.rollouts.policy_job import (
    BEFORE,
    HOME,
    OF_RESPONSES,
    POLICY,
    REFERENCE,
    TOKENS,
    BatchTold,
    GenerationReport,
    GenerationRound,
    ModelStep,
    PolicyJob,
)
from zbench.runtime.rollouts.policy_weights import PolicyWeights
from zbench.runtime.stepping.rank_state import RankState
from zbench.runtime.training.checkpoint import load_checkpoint, save_checkpoint


class PolicyRank(ModelRank):
    """A rank that trains a policy, generates with it, or both. models: all models of its loop by name, itself among
    them. kind: of others' ranks."""

    kind: type[ModelRank] = ModelRank

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: PolicyJob) -> None:
        job.check_ranks(num_ranks)
        super().__init__(rank, num_ranks, rendezvous, job.steps)
        self.loop = job
        self.generating = Generating(rank, rendezvous, job)
        self.models: dict[str, ModelRank] = {POLICY: self}
        for name, one in job.others.items():
            self.models[name] = self.kind(rank, num_ranks, rendezvous, one.steps, one.first)
        self.columns = TokenColumns.on(rank, self.runner.machine, self.board)

    def begin_all(self, steps: Mapping[str, ModelStep], trained: TrainingTokens) -> None:
        """Draws the parameters of every model to where its step begins with them. trained: tokens of the steps, which
        may be any."""
        for name, one in steps.items():
            self.models[name].begin(*one, trained)
        if self.rank >= self.loop.own_ranks:
            return
        changing = StepRunner(self.runner.machine, self.board, where="to generation, ")
        made = self.loop.resharded(steps[POLICY][1])
        assert self.resting is not None, "parameters are drawn before generation"
        weights = PolicyWeights(made, self.loop.generate.tensor, self.rank, changing)
        self.generating.begin(weights, self.resting, self.runner.stores)

    def generate(self, *rounds: GenerationRound) -> list[GenerationReport]:
        """Brings weights to generation, generates a response to each prompt of each round, and goes back to training.
        Collective: groups have even shares of the prompts in their order."""
        self.generate_beside(*rounds)
        return self.generated()

    def generate_beside(self, *rounds: GenerationRound) -> None:
        """Brings weights to generation, which begins; where it has GPUs of its own, training may go on beside it.
        Collective."""
        assert self.resting is not None, "parameters are drawn before generation"
        self.generating.start(self.resting, self.runner.stores, self.updates, rounds)

    def generated(self) -> list[GenerationReport]:
        """Returns what was generated, once it is, by round."""
        return self.generating.ended(self.runner.stores)

    def hold(self, batch: BatchTold) -> None:
        """Begins with a batch: keeps of its tokens, and of what was scored meanwhile, what this rank has made."""
        self.columns.begin(batch.lengths, batch.prompts)
        sampled, greedy, scores = self.generating.taken(batch.iteration)
        known = [sampled.get(one) for one in batch.numbers] + [greedy.get(one) for one in batch.greedy]
        for number, one in enumerate(known):
            if one is not None:
                self.columns.write(TOKENS, (number, 0, len(one.tokens)), one.tokens.astype(np.float64))
                self.columns.write_response(BEFORE, number, one.before)
        for number, one_of in enumerate(batch.numbers):
            if one_of in scores:
                self.columns.write_response(REFERENCE, number, scores[one_of])

    def take_back(self, iteration: int, sampled: Mapping[int, Rollout], greedy: Mapping[int, Rollout]) -> None:
        """Takes over what a checkpoint has of an iteration, on the rank that computes advantages."""
        if self.rank == HOME:
            self.generating.kept |= {(iteration, False): dict(sampled), (iteration, True): dict(greedy)}

    def move(self, moves: ColumnMoves) -> tuple[int, int]:
        """Brings numbers of tokens to where they are wanted; returns the bytes that this rank sent and received.
        Collective."""
        return self.columns.move(moves)

    def score_all(self, steps: Mapping[str, tuple[ModelStep, Sequence[int]]]) -> dict[str, set[Run]]:
        """Scores sequences by the models that lie here, one after another; returns of each the runs of tokens that are
        scored here. steps: by model, its step and the sequences in their order."""
        return {name: self._score(name, *one) for name, one in steps.items() if self.models[name].lies_here}

    def train(
        self, updates: Sequence[tuple[Mapping[str, ModelStep], Sequence[int]]], kl: float
    ) -> list[dict[str, StepReport]]:
        """Trains the models that lie here for all updates of an iteration, as `update` does for one; other sets of
        models are not waited for in between."""
        return [self.update(*one, kl) for one in updates]

    def update(self, steps: Mapping[str, ModelStep], which: Sequence[int], kl: float) -> dict[str, StepReport]:
        """Trains the models that lie here for a step each. which: the sequences in their order; kl: the coefficient of
        the KL term in the policy's loss."""
        found = {}
        for name, step in steps.items():
            if self.models[name].lies_here:
                trained = self.columns.of_policy(which, kl) if name == POLICY else self.columns.of_critic(name, which)
                found[name] = self.models[name].learn(*step, trained)
        return found

    def save(self, path: str, iteration: int, driver: Mapping[str, Any]) -> None:
        """Writes a checkpoint that goes on with an iteration. driver: what its driver has of the iterations before.
        Collective."""
        save_checkpoint(path, self._all_kept(), {"next_step": iteration, "run": self.loop.told(), "driver": driver})

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
    def _score(self, name: str, step: ModelStep, which: Sequence[int]) -> set[Run]:
        found = set[Run]()
        for sequence, position, made in self.models[name].score(*step, self.columns.scored(which)):
            numbers = np.array(which)[sequence]
            found |= self.columns.write_made(name, numbers, position, made, name in OF_RESPONSES)
        return found

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
