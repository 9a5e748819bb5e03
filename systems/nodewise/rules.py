"""Which ways of placing sequences on nodes are looked at (zbench.systems.nodewise.cuts.Rule). Pure: no torch."""

from dataclasses import dataclass
from itertools import product

from zbench.describe.arrays import Floats
from zbench.systems.nodewise.cuts import Bins, Rule

MORE = 4  # most sequences that are cut beyond those too long for a node
BACKS, SQUEEZES, WIDES = (0.0, 0.5, 0.9, 2.0), (0.03, 0.2), (2, 4)  # of Rule
FULLS = (1.5, 2.0, 3.0, 4.0, 6.0, 9.0)  # of Rule, where parameters and gradients leave NICs too little (a choice)
MORE_FULL = 2  # as MORE, of these
SLACK = 1.02  # sequences of more than so many even shares of a node are always cut


@dataclass(frozen=True, slots=True)
class Kinds:
    """Switches of zbench.systems.nodewise.planner.Nodewise."""

    fewest: bool
    front: bool
    first: bool
    wide: bool

    def even(self, work: Floats, bins: Bins, heads: int) -> list[Rule]:
        """Rules for nodes with the same work. work: seconds of every sequence; heads: of the model."""
        if bins.count == 1:
            return [Rule(0)]
        found, firsts = [], (False, True) if self.first else (False,)
        for wide in (1, *WIDES) if self.wide and self.fewest and bins.ranks > 1 else (1,):
            if wide > 1 and (bins.count % wide or bins.count < 2 * wide or heads < wide * bins.ranks):
                continue
            must = _too_long(work, wide * work.sum() / bins.count)
            if must == 0:
                found.append(Rule(0, wide=wide))
            backs = BACKS if self.front and wide == 1 else BACKS[:1]
            for cut in range(max(must, 1), min(must + MORE, len(work)) + 1):
                kinds = product(firsts, (False, True), backs, SQUEEZES, (False,), (wide,))
                found += [Rule(cut, *kind) for kind in kinds] if self.fewest else [Rule(cut, even=True)]
        return found

    def uneven(self, work: Floats, bins: Bins) -> list[Rule]:
        """Rules that cut fewer sequences, over fewer nodes."""
        found = []
        for full in (full for full in FULLS if full <= bins.count) if self.fewest else ():
            must = _too_long(work, full * work.sum() / bins.count)
            firsts = (False, True) if self.first and must else (False,)
            cuts = range(must, min(must + MORE_FULL, len(work)) + 1)
            found += [Rule(cut, first, full=full) for cut, first in product(cuts, firsts)]
        return found


def _too_long(work: Floats, share: float) -> int:
    return int((work > SLACK * share).sum())
