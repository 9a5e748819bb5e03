"""Nodewise: heads shared inside nodes, sequences cut across just enough of them, both filling what others leave.

docs/planner.md is its description. Pure: no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from systems.micro_batches import fitting
from systems.nodewise_cuts import Bins, Rule, placements
from systems.nodewise_lay import Layer, Shared
from systems.nodewise_ranks import inside
from systems.nodewise_work import Rates, attention_seconds
from systems.zeppelin_zones import capacity_tokens
from zbench.batch import Batch
from zbench.build import Builder
from zbench.cost import Cost
from zbench.plan import Ints, Plan
from zbench.rewrite import reverse
from zbench.rewrite.order import scheduled
from zbench.simulate import layer_seconds, programs

LAYERS = 3
DEBUG = False


@dataclass(frozen=True, slots=True)
class Nodewise:
    cost: Cost
    tries: int = 6
    chunks: tuple[int, ...] = (1, 2, 4)
    order: bool = False

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        lengths = batch.lengths
        return fitting(lengths, self.cost, lambda seqs: self._plans(lengths, seqs))

    def _plans(self, lengths: Ints, seqs: Ints) -> Iterator[Plan]:
        mine = lengths[seqs]
        rates = Rates.of(self.cost)
        cluster = self.cost.cluster
        attention = attention_seconds(mine, self.cost)
        capacity = max(capacity_tokens(self.cost), -(-int(mine.sum()) // cluster.num_ranks))
        N, P = cluster.num_nodes, cluster.gpus_per_node
        bins = Bins(np.zeros(N), capacity * P, P, rates.across, rates.repack)
        found = placements(mine, attention, rates, bins, rules(attention + rates.token * mine, bins, 4))
        best = None
        for placed in found[: self.tries]:
            for chunks in self.chunks:
                plan = self._laid(mine, seqs, attention, placed, rates, capacity, chunks)
                plan = reverse(plan, "keep")
                parts = programs(plan, self.cost)
                seconds = layer_seconds(plan, self.cost, LAYERS, parts)
                if DEBUG:
                    print(placed.rule, chunks, round(placed.seconds * 1e3, 2), round(seconds * 1e3, 2))
                if best is None or seconds < best[0]:
                    best = seconds, plan, parts
        assert best is not None
        seconds, plan, parts = best
        if self.order:
            ordered, _, again = scheduled(plan, self.cost, parts)
            if layer_seconds(ordered, self.cost, LAYERS, again) < seconds:
                plan = ordered
        yield plan

    def _laid(self, lengths, seqs, attention, placed, rates, capacity, chunks) -> Plan:
        cluster, heads = self.cost.cluster, self.cost.model.num_heads
        P = cluster.gpus_per_node
        builder = Builder(lengths, cluster.num_ranks, heads, sequences=seqs)
        layer = Layer(builder, P, chunks)
        even = heads * np.arange(P + 1) // P
        rows = placed.rows
        size = rows[:, 3] - rows[:, 2] + rows[:, 5] - rows[:, 4]
        seconds = rates.square * (rows[:, 3] ** 2 - rows[:, 2] ** 2 + rows[:, 5] ** 2 - rows[:, 4] ** 2) + rates.row * size
        tokens = np.bincount(rows[:, 1], weights=size, minlength=cluster.num_nodes)
        work = np.bincount(rows[:, 1], weights=seconds, minlength=cluster.num_nodes)
        shares = []
        rank = np.full(len(lengths), -1, np.int64)
        for n in range(cluster.num_nodes):
            here = np.flatnonzero(placed.bin == n)
            ranks = n * P + np.arange(P)
            of = inside(lengths[here], attention[here], int(tokens[n]), float(work[n]), rates, P, heads, capacity, chunks)
            rank[here] = np.where(of.rank >= 0, n * P + of.rank, -1)
            shares.append(of.share)
            group = here[of.rank < 0]
            if len(group):
                layer.group(Shared(group, np.zeros_like(group), lengths[group], ranks, of.share, of.heads))
        local = np.flatnonzero(rank >= 0)
        layer.local(local, rank[local])
        for s in np.unique(rows[:, 0]):
            spans = rows[rows[:, 0] == s]
            layer.cut([Shared.of_row(span, span[1] * P + np.arange(P), shares[span[1]], even) for span in spans], spans)
        layer.done()
        return builder.build()


def rules(work, bins: Bins, more: int) -> list[Rule]:
    count = len(bins.base)
    if count == 1:
        return [Rule(0)]
    must = int((work > 1.02 * (work.sum() + bins.base.sum() + bins.pool) / count).sum())
    out = []
    for cut in range(must, min(must + more, len(work)) + 1):
        if not cut:
            out.append(Rule(0))
            continue
        out += [Rule(cut, first, wrap, back, squeeze) for first in (False, True) for wrap in (False, True) for back in (0.0, 0.5, 0.9, 2.0) for squeeze in (0.03, 0.2)]
    return out
