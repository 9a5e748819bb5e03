"""A placement with what is inside its nodes (step 2 of docs/planner.md), and the plan it makes."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from zbench.cost.cost import Cost
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Plan
from zbench.systems.nodewise.inside import NodeLayout, node_layout
from zbench.systems.nodewise.operations import Layer, Shared
from zbench.systems.nodewise.placements import Placement
from zbench.systems.nodewise.rates import Rates
from zbench.systems.nodewise.records import BACKWARD, FORWARD, NodeSettings, Sequences
from zbench.systems.nodewise.shard_work import shard_work
from zbench.systems.nodewise.shards import join, joint_bounds, sees_others


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Holds a placement and the layouts of its nodes, each of the sequences that are whole on it, in ascending order.

    seconds: estimate of a layer, with what parameters and gradients add.
    """

    placement: Placement
    nodes: tuple[NodeLayout, ...]
    seconds: float


def make_layout(placed: Placement, sequences: Sequences, rates: Rates, settings: NodeSettings) -> Layout:
    """Lays out every node of a placement."""
    nodes = len(placed.estimate.linear)
    work = shard_work(placed.shards, placed.rule.wide, placed.estimate, rates.token, rates.pace, settings)
    order = np.argsort(placed.node_of, kind="stable")
    begin = np.searchsorted(placed.node_of[order], np.arange(nodes + 1))
    found = []
    for n in range(nodes):
        here = order[begin[n] : begin[n + 1]]
        own = Sequences(sequences.tokens[here], sequences.attention[here])
        found.append(node_layout(own, work[n], rates, settings))
    layer = max(one.seconds for one in found)
    return Layout(placed, tuple(found), layer + placed.late_seconds(layer))


def make_plan(layout: Layout, lengths: Ints, seqs: Ints, cost: Cost, chunks: int, pairs: bool = False) -> Plan:
    """Makes the plan of a layout.

    seqs: which of the batch's sequences `lengths` are. chunks: parts of shards' heads at most. pairs: shards attend to
    the keys of two others in one call of the backward.

    Both directions are laid as forwards, as they differ in chunks only; the backward's is then reversed.
    """
    num_ranks = cost.cluster.num_ranks
    builder = Builder(lengths, num_ranks, cost.model.num_heads, cost.model.mask, sequences=seqs)
    layer = Layer(builder, cost.model.num_heads // cost.model.num_kv_heads, chunks, pairs)
    ranks = num_ranks // len(layout.nodes)
    rank = np.full(len(lengths), -1, np.int64)
    for n, node in enumerate(layout.nodes):
        here = np.flatnonzero(layout.placement.node_of == n)
        rank[here] = np.where(node.rank >= 0, n * ranks + node.rank, -1)
        groups = []
        for g, heads in enumerate(node.heads):
            group = here[node.group == g]
            of_node = n * ranks + np.arange(ranks)
            groups.append(Shared(group, np.zeros_like(group), lengths[group], of_node, node.share, heads))
        layer.groups(groups, node.cuts)
    local = np.flatnonzero(rank >= 0)
    layer.local(local, rank[local])
    _add_shards(layer, layout, ranks)
    layer.done()
    both = builder.build()
    ahead, back = (
        both.with_(forward=replace(ops, keep=np.zeros(len(ops), np.int64)))
        for ops in (both.forward.take(both.forward.keep == direction) for direction in (FORWARD, BACKWARD))
    )
    return reverse(ahead, "keep").with_(backward=reverse(back, "keep").backward)


def _add_shards(layer: Layer, layout: Layout, ranks: int) -> None:
    """Adds the cut sequences: every joint shard with all GPUs of its nodes, and who sees whose keys."""
    shards, num_heads = layout.placement.shards, layer.builder.num_heads
    even = num_heads * np.arange(ranks + 1) // ranks
    shared = [
        Shared.of_shard(shard, shard["node"] * ranks + np.arange(ranks), layout.nodes[shard["node"]].share, even)
        for shard in shards
    ]
    bounds = joint_bounds(shards, layout.placement.rule.wide)
    joined = [Shared.joined(shared[begin:stop], num_heads) for begin, stop in pairwise(bounds.tolist())]
    joints = join(shards, bounds)
    sees = sees_others(joints)  # not of their first shards: a second piece may be too short for its first node
    for seq in np.unique(shards["seq"]):
        mine = np.flatnonzero(joints["seq"] == seq)
        layer.cut([joined[i] for i in mine], sees[np.ix_(mine, mine)])
