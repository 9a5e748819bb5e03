"""Which nodes a sequence is on, and which of its tokens: whole sequences, and cut ones that fill what these leave.

Bins are the cluster's nodes (or its GPUs, where heads are not shared). A cut sequence is spread over just enough bins.
Of these, **back** bins share it zigzag, weighted by what each has left; **front** bins take a stretch each from its
beginning. Early tokens see few keys: they are linear work above all, and fill bins that lack tokens for the price of
keys that leave them; they need hardly any from others. Pure: no torch.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from zbench.plans.plan import Ints
from zbench.systems.nodewise import fill
from zbench.systems.nodewise.load import estimate, held, loads
from zbench.systems.nodewise.rows import levelled, parts
from zbench.systems.nodewise.work import Rates

Floats = NDArray[np.float64]
# What a layer takes with what is inside its nodes over what its placement says: 1.08 to 1.12 (ten of an arxiv batch on
# h800_4x8, llama_7b).
INSIDE = 1.1


@dataclass(frozen=True, slots=True)
class Rule:
    """How cut sequences are placed.

    cut: how many of the longest sequences are cut. first: before the others are placed, so that they get bins of
    their own; otherwise they fill what the others leave. wrap: each goes on where the one before ended; otherwise it
    starts in the bins with the most room. back: bins with less room than this, of the roomiest of the sequence, are
    front bins. squeeze: room that is not worth it, in even shares of a bin. even: the same share in all bins.
    wide: so many bins next to each other are one, and share the heads of what is cut over several of them: fewer keys
    cross. It divides the number of bins. full: bins are filled up to so many even shares of the work: fewer of them
    share a sequence, and they stay uneven.
    """

    cut: int
    first: bool = False
    wrap: bool = False
    back: float = 0.0
    squeeze: float = 0.03
    even: bool = False
    wide: int = 1
    full: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """bin: int64 [num_sequences], -1 for cut ones. rows: int64 [n, 6], of these: sequence, bin, and two pieces'
    starts and stops; the second may be empty. linear, busy, way: float64 [num_bins], seconds of a GPU's linear modules
    and attention, and of the keys on the bin's links. layer: estimate of a layer; passes: [2], of its forward and its
    backward; nics: [2], seconds for which keys, gathers and reductions take NICs in either.
    """

    rule: Rule
    bin: Ints
    rows: Ints
    linear: Floats
    busy: Floats
    way: Floats
    layer: float
    passes: Floats
    nics: Floats

    def shown(self, layer: float) -> float:
        """Seconds that gathers and reductions add where a layer turns out to take `layer`: NICs carry keys, too."""
        late = self.nics - layer / self.layer * self.passes
        return float(np.maximum(late, 0.0).sum())

    @property
    def seconds(self) -> float:
        """Estimate of a layer, with what gathers and reductions add."""
        return self.layer + self.shown(INSIDE * self.layer)


@dataclass(frozen=True, slots=True)
class Bins:
    """count; capacity: tokens of one; ranks: GPUs of one.

    moved: seconds in which the kv of a token gets through a bin's links; alone: times as much to or from one other bin.
    repack: of a cut sequence's token.
    """

    count: int
    capacity: int
    ranks: int
    moved: float
    repack: float
    alone: float = 1.0

    def tokens(self, lengths: Ints, bin: Ints, rows: Ints, wide: int) -> Floats:
        """Tokens that every bin holds."""
        found: Floats = held(lengths, bin, rows, self.count, wide, 1.0)[0]
        return found


def placements(lengths: Ints, attention: Floats, rates: Rates, bins: Bins, rules: list[Rule]) -> list[Placement]:
    """By every rule under which sequences fit; distinct ones, the best estimate first."""
    order = np.argsort(-(attention + rates.token * lengths), kind="stable")
    tokens, work = lengths[order], attention[order]
    found: dict[float, Placement] = {}
    for rule in rules:
        where, rows, fits = fill.place(
            tokens, work, rates.token, rates.square, rates.row, bins.repack, bins.count, bins.capacity,
            rule.cut, rule.first, rule.wrap, rule.back, rule.squeeze, rule.even, rule.wide, rule.full,
        )  # fmt: skip
        if not fits:
            continue
        at = np.empty(len(lengths), np.int64)
        at[order] = where
        rows[:, 0] = order[rows[:, 0]]
        one = placement(rule, at, rows, lengths, attention, rates, bins)
        found.setdefault(one.seconds, one)
    return [found[seconds] for seconds in sorted(found)]


def placement(
    rule: Rule, bin: Ints, rows: Ints, lengths: Ints, attention: Floats, rates: Rates, bins: Bins
) -> Placement:
    """What bins have when sequences are so; bins that share heads level their tokens."""
    if rule.wide > 1:
        rows = levelled(lengths, bin, rows, bins.count, rule.wide)
    given = rates.token, rates.square, rates.row, bins.repack
    load = loads(lengths, attention, bin, rows, *given, bins.count, rule.wide)
    linear, busy, way, layer, passes = estimate(
        lengths, bin, rows, load, rates.token, bins.moved, bins.alone, rates.forward, bins.ranks,
        rule.wide,
    )  # fmt: skip
    return Placement(rule, bin, rows, linear, busy, way, layer, passes, rates.taken + way.max())


def careful(found: list[Placement], lengths: Ints, attention: Floats, rates: Rates, bins: Bins) -> list[Placement]:
    """The placements in the order of estimates with half the NICs: those that need NICs least come first."""
    fewer = replace(bins, moved=2 * bins.moved, alone=max(bins.alone / 2, 1.0))
    with_fewer = [placement(one.rule, one.bin, one.rows, lengths, attention, rates, fewer).seconds for one in found]
    return [found[i] for i in np.argsort(with_fewer, kind="stable")]


def groups(rows: Ints, wide: int) -> list[Ints]:
    """Indices of the rows that share heads, for every group of a sequence that has any: `wide` rows, else one."""
    ends = parts(rows, wide).tolist()
    return [np.arange(begin, end) for begin, end in pairwise(ends)]
