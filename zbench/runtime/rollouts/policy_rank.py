"""One rank of a loop that generates with a policy and trains it: GPUs of training first, then those that generate only.

Training is by whole steps, as of any run of them (zbench.runtime.stepping.rank); what it trains with are rollouts, each
token with its own loss. Other models of the loop, a critic and a reference model, lie on ranks of it beside the policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from zbench.describe.batch import Batch
from zbench.rollouts.experience import TrainingTokens
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.handlers.token_loss import Scored
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.generating import Generating
from zbench.runtime.rollouts.model_rank import ModelRank
from zbench.runtime.rollouts.policy_job import POLICY, GenerationReport, GenerationRound, PolicyJob
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
        self.generating = Generating(rank, rendezvous, job)
        self.models: dict[str, ModelRank] = {POLICY: self}
        for name, one in job.others.items():
            self.models[name] = self.kind(rank, num_ranks, rendezvous, one.steps, one.first)

    def begin_all(self, steps: Mapping[str, ModelStep]) -> None:
        """Draws the parameters of every model to where its step begins with them."""
        for name, one in steps.items():
            self.models[name].begin(*one)
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

    def score_by(self, model: str, *step: Any) -> list[Scored]:
        """Returns what a model makes of rollouts, as of ModelRank.score. Collective."""
        return self.models[model].score(*step)

    def update(self, steps: Mapping[str, ModelStep]) -> dict[str, StepReport]:
        """Trains models with rollouts for a step each. Collective."""
        return {name: self.models[name].learn(*one) for name, one in steps.items()}

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
