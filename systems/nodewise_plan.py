"""A placement with what is inside its nodes, and the plan it makes. Pure: no torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from systems.nodewise_cuts import Placement
from systems.nodewise_cuts import groups as joint
from systems.nodewise_lay import Layer, Shared
from systems.nodewise_ranks import Inside, Node, inside
from systems.nodewise_work import Rates
from zbench.build import Builder
from zbench.plan import Ints, Plan

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """insides: of every node, for the sequences that are whole on it (in ascending order). seconds: estimate."""

    placement: Placement
    insides: tuple[Inside, ...]
    seconds: float


def layout(placed: Placement, lengths: Ints, attention: Floats, rates: Rates, nodes: int, node: Node) -> Layout:
    """Looks into the nodes of a placement."""
    rows = placed.rows
    size = rows[:, 3] - rows[:, 2] + rows[:, 5] - rows[:, 4]
    square = rows[:, 3] ** 2 - rows[:, 2] ** 2 + rows[:, 5] ** 2 - rows[:, 4] ** 2
    tokens = np.bincount(rows[:, 1], size, nodes)
    work = np.bincount(rows[:, 1], rates.square * square + rates.row * size, nodes)
    order = np.argsort(placed.bin, kind="stable")
    begin = np.searchsorted(placed.bin[order], np.arange(nodes + 1))
    found = []
    for n in range(nodes):
        here = order[begin[n] : begin[n + 1]]
        given = lengths[here], attention[here], int(tokens[n]), float(work[n])
        found.append(inside(*given, rates, node))
    # A row and each other one whose keys it needs is a call of its own, in as many chunks.
    calls = np.zeros(nodes)
    for seq in np.unique(rows[:, 0]):
        mine = rows[rows[:, 0] == seq]
        calls[mine[:, 1]] += len(mine)
    more = np.array([one.seconds for one in found]) - placed.linear - placed.busy
    seconds = placed.seconds(rates.forward, more + node.chunks * calls * rates.call)
    return Layout(placed, tuple(found), seconds)


def laid(of: Layout, lengths: Ints, seqs: Ints, num_ranks: int, num_heads: int, chunks: int) -> Plan:
    """The forward of the layout's plan; seqs: which of the batch's sequences `lengths` are."""
    ranks = num_ranks // len(of.insides)
    builder = Builder(lengths, num_ranks, num_heads, sequences=seqs)
    layer = Layer(builder, chunks)
    rank = np.full(len(lengths), -1, np.int64)
    place, even = np.arange(ranks), num_heads * np.arange(ranks + 1) // ranks
    for n, one in enumerate(of.insides):
        here = np.flatnonzero(of.placement.bin == n)
        rank[here] = np.where(one.rank >= 0, n * ranks + one.rank, -1)
        groups = []
        for g, heads in enumerate(one.heads):
            group = here[one.group == g]
            groups.append(Shared(group, np.zeros_like(group), lengths[group], n * ranks + place, one.share, heads))
        layer.groups(groups, n in of.placement.rows[:, 1])
    local = np.flatnonzero(rank >= 0)
    layer.local(local, rank[local])
    spans = of.placement.rows
    rows = [Shared.of_row(span, span[1] * ranks + place, of.insides[span[1]].share, even) for span in spans]
    parts = joint(spans, of.placement.rule.wide)
    joined = [Shared.joined([rows[i] for i in part], num_heads) for part in parts]
    first = np.array([part[0] for part in parts], np.int64)  # every later part of a sequence sees each one's first row
    for seq in np.unique(spans[:, 0]):
        mine = np.flatnonzero(spans[first, 0] == seq)
        layer.cut([joined[i] for i in mine], spans[first[mine]])
    layer.done()
    return builder.build()
