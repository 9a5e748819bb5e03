"""The clock of a pipeline's stages, and micro-batches that go round them while they decode.

A stage takes passes in the order in which they are given. What a pipeline loses is what its stages wait: at the begin
and the end, and where passes of different lengths follow each other.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from zbench.rollouts.generation_cost import GenerationCost, GenerationPass


@dataclass
class StageClock:
    """The clock of stages. free: when each has done all that it was given."""

    free: list[float]

    def run(self, ready: float, seconds: GenerationPass) -> float:
        """Runs a pass that may begin at `ready`; returns when its last stage has done it."""
        free, time = self.free, ready
        for stage in range(len(free) - 1):
            time = free[stage] = max(time, free[stage]) + seconds.stage
            time += seconds.send
        free[-1] = max(time, free[-1]) + seconds.last
        return free[-1]


@dataclass
class DecodingBatch:
    """A micro-batch: sequences that decode together. room: tokens that it has room for yet. ready: when its last pass
    had ended. passes: of it that decoded. context: tokens of its sequences. running: (passes after which it ends;
    sequence) of each, a heap."""

    room: int
    ready: float = 0.0
    passes: int = 0
    context: int = 0
    running: list[tuple[int, int]] = field(default_factory=list)

    def join(self, sequence: int, tokens: int, words: int) -> None:
        """Takes a sequence with so many tokens that decodes so many words yet."""
        self.context += tokens
        heapq.heappush(self.running, (self.passes + words, sequence))

    def advance(self, steps: int) -> None:
        """Counts passes that have decoded."""
        self.context += steps * len(self.running)
        self.passes += steps

    def ended(self) -> list[int]:
        """Takes out sequences that have ended."""
        found = []
        while self.running and self.running[0][0] == self.passes:
            found.append(heapq.heappop(self.running)[1])
        return found

    def decode(self, of: GenerationCost, clock: StageClock) -> None:
        """Runs a pass that decodes."""
        self.ready = clock.run(self.ready, of.decode(len(self.running), self.context + len(self.running)))
        self.advance(1)


def decode_rounds(batches: Sequence[DecodingBatch], of: GenerationCost, clock: StageClock) -> int:
    """Runs rounds of passes that decode, micro-batches in the order in which they are ready, until a sequence has
    ended. All of them have some. Returns the passes."""
    order = sorted(batches, key=attrgetter("ready"))
    rounds = min(one.running[0][0] - one.passes for one in order)
    if len(order) == 1 and max(clock.free) <= order[0].ready:
        one, sequences = order[0], len(order[0].running)
        one.ready += of.decode_seconds(sequences, one.context + sequences, rounds)
        clock.free = [one.ready] * len(clock.free)
    else:
        _run_rounds(order, of, clock, rounds)
    for one in order:
        one.advance(rounds)
    return rounds * len(order)


def _run_rounds(order: Sequence[DecodingBatch], of: GenerationCost, clock: StageClock, rounds: int) -> None:
    """Runs passes as DecodingBatch.decode does, one by one: it is what a run spends its time with."""
    counts = [len(one.running) for one in order]
    ready = [one.ready for one in order]
    passes = [of.decode(count, one.context + count) for one, count in zip(order, counts, strict=True)]
    stages, lasts, sends = (list(column) for column in zip(*passes, strict=True))
    more = [count * of.seen_token for count in counts]  # of each pass's attention than of the one before
    free, every, behind = clock.free, range(len(order)), range(len(clock.free) - 1)
    for _ in range(rounds):
        for at in every:
            time, seconds, send = ready[at], stages[at], sends[at]
            for stage in behind:
                there = free[stage]
                time = free[stage] = (there if there > time else time) + seconds
                time += send
            there = free[-1]
            ready[at] = free[-1] = (there if there > time else time) + lasts[at]
            stages[at] += more[at]
            lasts[at] += more[at]
    for one, time in zip(order, ready, strict=True):
        one.ready = time
