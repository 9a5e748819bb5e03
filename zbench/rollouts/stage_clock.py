"""The clock of a pipeline's stages, and micro-batches that go round them while they decode.

A stage takes passes in the order in which they are given. What a pipeline loses is what its stages wait: at the begin
and the end, and where passes of different lengths follow each other.
"""

import heapq
from dataclasses import dataclass, field

from zbench.rollouts.generation_cost import GenerationCost, PassSeconds


@dataclass
class StageClock:
    """The clock of stages. free: when each has done all that it was given."""

    free: list[float]

    def run(self, ready: float, seconds: PassSeconds) -> float:
        """Runs a pass that may begin at `ready`; returns when its last stage has done it."""
        free, time = self.free, ready
        for stage in range(len(free) - 1):
            time = free[stage] = max(time, free[stage]) + seconds.stage
            time += seconds.send
        free[-1] = max(time, free[-1]) + seconds.last
        return free[-1]


@dataclass
class MicroBatch:
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

    def decode(self, of: GenerationCost, clock: StageClock, alone: bool) -> int:
        """Runs a pass that decodes; where no other micro-batch is under way, all passes until a sequence ends. Returns
        how many."""
        sequences = len(self.running)
        context, steps = self.context + sequences, 1
        if alone and max(clock.free) <= self.ready:
            steps = self.running[0][0] - self.passes
            self.ready += of.decode_seconds(sequences, context, steps)
            clock.free = [self.ready] * len(clock.free)
        else:
            self.ready = clock.run(self.ready, of.decode(sequences, context))
        self.advance(steps)
        return steps
