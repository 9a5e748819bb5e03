"""Generation on a GPU of a loop: with weights that come from training, at once or beside it.

Beside training it is a thread of a process whose GPU trains no policy; its messages go by groups of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor

from zbench.describe.arrays import Floats
from zbench.describe.job import ONE_STEP_OFF, STREAMED
from zbench.rollouts.engines import resharding_of
from zbench.rollouts.experience import Rollout
from zbench.runtime.handlers.resting import Resting
from zbench.runtime.handlers.store import Store
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.policy import PolicySlice
from zbench.runtime.rollouts.policy_job import TAIL, GenerationReport, GenerationRound, PolicyJob
from zbench.runtime.rollouts.policy_weights import PolicyWeights
from zbench.runtime.rollouts.streamed import StreamWatch
from zbench.runtime.rollouts.tail_round import TailWatch

Stores = Mapping[int, Store]


class Generating:
    """The part of a rank that generates. own: the number of its group and the group itself, None where it has none.
    weights: their way to generation, None of a rank that neither trains the policy nor generates. kept: what it has
    generated of the iteration that comes, by iteration and whether it is greedy, and then by number; scores: what it
    has scored meanwhile, by number."""

    def __init__(self, rank: int, rendezvous: Rendezvous, job: PolicyJob) -> None:
        self.rank, self.job, self.board = rank, job, rendezvous.board
        self.groups = resharding_of(job.engine, job.train, job.generate, job.replicas).generation_groups
        opened = [dist.new_group(members) for members in self.groups]  # every rank makes every group, as torch asks
        self.own = next(((at, group) for at, group in enumerate(opened) if rank in self.groups[at]), None)
        self.store = rendezvous.store() if job.schedule == STREAMED else None
        everyone = sorted(gpu for members in self.groups for gpu in members)
        self.everyone = dist.new_group(everyone) if job.schedule == TAIL else None
        self.weights: PolicyWeights | None = None
        self.reference: Callable[[str, int], Tensor] | None = None
        self.thread = ThreadPoolExecutor(1) if job.schedule == ONE_STEP_OFF else None
        self.under_way: Future[list[GenerationReport]] | list[GenerationReport] = []
        self.kept: dict[tuple[int, bool], dict[int, Rollout]] = {}
        self.scores: Mapping[int, Floats] = {}
        self._rounds: Sequence[GenerationRound] = ()

    def begin(self, weights: PolicyWeights, resting: Resting, stores: Stores) -> None:
        """Takes over the way of weights to generation, and, where it is to score meanwhile, what is generated with as
        the reference model. Collective."""
        self.weights = weights
        if self.job.schedule == STREAMED:
            weights.to_generation(resting, stores)
            self.reference = weights.copied() if self.own is not None else None
            weights.to_training(stores)

    def start(self, resting: Resting, stores: Stores, updates: int, rounds: Sequence[GenerationRound]) -> None:
        """Brings weights and begins to generate with them. updates: that they have had. Collective."""
        weights, self._rounds = self.weights, rounds
        if weights is None:
            self.under_way = [GenerationReport({}, (0, 0), (), updates, one.every) for one in rounds]
            return
        moved = weights.to_generation(resting, stores)
        shared = tuple(weights.is_shared(stores))

        def reports() -> list[GenerationReport]:
            return [self._report(one, moved, shared, updates) for one in rounds]

        if self.thread is None:
            self.under_way = reports()
        elif self.own is not None:
            self.under_way = self.thread.submit(reports)
        else:
            weights.to_training(stores)
            self.under_way = [GenerationReport({}, moved, shared, updates) for _ in rounds]

    def ended(self, stores: Stores) -> list[GenerationReport]:
        """Waits for what was begun; returns it, and leaves to training what is training's."""
        found, weights = self.under_way, self.weights
        if isinstance(found, Future):
            self.board.say("generating beside training")
            found = found.result()
        if weights is not None and (self.thread is None or self.own is not None):
            weights.to_training(stores)
        for asked, one in zip(self._rounds, found, strict=True):
            self.kept[asked.iteration, asked.greedy] = one.rollouts
            self.scores = one.scores if asked.scored else self.scores
        return found

    def taken(self, iteration: int) -> tuple[dict[int, Rollout], dict[int, Rollout], Mapping[int, Floats]]:
        """Returns what this rank has generated for an iteration, sampled and greedy, and what it scored meanwhile, all
        by number, and forgets it."""
        found = self.kept.pop((iteration, False), {}), self.kept.pop((iteration, True), {}), self.scores
        self.scores = {}
        return found

    # -- inside ---------------------------------------------------------------------------------------
    def _report(
        self, asked: GenerationRound, moved: tuple[int, int], shared: tuple[bool, ...], updates: int
    ) -> GenerationReport:
        if self.own is None:
            return GenerationReport({}, moved, shared, updates, asked.every)
        at, group = self.own
        policy, is_first = self._slice(group), self.rank == self.groups[at][0]
        numbers = np.array_split(np.arange(len(asked.prompts)), len(self.groups))[at].tolist()
        mine = {number: asked.prompts[number] for number in numbers}
        draws = None if asked.greedy else (self.job.steps.seed, asked.iteration)

        def generated(watch: TailWatch | StreamWatch | None) -> dict[int, Rollout]:
            found = policy.responses(mine, self.job.limit, draws, self._say, watch)
            return found if is_first else {}

        if asked.kept:
            assert self.everyone is not None, "GPUs that generate have a group where some prompts are kept"
            tail = TailWatch(len(asked.every), asked.responses, asked.kept, self.everyone, is_first)
            return GenerationReport(generated(tail), moved, shared, updates, tail.finish())
        if not asked.scored:
            return GenerationReport(generated(None), moved, shared, updates, asked.every)
        name = f"iteration {asked.iteration}"
        stream = StreamWatch(self.store, name, len(asked.prompts), len(self.groups), is_first)
        found = generated(stream)
        assert self.reference is not None, "the reference model lies beside the policy"
        stream.score(PolicySlice(policy.model, self.reference, policy.part, policy.group))
        scores = stream.scores if is_first else {}
        early = stream.meanwhile if is_first else 0
        return GenerationReport(found, moved, shared, updates, asked.every, scores, early)

    def _slice(self, group: Any) -> PolicySlice:
        assert self.weights is not None, "weights were brought"
        assert self.own is not None, "this GPU generates"
        is_cut = len(self.groups[self.own[0]]) > 1
        return PolicySlice(
            self.job.steps.cost.gpus.model, self.weights.weight, self.weights.part, group if is_cut else None
        )

    def _say(self, what: str) -> None:
        if self.thread is None:  # beside training the board is training's
            self.board.say(what)
