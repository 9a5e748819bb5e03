"""Counts how much attention an attend computes, and in what pieces.

Blocks are disjoint, so the keys that a piece of queries sees in a list of blocks are a prefix of that list's pieces
within the sequence. Query pieces whose keys line up are merged into one **segment**, which is
what a variable-length attention kernel takes: m queries against n keys seen by all of them
(a rectangle), or against n keys and causally each other (a rectangle and a triangle); what a window hides is another
triangle, of keys left behind (zbench.plans.window). How pairs of lists are counted is in zbench.plans.pairs; this
module says what is counted.
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.arrays import Flags
from zbench.describe.mask import CAUSAL, Mask
from zbench.plans.columns import Column
from zbench.plans.plan import ATTEND, Ints, Ops, Plan

TILE = 128  # rows and columns that flash-attention kernels work on at a time (FlashAttention-2, section 3.3)
STRIP, HALF = 16, 64  # rows of a tile's parts that kernels leave out, where no query is in them (zbench.cost.cost)


@dataclass(frozen=True)
class Work:
    """The work of attends for one head (arrays over the attends of a list).

    area: visible (query, key) pairs. tiles: tiles of TILE x TILE that hold a visible pair.
    queries, keys: tokens of q that see anything, and tokens of kv they see, summed over segments.
    segments: sequences or parts of one that the kernel sees as separate.
    longest: tiles of the keys of the longest segment. rows: rows of tiles. triangles: segments whose queries see each
        other causally.
    spare_strips, spare_halves: strips of STRIP rows, halves of HALF, of tiles that hold no query, as there may be in a
        segment's last row of tiles.
    """

    area: Column
    tiles: Column
    queries: Column
    keys: Column
    segments: Column
    longest: Column
    rows: Column
    triangles: Column
    spare_strips: Column
    spare_halves: Column

    @staticmethod
    def whole(lengths: Ints, mask: Mask = CAUSAL) -> "Work":
        """Returns the work of whole sequences, [n], each by itself."""
        if mask != CAUSAL:
            return Work.pieces(0 * lengths, lengths, lengths, mask)
        rows = -(-lengths // TILE)
        area, tiles = lengths * (lengths + 1) // 2, rows * (rows + 1) // 2
        one, empty = np.ones_like(lengths), TILE * rows - lengths
        spare = rows * (empty // STRIP), rows * (empty // HALF)
        return Work(area, tiles, lengths, lengths, one, rows, rows, one, *spare)

    @staticmethod
    def pieces(start: Ints, stop: Ints, length: Ints, mask: Mask = CAUSAL) -> "Work":
        """Returns the work of queries [start, stop) of a sequence of `length` against all keys that they see, [n], a
        segment each."""
        m, one = stop - start, np.ones_like(start)
        rows, before = -(-m // TILE), mask.reach(start) if mask.causal else length
        last = -(-(before + m) // TILE) if mask.causal else -(-before // TILE)  # tiles of the last row, and of keys
        tiles = rows * -(-before // TILE)
        if mask.causal:
            tiles += rows * (rows + 1) // 2 - (rows + -(-before // TILE) - last)
        behind = 0 * rows  # tiles of keys that all queries of the last row have left behind
        if mask.window:
            behind = np.maximum(rows - 1 + (before + 1 - mask.window) // TILE, 0)
            tiles -= behind * (behind + 1) // 2
        area = mask.between(start, stop, 0 * start, length)
        keys = before + m if mask.causal else before
        empty = TILE * rows - m
        spare = (last - behind) * (empty // STRIP), (last - behind) * (empty // HALF)
        return Work(area, tiles, m, keys, one, last, rows, one if mask.causal else 0 * one, *spare)

    @staticmethod
    def least(lengths: Ints, mask: Mask = CAUSAL) -> "Work":
        """Returns the least work of whole sequences, [n], each by itself: no way to cut them has less.

        Under a window pieces may lie better in tiles than whole sequences, but no tile has more than TILE^2 pairs.
        """
        whole = Work.whole(lengths, mask)
        if not mask.window:
            return whole
        cut, none = lengths > mask.window, 0 * lengths
        tiles = np.where(cut, whole.area // TILE**2, whole.tiles)
        spare = (np.where(cut, none, one) for one in (whole.spare_strips, whole.spare_halves))
        return replace(whole, tiles=tiles, spare_strips=next(spare), spare_halves=next(spare))

    @staticmethod
    def ring_step(chunk: Ints) -> "Work":
        """Returns the work of a step of a zigzag ring, [n]: a block's two chunks of `chunk` queries against one of
        keys, all of which they see (or one of queries against two of keys), each sequence by itself."""
        half, full = -(-chunk // TILE), -(-2 * chunk // TILE)
        one, empty = np.ones_like(chunk), TILE * full - 2 * chunk
        spare = half * (empty // STRIP), half * (empty // HALF)
        return Work(2 * chunk * chunk, half * full, 2 * chunk, chunk, one, half, half, 0 * one, *spare)

    @staticmethod
    def ring(lengths: Ints, width: Ints, mask: Mask = CAUSAL) -> tuple[Ints, "Work"]:
        """Returns (attends of a rank, work of one of them on average) of sequences in rings over `width` ranks, which
        broadcast.

        Of a band's (`is_band`) it is about: a chunk in the middle, evenly over the hops in which it is seen.
        """
        lengths, width = np.broadcast_arrays(lengths, width)
        if not mask.causal:
            chunk = -(-lengths // width)
            return width, Work.pieces(0 * chunk, chunk, chunk, mask)
        causal = Work.ring_step(-(-lengths // (2 * width)))
        band = is_band(lengths, mask)
        if not band.any():
            return width, causal
        chunk = -(-lengths // width)
        steps = np.minimum(width, 1 - (1 - mask.window) // chunk)
        whole = Work.pieces(lengths - chunk, lengths, lengths, mask)
        area, tiles, keys = (np.maximum(one // steps, 1) for one in (whole.area, whole.tiles, whole.keys))
        mean = replace(whole, area=area, tiles=tiles, keys=keys, longest=-(-keys // TILE))
        columns = ((getattr(mean, name), getattr(causal, name)) for name in Work.__dataclass_fields__)
        return np.where(band, steps, width), Work(*(np.where(band, *pair) for pair in columns))

    def take(self, index: Ints) -> "Work":
        """Picks some of the attends and makes their columns int64."""
        return Work(*(getattr(self, name)[index].astype(np.int64) for name in Work.__dataclass_fields__))


def is_band(lengths: Ints, mask: Mask) -> Flags:
    """Returns of which sequences a window makes so much of a band that consecutive chunks are balanced: of two windows
    on.

    There a chunk of the band has 4/3 of the mean, as have those in the middle of a zigzag; of longer ones it has less.
    """
    return np.asarray((lengths >= 2 * mask.window) & (mask.window > 0))


COLUMNS = len(Work.__dataclass_fields__)


def work(plan: Plan, ops: Ops) -> tuple[Ints, Work]:
    """Returns (indices of the attends in ops, their work). `ops`: any operations over the plan's lists."""
    attend = np.flatnonzero(ops.kind == ATTEND)
    q_list, kv_list = ops.blocks[attend], ops.kv_blocks[attend]
    pairs = plan.pairs
    at = pairs.find(q_list, kv_list)
    if (at < 0).any():  # not the plan's own operations
        pairs = plan.with_(forward=ops, backward=ops).pairs
        at = pairs.find(q_list, kv_list)
    return attend, pairs.work.take(at)
