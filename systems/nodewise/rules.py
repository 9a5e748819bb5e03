"""Lists the rules by which sequences may be placed on nodes: which placements there are to choose from.

A rule (zbench.systems.nodewise.records.Rule) says first of all how many of the longest sequences are cut across nodes;
zbench.systems.nodewise.fill cuts them so and places the others whole.
"""

from dataclasses import dataclass
from itertools import product

from zbench.describe.arrays import Floats
from zbench.systems.nodewise.records import Nodes, Rule

MORE = 4  # most sequences that are cut beyond those too long for a node
FRONTS, SQUEEZES, WIDES = (0.0, 0.5, 0.9, 2.0), (0.03, 0.2), (2, 4)  # of Rule
FULLS = (1.5, 2.0, 3.0, 4.0, 6.0, 9.0)  # of Rule, where parameters and gradients leave NICs too little (a choice)
MORE_FULL = 2  # as MORE, of these
SLACK = 1.02  # sequences of more than so many even shares of a node are always cut


@dataclass(frozen=True, slots=True)
class Kinds:
    """Holds the switches of zbench.systems.nodewise.planner.Nodewise that say which kinds of rules there are."""

    fewest_nodes: bool
    fill_with_beginnings: bool
    place_cut_first: bool
    share_heads_across_nodes: bool

    def even(self, work: Floats, nodes: Nodes, heads: int) -> list[Rule]:
        """Lists rules that give nodes the same work. work: seconds of every sequence; heads: of the model."""
        if nodes.num_nodes == 1:
            return [Rule(0)]
        found, firsts = [], (False, True) if self.place_cut_first else (False,)
        for wide in (
            (1, *WIDES) if self.share_heads_across_nodes and self.fewest_nodes and nodes.num_ranks > 1 else (1,)
        ):
            if wide > 1 and (nodes.num_nodes % wide or nodes.num_nodes < 2 * wide or heads < wide * nodes.num_ranks):
                continue
            must = _too_long(work, wide * work.sum() / nodes.num_nodes)
            if must == 0:
                found.append(Rule(0, wide=wide))
            fronts = FRONTS if self.fill_with_beginnings and wide == 1 else FRONTS[:1]
            for cut in range(max(must, 1), min(must + MORE, len(work)) + 1):
                kinds = product(firsts, (False, True), fronts, SQUEEZES, (False,), (wide,))
                found += [Rule(cut, *kind) for kind in kinds] if self.fewest_nodes else [Rule(cut, even=True)]
        return found

    def uneven(self, work: Floats, nodes: Nodes) -> list[Rule]:
        """Lists rules that cut fewer sequences, over fewer nodes. work: seconds of every sequence."""
        found = []
        for full in (full for full in FULLS if full <= nodes.num_nodes) if self.fewest_nodes else ():
            must = _too_long(work, full * work.sum() / nodes.num_nodes)
            firsts = (False, True) if self.place_cut_first and must else (False,)
            cuts = range(must, min(must + MORE_FULL, len(work)) + 1)
            found += [Rule(cut, first, full=full) for cut, first in product(cuts, firsts)]
        return found


def _too_long(work: Floats, share: float) -> int:
    """How many sequences have to be cut where a node's even share of the work is `share`."""
    return int((work > SLACK * share).sum())
