"""WLB-LLM's two ways to cut a pack over a group of ranks, and the choice that its kernels prefer.

Per sequence: the pack is cut in 2G chunks as if it were one document, and rank i owns chunks i and 2G-1-i; documents
stay nearly whole, but ranks with the ends of long ones have more to do. Per document: every document is cut so by
itself; ranks have the same to do to a token, in pieces that may be shorter than a kernel's tile.
Source: WLB-LLM (arXiv 2503.17924, section 5).
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Flags, Floats
from zbench.describe.links import NIC
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import KV
from zbench.passes.reverse import Mode
from zbench.plans.area import Work
from zbench.plans.patterns import pack_zigzag, sequence_zigzag
from zbench.plans.plan import Ints


@dataclass(frozen=True, slots=True, eq=False)
class ShardPieces:
    """Pieces of sequences and who owns them, int64 [n] each: tokens [start, stop) of sequence seq on rank owner, which
    counts over the packs' groups."""

    seq: Ints
    start: Ints
    stop: Ints
    owner: Ints

    def of(self, pack: Ints, number: int, degree: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Selects the pieces of one pack, owners from 0 to degree - 1. pack: that of every sequence."""
        mine = pack[self.seq] == number
        return self.seq[mine], self.start[mine], self.stop[mine], self.owner[mine] - number * degree


def shard_per_document(lengths: Ints, pack: Ints, degree: int, mask: Mask = CAUSAL) -> ShardPieces:
    """Cuts every document of a pack by itself, in zigzag chunks over the pack's group."""
    seq, start, stop, owner = sequence_zigzag(lengths, degree, mask)
    return ShardPieces(seq, start, stop, pack[seq] * degree + owner)


def shard_per_sequence(lengths: Ints, pack: Ints, degree: int, mask: Mask = CAUSAL) -> ShardPieces:
    """Cuts every pack as one sequence, in zigzag chunks over its group, its documents in the batch's order."""
    found: list[tuple[Ints, ...]] = []
    for number in np.unique(pack).tolist():
        mine = np.flatnonzero(pack == number)
        seq, start, stop, owner = pack_zigzag(lengths[mine], degree, mask)
        found.append((mine[seq], start, stop, owner + number * degree))
    return ShardPieces(*(np.concatenate(column) for column in zip(*found, strict=True)))


def mixed(one: ShardPieces, other: ShardPieces, pack: Ints, first: Flags) -> ShardPieces:
    """Returns the pieces of `one` for packs where `first`, else of `other`."""
    a, b = first[pack[one.seq]], ~first[pack[other.seq]]
    return ShardPieces(
        *(np.concatenate([getattr(one, name)[a], getattr(other, name)[b]]) for name in ShardPieces.__dataclass_fields__)
    )


def attend_seconds(pieces: ShardPieces, lengths: Ints, num_packs: int, degree: int, cost: Cost) -> Floats:
    """Returns float64 [num_packs]: the seconds of a pack's slowest rank, one layer, forward and backward; a rank's
    pieces are one call.

    A piece is whole tiles: as zbench.plans.area counts them. lengths: of the sequences.
    """
    each, size = Work.pieces(pieces.start, pieces.stop, lengths[pieces.seq], cost.model.mask), num_packs * degree

    def total(amount: Ints) -> Ints:
        return np.bincount(pieces.owner, amount, size).astype(np.int64)

    ones, longest = np.ones(size, np.int64), np.zeros(size, np.int64)
    np.maximum.at(longest, pieces.owner, each.longest)
    names = ("area", "tiles", "queries", "keys", "segments", "rows", "triangles", "spare_strips", "spare_halves")
    work = Work(**{name: total(getattr(each, name)) for name in names}, longest=longest)
    heads, kv_heads = cost.model.num_heads * ones, cost.model.num_kv_heads * ones
    both = np.asarray(sum(cost.kernel_seconds(work, heads, kv_heads, back) for back in (False, True)))
    return np.asarray(both.reshape(num_packs, degree).max(axis=1), np.float64)


def kv_gather_seconds(tokens: Floats, degree: int, cost: Cost, backward: Mode) -> Floats:
    """Returns the seconds in which keys and values of packs of `tokens` [n] are gathered and their gradients sent home,
    and copied into a buffer.

    Gathered hierarchically, so a node's NICs take in what the other nodes of the group hold once; collectives have all
    of a link's channels.
    """
    cluster = cost.cluster
    size = tokens * cost.model.message_bytes_per_token(KV, 0, cost.model.num_heads)
    if degree == 1:
        return np.zeros(len(size))
    nodes = max(degree // cluster.gpus_per_node, 1)
    inside = cost.gather_seconds(size, degree)
    across = cost.transfer_seconds(size * (nodes - 1) / nodes / cluster.nics_per_node, NIC)
    moves = 2 if backward == "keep" else 3
    return np.asarray(moves * np.maximum(inside, across) + 6 * size / cluster.device.copy_bandwidth, np.float64)
