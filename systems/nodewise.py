"""Nodewise: heads shared inside nodes, sequences cut across just enough of them, both filling what others leave.

docs/planner.md is its description. Pure: no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from systems.micro_batches import fitting
from systems.nodewise_lay import Layer, Shared
from systems.nodewise_nodes import Placement, Rule, estimate, place
from systems.nodewise_ranks import Inside, inside
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
    late: float = 0.25
    order: bool = True

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        lengths = batch.lengths
        return fitting(lengths, self.cost, lambda seqs: self._plans(lengths, seqs))

    def _plans(self, lengths: Ints, seqs: Ints) -> Iterator[Plan]:
        mine = lengths[seqs]
        rates = Rates.of(self.cost)
        cluster = self.cost.cluster
        attention = attention_seconds(mine, self.cost)
        work = attention + rates.token * mine
        capacity = max(capacity_tokens(self.cost), -(-int(mine.sum()) // cluster.num_ranks))
        N = cluster.num_nodes
        must = int((work > 1.02 * work.sum() / N).sum()) if N > 1 else 0
        found = []
        for cut in range(must, min(must + 4, len(mine)) + 1 if N > 1 else 1):
            for rule in (Rule(cut, wrap, back, squeeze) for wrap in (False, True) for back in (0.0, 0.5, 0.9, 2.0) for squeeze in (0.03, 0.2)) if cut else (Rule(0),):
                placed = place(mine, work, rates, N, rule, capacity * cluster.gpus_per_node)
                if placed is not None:
                    found.append((estimate(placed, mine, rates, N, cluster.gpus_per_node), rule, placed))
        found.sort(key=lambda x: x[0])
        best = None
        seen = set()
        for est, rule, placed in found:
            if est in seen: continue
            seen.add(est)
            if len(seen) > self.tries: break
            for chunks in (1, 2, 4):
                plan = self._laid(mine, seqs, attention, placed, rates, capacity, chunks)
                plan = reverse(plan, "keep")
                parts = programs(plan, self.cost)
                seconds = layer_seconds(plan, self.cost, LAYERS, parts)
                if DEBUG: print(rule, chunks, round(est*1e3,2), round(seconds*1e3,2))
                if best is None or seconds < best[0]:
                    best = seconds, plan, parts
        assert best is not None
        seconds, plan, parts = best
        if self.order:
            ordered, _, again = scheduled(plan, self.cost, parts)
            if layer_seconds(ordered, self.cost, LAYERS, again) < seconds:
                plan = ordered
        yield plan

    def _laid(self, lengths: Ints, seqs: Ints, attention, placed: Placement, rates: Rates, capacity: int, chunks: int) -> Plan:
        cluster, heads = self.cost.cluster, self.cost.model.num_heads
        P = cluster.gpus_per_node
        builder = Builder(lengths, cluster.num_ranks, heads, sequences=seqs)
        layer = Layer(builder, chunks)
        even = heads * np.arange(P + 1) // P
        tokens, work = np.zeros(cluster.num_nodes, np.int64), np.zeros(cluster.num_nodes)
        for cut in placed.cuts:
            for row, n in enumerate(cut.nodes):
                tokens[n] += cut.tokens(row)
                work[n] += cut.attention(row, rates)
        shares = []
        rank = np.full(len(lengths), -1, np.int64)
        for n in range(cluster.num_nodes):
            here = np.flatnonzero(placed.node == n)
            of = inside(lengths[here], attention[here], int(tokens[n]), float(work[n]), rates, P, heads, capacity, chunks)
            rank[here] = np.where(of.rank >= 0, n * P + of.rank, -1)
            shares.append(of.share)
            group = here[of.rank < 0]
            if len(group):
                layer.group(Shared(group, np.zeros_like(group), lengths[group], n * P + np.arange(P), of.share, of.heads))
        local = np.flatnonzero(rank >= 0)
        layer.local(local, rank[local], self._late(local, rank[local], attention[local], cluster.num_ranks))
        for cut in placed.cuts:
            rows = []
            for row, n in enumerate(cut.nodes):
                pieces = np.array(cut.pieces[row], np.int64)
                rows.append(Shared(np.full(len(pieces), cut.seq), pieces[:, 0], pieces[:, 1], n * P + np.arange(P), shares[n], even))
            layer.cut(cut, rows)
        layer.done()
        return builder.build()

    def _late(self, seqs, rank, attention, num_ranks):
        total = np.bincount(rank, weights=attention, minlength=num_ranks)
        order = np.lexsort((attention, rank))
        run = np.cumsum(attention[order])
        begin = np.concatenate([[0.0], np.cumsum(total)])[rank[order]]
        late = np.zeros(len(seqs), bool)
        late[order] = run - begin <= self.late * total[rank[order]]
        return late
