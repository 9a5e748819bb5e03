"""A batch: the sequence lengths of one training step.

A batch is a function of (seed, step) alone, so that every system is compared on the same
sequences whatever it does with them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.arrays import Flags, Ints


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The prompts of a batch's sequences that were generated, and what was generated for nothing.

    prompts: int64 [num_sequences], tokens of each sequence that are its prompt, fewer than it has; the others are its
        response.
    given_up: int64 [2, sequences], prompt and response tokens of sequences that were begun with the batch and given up
        before they ended; no step trains with those.
    """

    prompts: Ints
    given_up: Ints


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one global batch.

    lengths: int64 [num_sequences], tokens of each sequence, each at least 1.
    documents: int64 [num_sequences], which document of a corpus each sequence is the head of;
        None where the workload draws lengths only.
    rollouts: the prompts and responses that the sequences are; None where they are not told.
    counts: bool [num_tokens], sequence after sequence, whether the label of each token counts in the loss; None: all
        do. A token's label is the next one of its sequence, of the last one token 0.
    """

    lengths: Ints
    seed: int
    step: int
    documents: Ints | None = None
    rollouts: Rollouts | None = None
    counts: Flags | None = None

    @property
    def num_tokens(self) -> int:
        """The tokens of all sequences."""
        return int(self.lengths.sum())

    @property
    def sum_squared(self) -> int:
        """Sum of squared lengths: with num_tokens, all that any MFU convention needs."""
        return int((self.lengths.astype(object) ** 2).sum())

    @property
    def counts_of_sequences(self) -> Sequence[Flags] | None:
        """The part of `counts` that each sequence has, bool [length]; None where all labels count."""
        return None if self.counts is None else np.split(self.counts, np.cumsum(self.lengths)[:-1])

    @property
    def counted_labels(self) -> int:
        """The labels of which the loss is the mean."""
        return self.num_tokens if self.counts is None else int(self.counts.sum())

    def of_sequences(self, numbers: Ints) -> "Batch":
        """Returns the batch of some of its sequences, in the order of their numbers, int64; rollouts are not told."""
        documents, counts = self.documents, self.counts_of_sequences
        return replace(
            self,
            lengths=self.lengths[numbers],
            documents=None if documents is None else documents[numbers],
            rollouts=None,
            counts=None if counts is None else np.concatenate([np.zeros(0, bool), *(counts[at] for at in numbers)]),
        )

    def octaves(self) -> dict[str, list[int]]:
        """Returns the numbers of sequences and of tokens by length: entry i of each is of lengths from 2^i to below
        2^(i + 1)."""
        octave = np.frexp(self.lengths)[1] - 1  # exact: a length is far below 2^53
        tokens = np.zeros(octave.max() + 1, np.int64)
        np.add.at(tokens, octave, self.lengths)
        return {"sequences": np.bincount(octave).tolist(), "tokens": tokens.tolist()}

    @property
    def digest(self) -> str:
        """Names the batch by its lengths and labels that count; two runs saw the same batch if digests agree."""
        found = hashlib.sha256(np.ascontiguousarray(self.lengths, "<i8").tobytes())
        if self.counts is not None:
            found.update(np.packbits(self.counts).tobytes())
        return found.hexdigest()[:16]
