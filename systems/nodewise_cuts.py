"""Which nodes a sequence is on, and which of its tokens: whole sequences, and cut ones that fill what these leave.

Bins are the cluster's nodes (or its GPUs, where heads are not shared). A cut sequence is spread over just enough bins.
Of these, **back** bins share it zigzag, weighted by what each has left; **front** bins take a stretch each from its
beginning. Early tokens see few keys: they are linear work above all, and fill bins that lack tokens for the price of
keys that leave them; they need hardly any from others. Pure: no torch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from systems import nodewise_fill as fill
from systems.nodewise_work import Rates
from zbench.plan import Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """How cut sequences are placed.

    cut: how many of the longest sequences are cut. first: before the others are placed, so that they get bins of
    their own; otherwise they fill what the others leave. wrap: each goes on where the one before ended; otherwise it
    starts in the bins with the most room. back: bins with less room than this, of the roomiest of the sequence, are
    front bins. squeeze: room that is not worth it, in even shares of a bin. even: the same share in all bins.
    wide: of a sequence in at least twice as many bins so many share heads each: fewer keys cross.
    """

    cut: int
    first: bool = False
    wrap: bool = False
    back: float = 0.0
    squeeze: float = 0.03
    even: bool = False
    wide: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """bin: int64 [num_sequences], -1 for cut ones. rows: int64 [n, 6], of these: sequence, bin, and two pieces'
    starts and stops; the second may be empty. linear, busy, way: float64 [num_bins], seconds of a GPU's linear modules
    and attention, and of the keys on the bin's links.
    """

    rule: Rule
    bin: Ints
    rows: Ints
    linear: Floats
    busy: Floats
    way: Floats


@dataclass(frozen=True, slots=True)
class Bins:
    """count; capacity: tokens of one; ranks: GPUs of one.

    moved: seconds in which the kv of a token gets through a bin's links. repack: of a cut sequence's token.
    """

    count: int
    capacity: int
    ranks: int
    moved: float
    repack: float


def placements(lengths: Ints, attention: Floats, rates: Rates, bins: Bins, rules: list[Rule]) -> list[Placement]:
    """By every rule under which sequences fit; distinct ones, the best estimate first."""
    order = np.argsort(-(attention + rates.token * lengths), kind="stable")
    tokens, work = lengths[order], attention[order]
    found: dict[float, Placement] = {}
    for rule in rules:
        where, rows, load, fits = fill.place(
            tokens, work, rates.token, rates.square, rates.row, bins.repack, bins.count, bins.capacity,
            rule.cut, rule.first, rule.wrap, rule.back, rule.squeeze, rule.even, rule.wide,
        )  # fmt: skip
        if not fits:
            continue
        linear, busy, way, seconds = fill.estimate(
            tokens, where, rows, load, rates.token, bins.moved, rates.forward, bins.ranks, rule.wide
        )
        if seconds not in found:
            at = np.empty(len(lengths), np.int64)
            at[order] = where
            rows[:, 0] = order[rows[:, 0]]
            found[seconds] = Placement(rule, at, rows, linear, busy, way)
    return [found[seconds] for seconds in sorted(found)]


def groups(rows: Ints, wide: int) -> list[Ints]:
    """Indices of the rows that share heads, for every group of a sequence that has any: `wide` rows, else one."""
    found = []
    for seq in np.unique(rows[:, 0]):
        mine = np.flatnonzero(rows[:, 0] == seq)
        together = len(mine) >= 2 * wide and len(mine) % wide == 0
        found += list(mine.reshape(-1, wide if together else 1))
    return found


def needs(row: Ints, other: Ints) -> bool:
    """Whether queries of `row` see keys of `other`, rows of one sequence."""
    found: bool = fill.needs(row, other)
    return found
