"""One rank of a model that learns from rollouts, or scores them: the policy, a critic, a reference model.

Each model of a job has its own parameters, messages and steps on the ranks where it lies, which follow one another and
meet before each step. A rank where it does not lie has nothing of it and goes on, so models on different ranks work at
the same time.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import torch.distributed as dist

from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.rollouts.experience import NOTHING, PolicyTargets, TrainingTokens
from zbench.runtime.handlers.context import TokenWords
from zbench.runtime.handlers.messages import open_messages
from zbench.runtime.handlers.optimizer import NoUpdate
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.token_loss import GivenLosses, NotedScores, PolicyLoss, Scored, TokenLosses, ValueLoss
from zbench.runtime.job.step_job import StepJob, StepReport
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.sampling import END
from zbench.runtime.stepping.rank import SteppingRank
from zbench.runtime.stepping.rank_state import RankState
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.template import Step


class ModelRank(SteppingRank):
    """A rank of a model. first: the first of the ranks where the model lies, as many as its job's cluster has GPUs."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: StepJob, first: int = 0) -> None:
        super().__init__(rank, num_ranks, rendezvous, job)
        self.trained = NOTHING
        self.begun: PreparedStep | None = None  # the step that parameters were drawn to
        count = job.cost.gpus.cluster.num_ranks
        members = range(first, first + count)
        self.lies_here = rank in members
        self.process = rank - first if self.lies_here else count
        self.own = dist.new_group(list(members))  # every rank makes it, as torch asks
        self.runner.machine = replace(self.runner.machine, lanes=None)  # all transfers go straight
        if first and self.lies_here:
            messages = open_messages(self.own, self._node_of(count), self.device)
            self.runner.machine = replace(self.runner.machine, messages=messages)

    def begin(self, batch: Batch, step: Step, tokens: tuple[TokenParts, ...], trained: TrainingTokens) -> None:
        """Draws parameters to where a step begins with them. trained: the tokens of the step."""
        self.trained = trained
        self.begun = self._prepared(batch, step, tokens, NoUpdate())

    def learn(self, batch: Batch, step: Step, tokens: tuple[TokenParts, ...], trained: TrainingTokens) -> StepReport:
        """Trains with rollouts for a step. Collective of the ranks where the model lies, as are scores."""
        self.trained = trained
        return self.step(batch, step, tokens, True)

    def score(self, batch: Batch, step: Step, tokens: tuple[TokenParts, ...], trained: TrainingTokens) -> list[Scored]:
        """Returns what the model makes of the tokens that are at home here, by the forward of a step: negative
        log-likelihoods of their targets, or values."""
        self.trained, scores = trained, NotedScores()
        words = replace(self._words(batch), losses=scores)
        machine = replace(self.runner.machine, update=NoUpdate(), choices={})
        prepared = PreparedStep.of(step, self.process, machine, tokens, [words] * len(tokens))
        self.board.wait("barrier before scoring")
        self._meet()
        self.runner.run(prepared)
        self.runner.take(prepared, "loss")
        return scores.found

    def kept(self) -> RankState:
        """Returns the parameters and the optimizer state here, as checkpoints have them."""
        assert self.begun is not None, "parameters are drawn before they are kept"
        return RankState(self.rank, self.begun, self.runner.stores, self.updates)

    # -- inside ---------------------------------------------------------------------------------------
    def _node_of(self, num_ranks: int) -> Ints:
        return np.zeros(num_ranks, np.int64)  # one machine, whatever the cluster

    def _meet(self) -> None:
        dist.barrier(self.own)

    def _counted(self, batch: Batch) -> int:
        return self.trained.counted

    def _words(self, batch: Batch) -> TokenWords:
        tokens = self.trained.tokens
        targets = {number: np.append(words[1:], END) for number, words in tokens.items()}
        return TokenWords(tokens, targets, _losses(self.trained))


def _losses(trained: TrainingTokens) -> TokenLosses:
    """Returns the losses of tokens; of those without targets what the model makes of them."""
    given = trained.targets
    if given is None:
        return NotedScores()
    if isinstance(given, PolicyTargets):
        return GivenLosses(given.columns, partial(PolicyLoss, clip=given.clip, kl=given.kl))
    return GivenLosses(given.columns, partial(ValueLoss, clip=given.clip))
