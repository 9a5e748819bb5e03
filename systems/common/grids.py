"""Grids of heads x context: which grid of ranks there can be, and which is fastest for a batch.

A grid has R rows, around which kv goes, and U columns, between which heads are exchanged: Ulysses x ring
(USP, arXiv 2405.07719; LoongTrain's 2D-Attention, arXiv 2406.18485). What it costs is estimated from the
lengths alone; the few grids with the best estimates are built and played, the best one first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.model import KV, O, Q
from zbench.passes import reverse
from zbench.passes.reverse import Mode
from zbench.plans.area import Work
from zbench.plans.build import Builder
from zbench.plans.patterns import ulysses_ring
from zbench.plans.plan import Ints, Plan
from zbench.simulator.hops import ports
from zbench.systems.common.best_first import best_first

PLAYED = 3  # most candidates that are built and played
NEAR = 1.3  # times the best estimate: estimates of grids are off by -10 to +25 %


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """A grid of R x U ranks: the U ranks of a row exchange heads, and the R ranks of a column pass kv round a ring.
    ranks: int64 [R, U]. inner: rows of an inner ring, a divisor of R; R itself: one ring."""

    ranks: Ints
    inner: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the grid, (R, U)."""
        return self.ranks.shape[0], self.ranks.shape[1]

    @property
    def num_ops(self) -> int:
        """About how many operations the forward of a plan on this grid has."""
        rows, cols = self.shape
        return rows * cols * (2 * rows - 1 + 3 * (cols - 1))


def exchange_degrees(num_ranks: int, num_heads: int) -> list[int]:
    """Lists every U that divides the ranks and leaves each a head."""
    return [degree for degree in range(1, min(num_ranks, num_heads) + 1) if num_ranks % degree == 0]


def head_first(num_ranks: int, degree: int) -> Ints:
    """Returns the grid [R, U] in which neighbours (the ranks of a node) exchange heads."""
    return np.arange(num_ranks, dtype=np.int64).reshape(-1, degree)


def context_first(num_ranks: int, degree: int) -> Ints:
    """Returns the grid [R, U] in which neighbours (the ranks of a node) pass kv on."""
    return np.arange(num_ranks, dtype=np.int64).reshape(degree, -1).T


def grid_plan(lengths: Ints, sequences: Ints, grid: Grid, cost: Cost, backward: Mode) -> Plan:
    """Makes the plan of all of `sequences` over all ranks in `grid`."""
    mine = lengths[sequences]
    builder = Builder(mine, cost.cluster.num_ranks, cost.model.num_heads, cost.model.mask, sequences=sequences)
    seqs = np.arange(len(mine), dtype=np.int64)
    ulysses_ring(builder, seqs, np.zeros_like(seqs), grid.ranks[None], grid.inner)
    return reverse(builder.build(), backward)


@dataclass(frozen=True, slots=True)
class Priced:
    """A grid and the times of its links, which no batch changes. A grid and what its links take, which no batch
    changes.

    exchange: seconds of an all-to-all of a byte from each rank to each other of its row. passing: seconds of the
    busiest link when a byte a rank and hop goes once round. hops: of the ring, (how many, seconds a byte, latency).
    """

    grid: Grid
    exchange: float
    passing: float
    hops: tuple[tuple[int, float, float], ...]

    def ring_seconds(self, size: float) -> float:
        """Returns the seconds of kv (`size` bytes a rank and hop) once round the ring: its busiest link's, or those of
        hop after hop."""
        chain = max((count * (size * each + latency) for count, each, latency in self.hops), default=0.0)
        return max(size * self.passing, chain)


def grid_prices(grids: list[Grid], cost: Cost) -> list[Priced]:
    """Returns every grid with the times of its links; the exchange is the same for all with one shape and placement."""
    exchanges: dict[tuple[tuple[int, int], int], float] = {}
    for grid in grids:
        key = (grid.shape, int(grid.ranks[0, -1]))
        exchanges[key] = exchanges[key] if key in exchanges else _exchange_seconds(grid, cost)
    found = []
    for grid in grids:
        exchange = exchanges[grid.shape, int(grid.ranks[0, -1])]
        found.append(Priced(grid, exchange, *_ring_links(grid, cost)))
    return found


def best_grids(lengths: Ints, sequences: Ints, grids: list[Priced], cost: Cost, backward: Mode) -> Iterator[Plan]:
    """Yields plans on the grids, the fastest predicted first."""
    seconds = estimates(lengths[sequences], grids, cost, backward)
    sizes = np.array([priced.grid.num_ops for priced in grids], np.int64)

    def build(index: int) -> Plan:
        return grid_plan(lengths, sequences, grids[index].grid, cost, backward)

    return best_first(seconds, sizes, build, cost, NEAR, PLAYED)


def estimates(lengths: Ints, grids: list[Priced], cost: Cost, backward: Mode) -> Floats:
    """Returns float64 [len(grids)], seconds of one layer, forward and backward: linear modules, the exchange of heads,
    and the longer of attention and the ring's transfers in either direction."""
    attends = {shape: _attend_seconds(lengths, *shape, cost) for shape in {priced.grid.shape for priced in grids}}
    tokens = lengths.sum() / cost.cluster.num_ranks
    sizes = {cols: _message_sizes(float(tokens), cols, cost) for cols in {cols for _, cols in attends}}
    linear = float(cost.linear_seconds(tokens) + cost.gradient_seconds(tokens)) + float(cost.again_seconds(tokens))
    around = [_around_seconds(one, sizes[one.grid.shape[1]], attends[one.grid.shape], backward) for one in grids]
    return np.array([linear + seconds for seconds in around])


