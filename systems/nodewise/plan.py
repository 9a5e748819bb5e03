"""A placement with what is inside its nodes, and the plan it makes. Pure: no torch."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zbench.cost.cost import Cost
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Plan
from zbench.simulator.simulate import Programs, programs, steady_seconds
from zbench.systems.common.layer_seconds import with_collectives
from zbench.systems.nodewise import pace
from zbench.systems.nodewise.cuts import Bins, Placement
from zbench.systems.nodewise.cuts import groups as joint
from zbench.systems.nodewise.lay import Layer, Shared
from zbench.systems.nodewise.ranks import Inside, Node, inside
from zbench.systems.nodewise.rows import needs, row_squares, row_tokens, whole
from zbench.systems.nodewise.work import Rates

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """insides: of every node, for the sequences that are whole on it (in ascending order). seconds: estimate, with what
    parameters and gradients add."""

    placement: Placement
    insides: tuple[Inside, ...]
    seconds: float


def layout(placed: Placement, lengths: Ints, attention: Floats, rates: Rates, nodes: int, node: Node) -> Layout:
    """Looks into the nodes of a placement."""
    rows = _rows(placed, rates, nodes, node)
    order = np.argsort(placed.bin, kind="stable")
    begin = np.searchsorted(placed.bin[order], np.arange(nodes + 1))
    found = []
    for n in range(nodes):
        here = order[begin[n] : begin[n + 1]]
        found.append(inside(lengths[here], attention[here], rows[n], rates, node))
    layer = max(one.seconds for one in found)
    return Layout(placed, tuple(found), layer + placed.shown(layer))


def _rows(placed: Placement, rates: Rates, nodes: int, node: Node) -> Floats:
    """float64 [nodes, 2, ROW]: what of cut sequences is on every node, as pace.Work.row has it."""
    rows, ways, ranks = placed.rows, rates.pace.ways, node.num_ranks
    tokens, count, work, own, calls, queries, keys, ready = np.zeros((8, nodes))
    parts = joint(rows, placed.rule.wide)
    merged = [whole(rows[part]) for part in parts]
    for part, one in zip(parts, merged, strict=True):  # its nodes share heads evenly
        bin, size, share = rows[part, 1], row_tokens(one), 1 / len(part)
        tokens[bin] += [row_tokens(row) for row in rows[part]]
        count[bin] += 1
        whole_work = rates.square * row_squares(one) + rates.row * size
        work[bin] += share * whole_work
        own[bin] += share * min(rates.prefix(size), whole_work)
        ready[bin] = np.maximum(ready[bin], placed.linear[rows[rows[:, 0] == one[0], 1]].max())
        for other in merged:
            if other[0] == one[0] and other is not one and needs(one, other):
                calls[bin] += 1
                queries[bin] += share * size
                keys[bin] += share * row_tokens(other)
    out = np.zeros((nodes, 2, pace.ROW))
    heads = node.num_heads / (ranks * placed.rule.wide)
    for direction, way in enumerate(ways):
        chunks = len(pace.row_bounds(pace.row_cut(node.chunks, direction), heads)) - 1
        joins = way[pace.JOIN_Q] * queries + way[pace.JOIN_KV] * keys
        starts = chunks * calls * (way[pace.START] + way[pace.JOIN])
        row = out[:, direction]
        row[:, pace.TOKENS] = tokens
        row[:, pace.OWN] = (way[pace.ATTENTION] * own + rates.repack * tokens / 2) / ranks
        row[:, pace.OTHERS] = (way[pace.ATTENTION] * (work - own) + joins) / ranks + starts
        row[:, pace.LATE] = row[:, pace.OTHERS] / np.maximum(calls, 1)
        row[:, pace.STARTS] = count * way[pace.START]
        row[:, pace.KEYS] = placed.way
        row[:, pace.READY] = ready * way[pace.LINEAR]
        row[:, pace.HEADS] = heads
        row[:, pace.WIDE] = 1 - 1 / placed.rule.wide
    return out


def laid(of: Layout, lengths: Ints, seqs: Ints, cost: Cost, chunks: int, pairs: bool = False) -> Plan:
    """The layout's plan; seqs: which of the batch's sequences `lengths` are. chunks: parts of rows' heads at most.
    pairs: as of nodewise_lay.Layer.

    Both directions are laid as forwards, as they differ in chunks only; the backward's is then reversed.
    """
    num_ranks, num_heads = cost.cluster.num_ranks, cost.model.num_heads
    builder = Builder(lengths, num_ranks, num_heads, cost.model.mask, sequences=seqs)
    layer = Layer(builder, chunks, pairs)
    ranks = num_ranks // len(of.insides)
    rank = np.full(len(lengths), -1, np.int64)
    place, even = np.arange(ranks), num_heads * np.arange(ranks + 1) // ranks
    for n, one in enumerate(of.insides):
        here = np.flatnonzero(of.placement.bin == n)
        rank[here] = np.where(one.rank >= 0, n * ranks + one.rank, -1)
        groups = []
        for g, heads in enumerate(one.heads):
            group = here[one.group == g]
            groups.append(Shared(group, np.zeros_like(group), lengths[group], n * ranks + place, one.share, heads))
        layer.groups(groups, one.cuts)
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
    both = builder.build()
    there, back = (
        both.with_(forward=replace(ops, keep=np.zeros(len(ops), np.int64)))
        for ops in (both.forward.take(both.forward.keep == way) for way in (pace.FORWARD, pace.BACKWARD))
    )
    return reverse(there, "keep").with_(backward=reverse(back, "keep").backward)


def seconds_of(plan: Plan, parts: Programs, cost: Cost) -> float:
    """Seconds of a layer, as the mean over all, with its share of what parameters and gradients add."""
    return with_collectives(parts, *steady_seconds(plan, cost, parts), cost)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The sequences of a micro-batch (which of the batch's they are: seqs) and what they are placed on."""

    lengths: Ints
    seqs: Ints
    attention: Floats
    rates: Rates
    bins: Bins
    node: Node

    def layout(self, placed: Placement) -> Layout:
        return layout(placed, self.lengths, self.attention, self.rates, self.bins.count, self.node)

    def laid(self, one: Layout, cost: Cost, pairs: bool = False) -> Plan:
        return laid(one, self.lengths, self.seqs, cost, self.node.chunks, pairs)

    def played(self, one: Layout, cost: Cost, pairs: bool = False) -> "Played":
        plan = self.laid(one, cost, pairs)
        parts = programs(plan, cost)
        return Played(one, plan, parts, seconds_of(plan, parts, cost), pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """pairs: as it was laid. seconds: of a layer (seconds_of)."""

    layout: Layout
    plan: Plan
    parts: Programs
    seconds: float
    pairs: bool

    @property
    def operations(self) -> int:
        return len(self.plan.forward) + len(self.plan.backward)

    def busy(self, cost: Cost) -> Floats:
        """Seconds that every rank computes in a layer as it was played, without recomputation, [num_ranks]."""
        seconds = 3 * cost.linear_seconds(self.plan.tokens_per_rank)
        for part in self.parts:
            attends = part.legs.link_a < 0
            seconds += np.bincount(part.legs.rank[attends], part.busy[attends], len(seconds))
        return seconds
