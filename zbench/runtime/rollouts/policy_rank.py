"""One rank of a loop that generates with a policy and trains it: GPUs of training first, then those that generate only.

Training is by whole steps, as of any run of them (zbench.runtime.stepping.rank); what it trains with are rollouts, each
token with its own loss.
"""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import torch.distributed as dist

from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.rollouts.engines import resharding_of
from zbench.rollouts.grpo import NOTHING, Rollout, TrainingTokens
from zbench.runtime.handlers.context import TokenWords
from zbench.runtime.handlers.optimizer import NoUpdate
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.handlers.store import Store
from zbench.runtime.handlers.token_loss import PolicyTokens
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.policy import PolicySlice
from zbench.runtime.rollouts.policy_job import GenerationReport, PolicyJob
from zbench.runtime.rollouts.policy_weights import PolicyWeights
from zbench.runtime.rollouts.sampling import END
from zbench.runtime.stepping.rank import SteppingRank
from zbench.runtime.stepping.rank_state import RankState
from zbench.runtime.steps.tokens import TokenParts
from zbench.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from zbench.step.template import Step


class PolicyRank(SteppingRank):
    """A rank that trains a policy, generates with it, or both."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: PolicyJob) -> None:
        super().__init__(rank, num_ranks, rendezvous, job.steps)
        self.loop, self.trained = job, NOTHING
        self.weights: PolicyWeights | None = None
        self.begun: PreparedStep | None = None  # the step that parameters were drawn to
        change = resharding_of(job.engine, job.train, job.generate, job.replicas)
        self.groups = change.generation_groups
        opened = [dist.new_group(members) for members in self.groups]  # every rank makes every group, as torch asks
        self.own = next(((at, group) for at, group in enumerate(opened) if rank in self.groups[at]), None)

    def begin(self, batch: Batch, step: Step, tokens: tuple[TokenParts, ...], trained: TrainingTokens) -> None:
        """Draws parameters to where a step begins with them. trained: the tokens of the step."""
        self.trained = trained
        self.begun = self._prepared(batch, step, tokens, NoUpdate())
        changing = StepRunner(self.runner.machine, self.board, where="to generation, ")
        self.weights = PolicyWeights(self.loop.resharded(step), self.loop.generate.tensor, self.rank, changing)

    def generate(self, iteration: int, prompts: Sequence[Ints]) -> GenerationReport:
        """Brings weights to generation, generates a response to each prompt, and goes back to training. Collective:
        groups have even shares of the prompts in their order."""
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
            found = policy.responses(mine, self.loop.limit, self.job.seed, iteration, self.board.say)
            found = found if self.rank == self.groups[at][0] else {}
        weights.to_training(self.runner.stores)
        return GenerationReport(found, moved, shared)

    def learn(self, batch: Batch, step: Step, tokens: tuple[TokenParts, ...], trained: TrainingTokens) -> StepReport:
        """Trains with rollouts for a step. Collective."""
        self.trained = trained
        return self.step(batch, step, tokens, True)

    def save(self, path: str, iteration: int) -> None:
        """Writes a checkpoint that goes on with an iteration. Collective."""
        save_checkpoint(path, self._kept(), {"next_step": iteration, "run": self.loop.told()})

    def load(self, path: str) -> None:
        """Takes over a checkpoint, after parameters were drawn. Collective."""
        kept = self._kept()
        load_checkpoint(path, kept)
        self.updates = kept.updates

    def digest(self) -> str:
        """Names the parameters and the optimizer state here by their bits."""
        found = sha256()
        for name, value in sorted(self._kept().state().items()):
            found.update(name.encode() + value.numpy().tobytes())
        return found.hexdigest()

    # -- inside ---------------------------------------------------------------------------------------
    def _kept(self) -> RankState:
        assert self.begun is not None, "parameters are drawn before they are kept"
        store = self.runner.stores.get(self.process, Store())  # nothing of a rank that generates alone
        return RankState(self.rank, self.begun, store, self.updates)

    def _node_of(self, num_ranks: int) -> Ints:
        return np.zeros(num_ranks, np.int64)  # one machine, whatever the cluster

    def _counted(self, batch: Batch) -> int:
        return self.trained.counted

    def _words(self, batch: Batch) -> TokenWords:
        tokens = self.trained.tokens
        targets = {number: np.append(words[1:], END) for number, words in tokens.items()}
        policy = PolicyTokens(self.trained.advantages, self.trained.before, self.trained.clip)
        return TokenWords(tokens, targets, policy)
