"""Local packing: data parallelism alone, sequences packed to ranks by best fit.

Every sequence stays whole on one GPU, so nothing but parameters and gradients is ever sent, and a sequence that
fits no GPU cannot be trained. The baseline that context parallelism has to beat where it can run at all.

Packs are made by best-fit decreasing: the longest sequence first, into the fullest pack that still has room, else
into a new one. Their size is the smallest with which the fewest micro-batches are enough (bisected, as MULTIFIT
does): Coffman, Garey and Johnson 1978, doi 10.1137/0207001. Pure: no torch.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.batch import Batch
from zbench.build import Builder
from zbench.cost import Cost
from zbench.patterns import local
from zbench.plan import Ints, Plan
from zbench.rewrite import reverse
from zbench.systems.micro_batches import fitting_tokens


@dataclass(frozen=True, slots=True)
class LocalPacking:
    """pack_tokens: size of a pack, at most what fits a GPU; None: the smallest that needs the fewest micro-batches.
    A longer sequence has a pack of its own.

    Raises:
        ValueError: pack_tokens is not a whole number of at least 1.
    """

    cost: Cost
    pack_tokens: int | None = None

    def __post_init__(self) -> None:
        value = self.pack_tokens
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"system.pack_tokens is {value!r}; it takes a whole number of at least 1, or null")

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, lengths = self.cost.cluster.num_ranks, batch.lengths
        most = min(fitting_tokens(self.cost), self.pack_tokens or batch.num_tokens)
        pack = packs(lengths, ranks, most) if self.pack_tokens is None else best_fit(lengths, most)
        # The fullest packs together, so that the ranks of a micro-batch have about the same to do.
        tokens = np.bincount(pack, weights=lengths)
        place = np.empty(len(tokens), np.int64)
        place[np.argsort(-tokens, kind="stable")] = np.arange(len(tokens))
        turn, rank = np.divmod(place[pack], ranks)
        return tuple(self._micro_batch(lengths, np.flatnonzero(turn == t), rank) for t in range(int(turn.max()) + 1))

    def _micro_batch(self, lengths: Ints, seqs: Ints, rank: Ints) -> Plan:
        builder = Builder(
            lengths[seqs], self.cost.cluster.num_ranks, self.cost.model.num_heads, self.cost.model.mask, sequences=seqs
        )
        local(builder, np.arange(len(seqs), dtype=np.int64), rank[seqs])
        return reverse(builder.build(), "keep")


def packs(lengths: Ints, num_ranks: int, most: int) -> Ints:
    """The pack of every sequence, int64 [num_sequences]: as small as the fewest micro-batches allow.

    most: tokens that a pack may hold at most (where no single sequence is longer).
    """
    turns = -(-(int(best_fit(lengths, most).max()) + 1) // num_ranks)
    low, high = max(-(-int(lengths.sum()) // (turns * num_ranks)), 1), most
    while low < high:
        middle = (low + high) // 2
        if best_fit(lengths, middle).max() < turns * num_ranks:
            high = middle
        else:
            low = middle + 1
    return best_fit(lengths, high)


def best_fit(lengths: Ints, size: int) -> Ints:
    """Best-fit decreasing: int64 [num_sequences], packs of at most `size` tokens (or of one longer sequence)."""
    order = np.argsort(-lengths, kind="stable")
    out = np.empty(len(lengths), np.int64)
    out[order] = _best_fit(lengths[order], size)
    return out


@nb.njit(cache=True)
def _best_fit(lengths, size):  # type: ignore[no-untyped-def]
    """lengths: sorted, longest first. A scan of the packs: their number times that of the sequences, compiled."""
    pack = np.empty(len(lengths), np.int64)
    room = np.empty(len(lengths), np.int64)
    count = 0
    for s in range(len(lengths)):
        best = -1
        for at in range(count):
            if room[at] >= lengths[s] and (best < 0 or room[at] < room[best]):
                best = at
                if room[at] == lengths[s]:
                    break
        if best < 0:
            best, count = count, count + 1
            room[best] = max(size, lengths[s])
        room[best] -= lengths[s]
        pack[s] = best
    return pack