def _message_sizes(tokens: float, cols: int, cost: Cost) -> tuple[float, float, float]:
    """Returns the bytes of q, kv and o that a rank sends to each other of its row, on average."""
    bounds = (cost.model.num_heads * np.arange(cols + 1) // cols).tolist()
    parts = list(pairwise(bounds))
    q, kv, o = (tokens * sum(cost.model.message_bytes_per_token(t, *part) for part in parts) / cols for t in (Q, KV, O))
    return q, kv, o


def _around_seconds(
    priced: Priced, sizes: tuple[float, float, float], attend: tuple[float, float], backward: Mode
) -> float:
    """Returns the seconds between the linear modules: the exchange of heads, and the longer of attention and the ring.
    attend: seconds of a rank's attends, forward and backward."""
    q, kv, o = sizes
    passing = priced.ring_seconds(priced.grid.shape[1] * kv)
    total = 0.0
    back_moves = {"keep": 1, "carry": 2, "regather": 2}[backward]
    back_kv = 2 if backward == "regather" else 1  # kv and its gradient, or the gradient alone
    for copies, moves, seconds in ((1, 1, attend[0]), (back_kv, back_moves, attend[1])):
        total += priced.exchange * (q + copies * kv + o) + max(seconds, moves * passing)
    return total


def _attend_seconds(lengths: Ints, rows: int, cols: int, cost: Cost) -> tuple[float, float]:
    """Returns the seconds of a rank's attends, (forward, backward): R calls over all sequences, each on half of a
    block's queries (or keys), all but the first joined to an earlier result."""
    if rows == 1:
        work, present, steps = Work.whole(lengths, cost.model.mask), np.ones(len(lengths)), 1
    else:
        each, work = Work.ring(lengths, np.array(rows), cost.model.mask)
        steps = int(each.max())
        present = np.minimum(lengths / (2 * rows), 1.0)  # sequences shorter than 2 R tokens miss ranks
    total = Work(*(np.array([(getattr(work, name) * present).sum()]) for name in Work.__dataclass_fields__))
    total = replace(total, longest=np.array([work.longest.max()]))
    group = cost.model.num_heads // cost.model.num_kv_heads
    heads = -(-cost.model.num_heads // cols)
    h, k = np.array([heads]), np.array([max(heads // group, 1)])
    forward, backward = (
        float((steps * cost.kernel_seconds(total, h, k, back) + (steps - 1) * cost.join_seconds(total, h, k, back))[0])
        for back in (False, True)
    )
    return forward, backward


def busiest(src: Ints, dst: Ints, size: Floats, cost: Cost) -> float:
    """Returns the seconds of the busiest link (a GPU's port or a NIC, either direction), or of the busiest pair of
    ranks, when src send dst `size` bytes."""
    cluster = cost.cluster
    link, port = cluster.link_of(src, dst), ports(cluster)
    seconds = cost.transfer_seconds(size, link)
    pair = np.unique(src * cluster.num_ranks + dst, return_inverse=True)[1]
    loads: list[Floats] = [np.bincount(pair, cost.message_seconds(size, link), 1).astype(np.float64)]
    loads += [np.bincount(port[link, end], seconds, 1).astype(np.float64) for end in (src, dst)]
    return float(max(load.max() for load in loads))


def _exchange_seconds(grid: Grid, cost: Cost) -> float:
    """Returns the seconds of an all-to-all in every row, for one byte from each rank to each other of its row."""
    rows, cols = grid.shape
    if cols == 1:
        return 0.0
    row, here, there = (axis.reshape(-1) for axis in np.indices((rows, cols, cols)))
    other = here != there
    src, dst = grid.ranks[row, here][other], grid.ranks[row, there][other]
    return busiest(src, dst, np.ones(len(src)), cost)


def _ring_links(grid: Grid, cost: Cost) -> tuple[float, tuple[tuple[int, float, float], ...]]:
    """Returns (seconds of the busiest link when a byte a rank and hop goes once round, the hops that follow each
    other)."""
    rows, cols = grid.shape
    if rows == 1:
        return 0.0, ()
    windows, place = rows // grid.inner, np.arange(rows)
    inside = grid.ranks[place // grid.inner * grid.inner + (place - 1) % grid.inner].reshape(-1)
    before = grid.ranks[(place - grid.inner) % rows].reshape(-1)
    here = grid.ranks.reshape(-1)
    laps, hops = windows - 1, windows * (grid.inner - 1)
    src, dst = np.concatenate([inside, before]), np.concatenate([here, here])
    total = np.repeat(np.array([hops, laps], np.float64), rows * cols)
    some = (src != dst) & (total > 0)
    chain = []
    for sender, count in ((inside, hops), (before, laps)):
        link = np.unique(cost.cluster.link_of(sender, here)) if count else np.zeros(0, np.int64)
        each, latency = cost.message_seconds(np.ones(len(link)), link), cost.latency_seconds(link)
        chain += [(count, float(a), float(b)) for a, b in zip(each, latency, strict=True)]
    return busiest(src[some], dst[some], total[some], cost), tuple(chain)
