"""The clock of Seesaw's generation (arXiv 2503.06433): prompts are read by one layout, words are made by another.

Between both every GPU reloads its weights from host memory. Keys and values go by a buffer in host memory: what a GPU
has of them by its layout is copied out behind the passes that read prompts, and in again by the other layout, sequence
by sequence, behind passes that decode. Prompts are read until the buffer has no room for the next one, then all that is
in it is decoded to the end, so that layouts change as rarely as they can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.rollouts.generate import Generation, check_sequences_fit
from zbench.rollouts.generation_cost import GenerationCost
from zbench.rollouts.seesaw_phases import DecodedFill, SeesawCost, buffer_fills, decode_fill, read_fill


@dataclass(frozen=True)
class SeesawGeneration(Generation):
    """The seconds of generation by two layouts. prefill, decode, reload: seconds of the slowest replica's phases, which
    follow each other; reloads: how often it changes its layout, after it began with that of prefill. back: seconds in
    which each replica changes back to that at the end, 0 where it has it, float64 [replicas]; host_tokens: of the
    fullest buffer of each in host memory, int64 [replicas]."""

    prefill: float
    decode: float
    reload: float
    reloads: int
    back: Floats
    host_tokens: Ints


def generate_by_seesaw(
    prompts: Ints, responses: Ints, pairs: Sequence[SeesawCost], replicas: int
) -> list[SeesawGeneration]:
    """Plays generation by each of some pairs of layouts that take as many GPUs. Arguments, and which sequences a
    replica has, are those of zbench.rollouts.generate.generate.

    Raises:
        ValueError: a sequence is longer than a micro-batch, a prompt than host memory, ever has room for.
    """
    for of in pairs:
        check_sequences_fit(prompts + responses, of.decode)
        check_sequences_fit(prompts, of.prefill)
        of.check_prompts(int(prompts.max()))
    shares = np.array_split(np.arange(len(prompts)), replicas)
    each = [_PhasedReplica(prompts[share], responses[share]) for share in shares]
    return [_played(of, each) for of in pairs]


def _played(of: SeesawCost, replicas: Sequence["_PhasedReplica"]) -> SeesawGeneration:
    """Returns what the replicas come to, which generate beside each other."""
    found = [one.play(of) for one in replicas]
    slowest = max(found, key=lambda one: one.seconds)
    return SeesawGeneration(
        np.array([one.seconds for one in found]),
        np.array([one.decodes for one in found]),
        np.array([one.most for one in found]),
        sum(int((one.prompts + one.responses).sum()) for one in replicas),
        np.concatenate([one.ends for one in found]),
        slowest.prefill,
        slowest.decode,
        slowest.reload,
        slowest.reloads,
        np.array([one.reloads % 2 * of.reload_seconds(of.prefill) for one in found]),
        np.array([one.host_tokens for one in found], np.int64),
    )


@dataclass
class _Phases:
    """The phases of a replica, added up. ends: of its sequences, float64 [sequences]. host_tokens: of its fullest
    buffer."""

    ends: Floats
    prefill: float = 0.0
    decode: float = 0.0
    reload: float = 0.0
    reloads: int = 0
    decodes: int = 0
    most: int = 0
    host_tokens: int = 0

    @property
    def seconds(self) -> float:
        """The seconds of all phases, which follow each other."""
        return self.prefill + self.decode + self.reload


@dataclass
class _PhasedReplica:
    """A replica's sequences. A phase takes as long whatever the layout of the other ones, so each is played once."""

    prompts: Ints
    responses: Ints
    _read: dict[tuple[GenerationCost, int, int, int], tuple[float, Floats]] = field(default_factory=dict)
    _decoded: dict[tuple[GenerationCost, int, int], DecodedFill] = field(default_factory=dict)

    def play(self, of: SeesawCost) -> _Phases:
        """Plays until all sequences have ended."""
        found = _Phases(np.zeros(len(self.prompts)))
        for first, end in buffer_fills(self.prompts, of.host_tokens):
            found.host_tokens = max(found.host_tokens, int(self.prompts[first:end].sum()))
            if found.reloads % 2:
                self._reload(of, of.prefill, found)
            read = of.prefill, of.pass_tokens, first, end
            if read not in self._read:
                self._read[read] = read_fill(self.prompts[first:end], self.responses[first:end], of)
            seconds, ends = self._read[read]
            found.ends[first:end] = found.seconds + ends
            left = first + np.flatnonzero(self.responses[first:end] > 1)
            if not len(left):  # and nobody waits for what is copied out
                found.prefill += float(ends.max())
                continue
            found.prefill += seconds
            self._reload(of, of.decode, found)
            key = of.decode, first, end
            if key not in self._decoded:
                self._decoded[key] = decode_fill(self.prompts[left], self.responses[left], of)
            done = self._decoded[key]
            found.ends[left] = found.seconds + done.ends
            found.decode += done.seconds
            found.decodes += done.decodes
            found.most = max(found.most, done.most)
        return found

    def _reload(self, of: SeesawCost, to: GenerationCost, found: _Phases) -> None:
        if of.prefill != of.decode:
            found.reload += of.reload_seconds(to)
            found.reloads += 1
