"""How much attention an attend computes, and in what pieces. Pure: no torch.

Blocks are disjoint, so the keys that a piece of queries sees in a list of blocks are a prefix of that list's pieces
within the sequence. Query pieces whose keys line up are merged into one **segment**, which is
what a variable-length attention kernel takes: m queries against n keys seen by all of them
(a rectangle), or against n keys and causally each other (a rectangle and a triangle). How pairs of lists are counted
is in zbench.pairs; this module says what is counted.
"""

from dataclasses import dataclass

import numpy as np

from zbench.columns import Column
from zbench.plan import ATTEND, Ints, Ops, Plan

TILE = 128  # rows and columns that flash-attention kernels work on at a time (FlashAttention-2, section 3.3)
STRIP, HALF = 16, 64  # rows of a tile's parts that kernels leave out, where no query is in them (zbench.cost)


@dataclass(frozen=True)
class Work:
    """Per attend (arrays over the attends of a list), for one head.

    area: visible (query, key) pairs. tiles: tiles of TILE x TILE that hold a visible pair.
    queries, keys: tokens of q that see anything, and tokens of kv they see, summed over segments.
    segments: sequences or parts of one that the kernel sees as separate.
    longest: tiles of the longest row. rows: rows of tiles. triangles: segments whose queries see each other causally.
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
    def whole(lengths: Ints) -> "Work":
        """Causal attention of whole sequences, [n], each by itself."""
        rows = -(-lengths // TILE)
        area, tiles = lengths * (lengths + 1) // 2, rows * (rows + 1) // 2
        one, empty = np.ones_like(lengths), TILE * rows - lengths
        spare = rows * (empty // STRIP), rows * (empty // HALF)
        return Work(area, tiles, lengths, lengths, one, rows, rows, one, *spare)

    @staticmethod
    def ring_step(chunk: Ints) -> "Work":
        """A step of a zigzag ring, [n]: a block's two chunks of `chunk` queries against one of keys, all of which they
        see (or one of queries against two of keys), each sequence by itself."""
        half, full = -(-chunk // TILE), -(-2 * chunk // TILE)
        one, empty = np.ones_like(chunk), TILE * full - 2 * chunk
        spare = half * (empty // STRIP), half * (empty // HALF)
        return Work(2 * chunk * chunk, half * full, 2 * chunk, chunk, one, half, half, 0 * one, *spare)

    def take(self, index: Ints) -> "Work":
        """Picks some of the attends and makes their columns int64."""
        return Work(*(getattr(self, name)[index].astype(np.int64) for name in Work.__dataclass_fields__))


COLUMNS = len(Work.__dataclass_fields__)


def work(plan: Plan, ops: Ops) -> tuple[Ints, Work]:
    """(indices of the attends in ops, their work). `ops`: any operations over the plan's lists."""
    attend = np.flatnonzero(ops.kind == ATTEND)
    q_list, kv_list = ops.blocks[attend], ops.kv_blocks[attend]
    pairs = plan.pairs
    at = pairs.find(q_list, kv_list)
    if (at < 0).any():  # not the plan's own operations
        pairs = plan.with_(forward=ops, backward=ops).pairs
        at = pairs.find(q_list, kv_list)
    return attend, pairs.work.take(at)
