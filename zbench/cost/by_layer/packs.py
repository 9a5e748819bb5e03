"""The sequences of a batch as packs of about equal seconds: one for each group of every micro-batch.

Packs are filled longest first, each sequence into the one with the least so far (longest processing time first, Graham
1969, doi 10.1137/0117039), and the heaviest ones make a micro-batch together, as groups wait for each other.
"""

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.describe.arrays import Floats, Ints


class SlowestPack(NamedTuple):
    """The pack of a micro-batch that takes longest, in the mean over micro-batches: its tokens and the seconds of a
    layer's attention, forward and backward, of one GPU. fullest: tokens of the pack with the most."""

    tokens: float
    forward: float
    backward: float
    fullest: float


@dataclass(frozen=True)
class SequencePacks:
    """The packs of a batch. cost: of GPUs. lengths: of every sequence."""

    cost: Cost
    lengths: Ints
    _known: dict[int, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def slowest(self, groups: int, micro_batches: int) -> SlowestPack:
        """Returns the slowest packs of so many groups and micro-batches, which are no more than there are sequences."""
        packs = self._packs(groups * micro_batches)
        of_micro_batch = packs[np.argsort(-packs[:, 3], kind="stable")].reshape(micro_batches, groups, 4)
        first = of_micro_batch[:, 0]  # the heaviest one comes first
        tokens, there, back = first[:, :3].mean(axis=0).tolist()
        return SlowestPack(tokens, there, back, float(packs[:, 0].max()))

    def _packs(self, count: int) -> Floats:
        """Returns of every pack its tokens, the seconds of attention, forward and backward, and all its seconds,
        float64 [packs, 4]."""
        if count not in self._known:
            work = self._work()
            found, waiting = np.zeros((count, 4)), [(0.0, pack) for pack in range(count)]
            for sequence in np.argsort(-work[:, 3], kind="stable").tolist():
                load, pack = waiting[0]
                found[pack] += work[sequence]
                heapq.heapreplace(waiting, (load + float(work[sequence, 3]), pack))
            self._known[count] = found
        return self._known[count]

    def _work(self) -> Floats:
        """Returns the row of _packs for every sequence by itself."""
        there, back = (self.cost.whole_seconds(self.lengths, way) for way in (False, True))
        many = 1 << 20  # tokens of which linear seconds are told: a sequence's kernels are its pack's
        token = float(of_parts(self.cost).linear_seconds(np.array([many]))[0]) / many
        tokens = self.lengths.astype(np.float64)
        return np.stack([tokens, there, back, there + back + 3 * token * tokens], axis=1)
