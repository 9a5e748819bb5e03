"""The clock of generation: every sequence until it ends, by continuous batching on replicas.

A replica has a micro-batch for each stage of its pipeline, with an even share of its room for keys and values; they
take sequences from one queue, in its order, and stages take turns with them. Without stages there is one micro-batch.
Prompts are read in passes of their own, before others go on, or in chunks beside them (chunked prefill, as
Sarathi-Serve has it, arXiv 2403.02310).
"""

from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.rollouts.generation_cost import MEMORY_SHARE, GenerationCost
from zbench.rollouts.stage_clock import DecodingBatch, StageClock, decode_rounds

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
    """The limits of a pass. tokens: of a pass that reads prompts, at least one of them; with chunked prefill of any
    pass, those that decode among them."""

    tokens: int = EVERYTHING
    chunked: bool = False


WHOLE_PROMPTS = Batching()


def generate(
    prompts: Ints, responses: Ints, of: GenerationCost, replicas: int, batching: Batching = WHOLE_PROMPTS
) -> Generation:
    """Plays generation. prompts, responses: int64 [sequences], tokens of each; a response has at least 1, and a prompt
    without any is the rest of a sequence that a batch has cut. Replicas have even shares of them, in their order. A
    sequence begins when a micro-batch has room for all that it will have, in order; the pass that reads the end of its
    prompt makes its first word.

    Raises:
        ValueError: a sequence is longer than a micro-batch ever has room for.
    """
    check_sequences_fit(prompts + responses, of)
    ends = np.zeros(len(prompts))
    found = []
    for share in np.array_split(np.arange(len(prompts)), replicas):
        played = _Replica(prompts[share], responses[share], of, batching)
        played.play()
        ends[share] = played.ends
        found.append((float(played.ends.max(initial=0.0)), played.decodes, played.most))
    seconds, decodes, most = (np.array(column) for column in zip(*found, strict=True))
    return Generation(seconds, decodes, most, int((prompts + responses).sum()), ends)


def check_sequences_fit(whole: Ints, of: GenerationCost) -> None:
    """Raises ValueError where a sequence is longer than a micro-batch ever has room for. whole: tokens of each."""
    if len(whole) and (longest := int(whole.max())) > of.batch_tokens:
        one = "a replica" if of.pipeline == 1 else f"each of the {of.pipeline} micro-batches of a replica"
        raise ValueError(
            f"a sequence has {longest} tokens; keys and values of {of.batch_tokens} have room on {one} in "
            f"{of.share_key}={of.memory_share}: take shorter sequences, more GPUs of a replica or a larger "
            f"{of.share_key}"
        )


@dataclass
class _Reading(DecodingBatch):
    """A micro-batch with prompts that it reads. reading: (sequence, tokens read) of each, in order."""

    reading: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Replica:
    """A replica that generates. next: the sequence that begins next. begun: sequences that have begun and not ended."""

    prompts: Ints
    responses: Ints
    of: GenerationCost
    batching: Batching
    next: int = 0
    begun: int = 0
    decodes: int = 0
    most: int = 0
    ends: Floats = field(init=False)
    _tokens: list[tuple[int, int]] = field(init=False)  # of a prompt, and of all, by sequence

    def play(self) -> None:
        """Plays until all sequences have ended."""
        of = self.of
        self.ends = np.zeros(len(self.prompts))
        self._tokens = list(zip(self.prompts.tolist(), (self.prompts + self.responses).tolist(), strict=True))
        batches = [_Reading(of.batch_tokens) for _ in range(of.pipeline)]
        clock = StageClock([0.0] * of.pipeline)
        while active := self._active(batches):
            if self._is_settled(active):
                turns = active
                self.decodes += decode_rounds(active, of, clock)
            else:
                turns = [min(active, key=attrgetter("ready"))]
                self._turn(turns[0], clock)
            for one in turns:
                for sequence in one.ended():
                    whole = self._tokens[sequence][1]
                    self.ends[sequence] = one.ready
                    self.begun -= 1
                    one.room += whole
                    one.context -= whole - 1

    def _active(self, batches: list[_Reading]) -> list[_Reading]:
        """Returns the micro-batches that have something to do yet."""
        if self.next < len(self._tokens):
            return batches
        return [one for one in batches if one.running or one.reading]

    def _is_settled(self, active: list[_Reading]) -> bool:
        """Returns whether nothing but decoding happens until a sequence ends."""
        if not all(one.running and not one.reading for one in active):
            return False
        return self.next == len(self._tokens) or self._tokens[self.next][1] > max(one.room for one in active)

    def _turn(self, one: _Reading, clock: StageClock) -> None:
        """Runs the next pass of a micro-batch."""
        if parts := self._parts(one):
            self._read(one, parts, clock)
        else:
            one.decode(self.of, clock)
            self.decodes += 1

    def _parts(self, one: _Reading) -> list[tuple[int, int, int]]:
        """Returns the parts of prompts, (sequence, begin, end), that the next pass of a micro-batch reads, and has
        sequences begin for which there is room."""
        chunked = self.batching.chunked
        left, parts = self.batching.tokens - (len(one.running) if chunked else 0), list[tuple[int, int, int]]()
        for sequence, done in one.reading:
            end = min(self._tokens[sequence][0], done + max(left, 0))
            parts.append((sequence, done, end))
            left -= end - done
        while self.next < len(self._tokens):
            prompt, whole = self._tokens[self.next]
            fits_pass = left > 0 if chunked else not parts or prompt <= left
            if whole > one.room or not fits_pass:
                break
            one.room -= whole
            one.reading.append((self.next, 0))
            parts.append((self.next, 0, min(prompt, left) if chunked else prompt))
            left -= parts[-1][2]
            self.next += 1
            self.begun += 1
        self.most = max(self.most, self.begun)
        return [part for part in parts if part[2] > part[1] or not self._tokens[part[0]][0]]

    def _read(self, one: _Reading, parts: list[tuple[int, int, int]], clock: StageClock) -> None:
        """Runs a pass that reads parts of prompts; sequences decode beside them where prefill is chunked."""
        begins, ends = (np.array([part[at] for part in parts], np.int64) for at in (1, 2))
        read = {sequence: end for sequence, _, end in parts}
        whole = [sequence for sequence, end in read.items() if end == self._tokens[sequence][0]]
        decoding = len(one.running) if self.batching.chunked else 0
        seconds = self.of.mixed(decoding, one.context + decoding, begins, ends, len(whole))
        one.ready = clock.run(one.ready, seconds)
        if decoding:
            one.advance(1)
            self.decodes += 1
        left = [(sequence, read.get(sequence, done)) for sequence, done in one.reading]
        one.reading = [(sequence, done) for sequence, done in left if done < self._tokens[sequence][0]]
        for sequence in whole:
            prompt, tokens = self._tokens[sequence]
            one.join(sequence, prompt, tokens - prompt - 1)
