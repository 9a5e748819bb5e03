"""The clock of generation: every sequence until it ends, by continuous batching on replicas.

A replica has a micro-batch for each stage of its pipeline, with an even share of its room for keys and values; they
take sequences from one queue, in its order, and stages take turns with them. Without stages there is one micro-batch.
Prompts are read in passes of their own, before others go on, or in chunks beside them (chunked prefill, as Sarathi-Serve
has it, arXiv 2403.02310).
"""

from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.rollouts.generation_cost import MEMORY_SHARE, GenerationCost
from zbench.rollouts.stage_clock import MicroBatch, StageClock

__all__ = ["EVERYTHING", "MEMORY_SHARE", "Batching", "Generation", "GenerationCost", "generate"]
EVERYTHING = 2**62  # tokens of a pass without a limit


@dataclass(frozen=True)
class Generation:
    """The seconds of generation, simulated, float64 [replicas], with passes that decode and the most sequences at once,
    int64 [replicas]. tokens: of all prompts and responses. ends: when each sequence has ended, float64 [sequences]."""

    seconds: Floats
    decodes: Ints
    most: Ints
    tokens: int
    ends: Floats


@dataclass(frozen=True)
class Batching:
    """What a pass may take. tokens: of a pass that reads prompts, at least one of them; with chunked prefill of any
    pass, those that decode among them."""

    tokens: int = EVERYTHING
    chunked: bool = False


WHOLE_PROMPTS = Batching()


def generate(
    prompts: Ints, responses: Ints, of: GenerationCost, replicas: int, batching: Batching = WHOLE_PROMPTS
) -> Generation:
    """Plays generation. prompts, responses: int64 [sequences], tokens of each, at least 1; replicas have even shares of
    them, in their order. A sequence begins when a micro-batch has room for all that it will have, in order; the pass
    that reads the end of its prompt makes its first word.

    Raises:
        ValueError: a sequence is longer than a micro-batch ever has room for.
    """
    check_room(prompts + responses, of)
    ends = np.zeros(len(prompts))
    found = []
    for share in np.array_split(np.arange(len(prompts)), replicas):
        played = _Replica(prompts[share], responses[share], of, batching)
        played.play()
        ends[share] = played.ends
        found.append((float(played.ends.max(initial=0.0)), played.decodes, played.most))
    seconds, decodes, most = (np.array(column) for column in zip(*found, strict=True))
    return Generation(seconds, decodes, most, int((prompts + responses).sum()), ends)


def check_room(whole: Ints, of: GenerationCost) -> None:
    """Raises ValueError where a sequence is longer than a micro-batch ever has room for. whole: tokens of each."""
    if len(whole) and (longest := int(whole.max())) > of.batch_tokens:
        one = "a replica" if of.pipeline == 1 else f"each of the {of.pipeline} micro-batches of a replica"
        raise ValueError(f"a sequence has {longest} tokens; {one} has room for {of.batch_tokens}")


@dataclass
class _Reading(MicroBatch):
    """A micro-batch with prompts that it reads. reading: (sequence, tokens read) of each, in order."""

    reading: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Replica:
    """A replica that generates. next: the sequence that begins next."""

    prompts: Ints
    responses: Ints
    of: GenerationCost
    batching: Batching
    next: int = 0
    decodes: int = 0
    most: int = 0
    ends: Floats = field(init=False)

    def play(self) -> None:
        """Plays until all sequences have ended."""
        of, count = self.of, len(self.prompts)
        self.ends = np.zeros(count)
        batches = [_Reading(of.batch_tokens) for _ in range(of.pipeline)]
        clock = StageClock([0.0] * of.pipeline)
        while active := [one for one in batches if one.running or one.reading or self.next < count]:
            one = min(active, key=lambda batch: batch.ready)
            parts = self._parts(one)
            if parts:
                self._read(one, parts, clock)
            else:
                self._decode(one, clock, len(active) == 1)
            for sequence in one.ended():
                tokens = int(self.prompts[sequence] + self.responses[sequence])
                self.ends[sequence] = one.ready
                one.room += tokens
                one.context -= tokens - 1
            self.most = max(self.most, sum(len(batch.running) + len(batch.reading) for batch in batches))

    def _parts(self, one: _Reading) -> list[tuple[int, int, int]]:
        """Returns the parts of prompts, (sequence, begin, end), that the next pass of a micro-batch reads, and has
        sequences begin for which there is room."""
        chunked = self.batching.chunked
        left, parts = self.batching.tokens - (len(one.running) if chunked else 0), list[tuple[int, int, int]]()
        for sequence, done in one.reading:
            parts.append((sequence, done, min(int(self.prompts[sequence]), done + max(left, 0))))
            left -= parts[-1][2] - done
        while self.next < len(self.prompts):
            prompt = int(self.prompts[self.next])
            whole = prompt + int(self.responses[self.next])
            fits_pass = left > 0 if chunked else not parts or prompt <= left
            if whole > one.room or not fits_pass:
                break
            one.room -= whole
            one.reading.append((self.next, 0))
            parts.append((self.next, 0, min(prompt, left) if chunked else prompt))
            left -= parts[-1][2]
            self.next += 1
        return [part for part in parts if part[2] > part[1]]

    def _read(self, one: _Reading, parts: list[tuple[int, int, int]], clock: StageClock) -> None:
        """Runs a pass that reads parts of prompts; sequences decode beside them where prefill is chunked."""
        begins, ends = (np.array([part[at] for part in parts], np.int64) for at in (1, 2))
        whole = [sequence for sequence, _, end in parts if end == self.prompts[sequence]]
        decoding = len(one.running) if self.batching.chunked else 0
        seconds = self.of.mixed(decoding, one.context + decoding, begins, ends, len(whole))
        one.ready = clock.run(one.ready, seconds)
        if decoding:
            one.advance(1)
            self.decodes += 1
        read = {sequence: end for sequence, _, end in parts}
        one.reading = [(sequence, read.get(sequence, done)) for sequence, done in one.reading if sequence not in whole]
        for sequence in whole:
            one.join(sequence, int(self.prompts[sequence]), int(self.responses[sequence]) - 1)

    def _decode(self, one: _Reading, clock: StageClock, alone: bool) -> None:
        """Runs a pass that decodes; where no other micro-batch is there, all passes until a sequence ends."""
        sequences, context = len(one.running), one.context + len(one.running)
        if alone and max(clock.free) <= one.ready:
            steps = one.steps_left
            one.ready += self.of.decode_seconds(sequences, context, steps)
            clock.wait_for(one.ready)
        else:
            steps = 1
            one.ready = clock.run(one.ready, self.of.decode(sequences, context))
        one.advance(steps)
        self.decodes += steps
