"""The rollouts of a loop's iterations, by its schedule: which prompts are asked when, and what is trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zbench.correctness.loop.cases import GROUP, MORE, PROMPTS, SHORT_ROUNDS, Loop, prompts_of
from zbench.describe.arrays import Ints
from zbench.describe.job import ONE_STEP_OFF, STREAMED
from zbench.rollouts.experience import REMAX, Rollout
from zbench.runtime.job.step_job import Sizes
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.rollouts.policy_job import HOME, TAIL, GenerationReport, GenerationRound


@dataclass(frozen=True)
class LoopBatch:
    """The rollouts of an iteration. greedy: the greedy response to each prompt, for ReMax alone. numbers: that
    generation knew rollouts by. owners: the rank that generated each, and each greedy one; scorers: that scored each by
    the reference model, where this scored meanwhile. moved, shared, early, given_up: as of LoopIteration. updates: of
    the policy that generated them."""

    rollouts: list[Rollout]
    greedy: list[Rollout]
    numbers: list[int]
    owners: list[int]
    scorers: list[int]
    moved: tuple[Sizes, ...]
    shared: tuple[bool, ...]
    updates: int
    early: int
    given_up: int


@dataclass
class LoopBatches:
    """The batches of a loop. updates: of the policy so far. left: prompts that tail batching has given up, for its next
    long round; ahead: what was generated beside training for the next iteration, once it has been waited for."""

    loop: Loop
    fleet: Fleet
    seed: int
    updates: int = 0
    left: list[Ints] = field(default_factory=list)
    ahead: LoopBatch | None = None
    _under_way: list[GenerationRound] = field(default_factory=list)

    def of(self, iteration: int) -> LoopBatch:
        """Has the rollouts of an iteration generated; where its schedule says so, those of the next one are then under
        way."""
        if self.loop.schedule != ONE_STEP_OFF:
            rounds = self._rounds(iteration)
            return self._batch(rounds, self.fleet.call("generate", *rounds))
        batch = self.ahead
        if batch is None and not self._under_way:
            self._begin(iteration)
        if batch is None:
            batch = self._ended()
        self.ahead = None
        if iteration + 1 < self.loop.iterations:
            self._begin(iteration + 1)
        return batch

    def told(self) -> dict[str, Any]:
        """Returns what a checkpoint has of it. What is under way is waited for."""
        if self._under_way:
            self.ahead = self._ended()
        ahead = self.ahead and {
            "rollouts": [_told(one) for one in self.ahead.rollouts],
            "greedy": [_told(one) for one in self.ahead.greedy],
            "moved": self.ahead.moved,
            "shared": self.ahead.shared,
            "updates": self.ahead.updates,
        }
        return {"updates": self.updates, "left": [one.tolist() for one in self.left], "ahead": ahead}

    def take_over(self, told: Mapping[str, Any], iteration: int) -> None:
        """Goes on with what a checkpoint has, which ranks take over, too. iteration: that it goes on with."""
        self.updates, ahead = int(told["updates"]), told["ahead"]
        self.left = [np.array(one, np.int64) for one in told["left"]]
        if ahead is not None:
            rollouts, greedy = ([_rollout(one) for one in ahead[name]] for name in ("rollouts", "greedy"))
            moved, shared = tuple((sent, got) for sent, got in ahead["moved"]), tuple(ahead["shared"])
            numbers, owners = list(range(len(rollouts))), [HOME] * (len(rollouts) + len(greedy))
            self.ahead = LoopBatch(rollouts, greedy, numbers, owners, [], moved, shared, int(ahead["updates"]), 0, 0)
            self.fleet.call("take_back", iteration, dict(enumerate(rollouts)), dict(enumerate(greedy)))

    # -- inside ---------------------------------------------------------------------------------------
    def _rounds(self, iteration: int) -> list[GenerationRound]:
        """Returns what is asked of generation for an iteration."""
        if self.loop.schedule != TAIL:
            prompts = prompts_of(self.seed, iteration)
            rounds = [GenerationRound(iteration, prompts, responses=GROUP, scored=self.loop.schedule == STREAMED)]
        elif iteration % (SHORT_ROUNDS + 1) < SHORT_ROUNDS:
            prompts = prompts_of(self.seed, iteration, PROMPTS + MORE)
            return [GenerationRound(iteration, prompts, responses=GROUP, kept=PROMPTS)]
        else:
            prompts, self.left = self.left, []
            rounds = [GenerationRound(iteration, prompts, responses=GROUP)]
        if self.loop.algorithm == REMAX:
            rounds.append(GenerationRound(iteration, prompts[::GROUP], True))
        return rounds

    def _batch(self, rounds: Sequence[GenerationRound], reports: Sequence[list[GenerationReport]]) -> LoopBatch:
        """Returns the batch of what ranks generated."""
        first = [some[0] for some in reports]
        (every, owners), kept = _in_order(first), next(one.kept for one in first if one.rollouts)
        numbers = [at * GROUP + one for at in kept for one in range(GROUP)]
        given_up = sorted(set(range(len(every))) - set(numbers))
        self.left += [rounds[0].prompts[at] for at in given_up]
        greedy, others = _in_order([some[1] for some in reports]) if len(rounds) > 1 else ([], [])
        if self.loop.algorithm == REMAX and rounds[0].kept:
            asked = [rounds[0].prompts[at] for at in numbers[::GROUP]]
            again = self.fleet.call("generate", GenerationRound(rounds[0].iteration, asked, True))
            greedy, others = _in_order([some[0] for some in again])
        scorers = {number: rank for rank, one in enumerate(first) for number in one.scores}
        return LoopBatch(
            [every[at] for at in numbers],
            greedy,
            numbers,
            [*(owners[at] for at in numbers), *others],
            [scorers[at] for at in numbers] if scorers else [],
            tuple(one.moved for one in first),
            tuple(flag for one in first for flag in one.shared),
            first[0].updates,
            sum(one.early for one in first),
            sum(len(every[at].response) for at in given_up),
        )

    def _begin(self, iteration: int) -> None:
        self._under_way = self._rounds(iteration)
        self.fleet.call("generate_beside", *self._under_way)

    def _ended(self) -> LoopBatch:
        rounds, self._under_way = self._under_way, []
        return self._batch(rounds, self.fleet.call("generated"))


def _in_order(reports: Sequence[GenerationReport]) -> tuple[list[Rollout], list[int]]:
    """Returns the rollouts of all ranks in the order of their prompts, and the rank of each."""
    found = {number: (one, rank) for rank, report in enumerate(reports) for number, one in report.rollouts.items()}
    every = [found[number] for number in range(len(found))]
    return [one for one, _ in every], [rank for _, rank in every]


def _told(one: Rollout) -> list[Any]:
    return [one.tokens.tolist(), one.prompt, one.before.tolist()]


def _rollout(told: Sequence[Any]) -> Rollout:
    return Rollout(np.array(told[0], np.int64), int(told[1]), np.array(told[2]))
