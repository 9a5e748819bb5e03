"""Placements of sequences and their tokens on nodes: step 1 of docs/planner.md.

A sequence is whole on a node, or cut and spread over just enough nodes. Of these, **back** nodes share it zigzag,
weighted by what each has left; **front** nodes take a stretch each from its beginning. Early tokens see few keys: they
are linear work above all, and fill nodes that lack tokens for the price of keys that leave them; they need hardly any
from others.
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats
from zbench.plans.plan import Ints
from zbench.systems.nodewise.fill import place_and_estimate
from zbench.systems.nodewise.loads import estimate, level_tokens
from zbench.systems.nodewise.records import Estimate, Nodes, Rule, Sequences, Table

# What a layer takes with what is inside its nodes over what its placement says: 1.08 to 1.12 (ten of an arxiv batch on
# h800_4x8, llama_7b).
INSIDE = 1.1


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Holds what every node has of a batch, and what that takes.

    node_of: int64 [num_sequences], the node of every whole sequence, -1 for cut ones. shards: SHARD [n], of the cut
    ones. nics: float64 [2], seconds for which keys, gathers and reductions take the busiest NIC in the forward and in
    the backward.
    """

    rule: Rule
    node_of: Ints
    shards: Table
    estimate: Estimate
    nics: Floats

    def late_seconds(self, layer: float) -> float:
        """Returns what gathers and reductions add where a layer turns out to take `layer` seconds.

        That is what NICs carry in a direction, keys and all, less what the layer covers of it.
        """
        late = self.nics - layer / self.estimate.layer * self.estimate.passes
        return float(np.maximum(late, 0.0).sum())

    @property
    def seconds(self) -> float:
        """Adds what gathers and reductions add to the estimated seconds of a layer."""
        return self.estimate.layer + self.late_seconds(INSIDE * self.estimate.layer)


def placements(sequences: Sequences, nodes: Nodes, rules: list[Rule]) -> list[Placement]:
    """Places sequences by every rule under which they fit; distinct placements, the best estimate first."""
    order = np.argsort(-sequences.work(nodes.token.linear), kind="stable")
    found: dict[float, Placement] = {}
    for rule in rules:
        node_of, shards, fits, estimated = place_and_estimate(sequences, order, nodes, rule)
        if fits:
            one = Placement(rule, node_of, shards, estimated, nodes.taken + estimated.keys.max())
            found.setdefault(one.seconds, one)
    return [found[seconds] for seconds in sorted(found)]


def placement(rule: Rule, node_of: Ints, shards: Table, sequences: Sequences, nodes: Nodes) -> Placement:
    """Makes a placement of sequences and shards that are on nodes already; groups of nodes level their tokens."""
    if rule.wide > 1:
        shards = level_tokens(sequences.tokens, node_of, shards, nodes.num_nodes, rule.wide)
    estimated = estimate(sequences, node_of, shards, nodes, rule.wide)
    return Placement(rule, node_of, shards, estimated, nodes.taken + estimated.keys.max())


def by_narrow_nics(found: list[Placement], sequences: Sequences, nodes: Nodes) -> list[Placement]:
    """Sorts placements by their estimates with half the NICs: those that need NICs least come first."""
    half = nodes._replace(across=2 * nodes.across, one_peer=max(nodes.one_peer / 2, 1.0))
    seconds = [placement(one.rule, one.node_of, one.shards, sequences, half).seconds for one in found]
    return [found[i] for i in np.argsort(seconds, kind="stable")]
