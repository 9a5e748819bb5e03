"""Keeps track, while a rank's operations are walked, of who holds which blocks. No torch: numpy only."""

from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Flags
from zbench.plans.plan import Ints, Plan
from zbench.runtime.program.program import Slot

Heads = tuple[int, int]
Place = tuple["Holder", int]  # a holder, and which of its blocks


@dataclass(frozen=True)
class HomeRows:
    """The layout of a rank's own tokens: `row[b]` is the first of block b's rows, -1 if it is at home elsewhere;
    num_tokens: their number."""

    row: Ints
    num_tokens: int

    @staticmethod
    def of(plan: Plan, rank: int) -> "HomeRows":
        """Returns the layout of a rank's own tokens under a plan."""
        tokens, mine = plan.blocks.tokens, plan.blocks.home == rank
        row = np.where(mine, np.cumsum(np.where(mine, tokens, 0)) - tokens, -1)
        return HomeRows(row.astype(np.int64), int(tokens[mine].sum()))


def home_pieces(plan: Plan, rank: int) -> tuple[Ints, Ints, Ints]:
    """Returns (sequence, start, stop) of the pieces that a rank is home of, int64 [num_pieces] each, in the order of
    its rows: block after block, their pieces by (sequence, start)."""
    blocks = plan.blocks
    every = blocks.pieces.items
    pieces = every[blocks.home[blocks.block[every]] == rank]
    return blocks.seq[pieces], blocks.start[pieces], blocks.stop[pieces]


@dataclass(frozen=True)
class Holder:
    """A slot that holds `blocks` for heads [lo, hi), each from its row on. live: [num_blocks], not yet taken (sums)."""

    slot: int
    lo: int
    hi: int
    blocks: Ints
    row: Ints
    live: Flags


@dataclass
class HolderState:
    """The state of things while a list of operations is walked: slots, and who holds copies and sums."""

    slots: list[Slot] = field(default_factory=list)
    copies: dict[tuple[int, int], list[Place]] = field(default_factory=dict)  # by (tensor, block)
    made: dict[tuple[int, int, int, int], int] = field(default_factory=dict)  # (tensor, list, lo, hi) -> filled slot
    sums: dict[tuple[int, int], list[Place]] = field(default_factory=dict)  # by (tensor, block)
    adding: dict[tuple[int, int, int, int], Holder] = field(default_factory=dict)  # (tensor, list, lo, hi)
    order: dict[int, list[Holder]] = field(default_factory=dict)  # per sum tensor, as they came
    added: dict[int, int] = field(default_factory=dict)  # per slot of sums: attends done when the last one added to it


def find_holders(
    table: dict[tuple[int, int], list[Place]], tensor: int, blocks: Ints, wanted: Ints, heads: Heads
) -> list[tuple[Holder, Ints, Ints]]:
    """Finds who has live heads among `heads` of blocks[wanted]: (holder, which of `blocks`, where among the
    holder's)."""
    found: dict[int, tuple[Holder, list[int], list[int]]] = {}
    for at in wanted.tolist():
        for holder, place in table.get((tensor, int(blocks[at])), ()):
            if holder.lo < heads[1] and heads[0] < holder.hi and holder.live[place]:
                _, mine, theirs = found.setdefault(holder.slot, (holder, [], []))
                mine.append(at)
                theirs.append(place)
    return [(holder, np.array(mine), np.array(theirs)) for _, (holder, mine, theirs) in sorted(found.items())]


def lookup(holder: Holder, blocks: Ints) -> Ints:
    """Returns the first rows of `blocks` in a holder that has them all."""
    order = np.argsort(holder.blocks, kind="stable")
    return np.asarray(holder.row[order[np.searchsorted(holder.blocks[order], blocks)]], np.int64)
