"""ByteScale's balance: over how many ranks each sequence is cut, and which ones, so that the busiest rank has least to
do.

A sequence of s tokens is cut over ceil(s / C) ranks, any whole number, for one C a batch; each of them has the same
share of it. Ranks meet only when gradients are summed, or, with ZeRO-3, in every micro-batch: what counts is each
rank's seconds over all that is dealt at once. The largest shares are dealt first, to the ranks with least; then single
shares move, or change places with lighter ones, while that relieves the busiest rank. Source: ByteScale (arXiv
2502.21231, section 5 and algorithm 2); what differs is told in docs/systems/bytescale.md.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.cost.memory.host_copies import waiting
from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.model import KV
from zbench.passes.reverse import Mode
from zbench.plans.area import Work
from zbench.plans.plan import Ints

CUTS = 24  # values of C tried; where that is many ranks and sequences, FEWER
FEWER = 12
ENUMERATED = 2048  # sequences x ranks up to which CUTS of all values of C that differ are taken
IMPROVED = 6  # of those, how many go on from dealing to moves and swaps
TRIES = 200  # most moves and swaps
NEAR = 1.05  # rings wait for their slowest rank, which loads do not show: less to do in all makes up for that much


@dataclass(frozen=True, slots=True, eq=False)
class RingAssignment:
    """Every sequence's ranks, as the balance lays them. degree: int64 [n], ranks of every sequence. ranks: int64 [sum
    of degree], one sequence after another.

    cut: C, tokens. busiest, mean: predicted seconds of a layer, forward and backward, over all micro-batches, of
    the busiest rank and on average.
    """

    degree: Ints
    ranks: Ints
    cut: int
    busiest: float
    mean: float

    @property
    def sets(self) -> list[Ints]:
        """Returns the ranks of every sequence."""
        ends = np.cumsum(self.degree)
        return [self.ranks[end - size : end] for size, end in zip(self.degree.tolist(), ends.tolist(), strict=True)]


def share_seconds(lengths: Ints, degree: Ints, cost: Cost, backward: Mode) -> Floats:
    """Returns float64 [n]: the seconds that a sequence takes on each of its `degree` ranks, one layer, forward and
    backward.

    Linear modules, and in either direction the longer of attention (whole, or `degree` calls of a zigzag ring, all
    but the first joined to an earlier result) and the ring's hops; no less than copies to and from hosts. What ranks of
    a call share is left out.
    """
    few, part = np.array([1, 2]), of_parts(cost)
    per_token, again = (float(np.diff(of(few))[0]) for of in (part.linear_seconds, part.again_seconds))
    total = np.asarray((3 * per_token + again) * lengths / degree, np.float64)
    whole, cut = np.flatnonzero(degree == 1), np.flatnonzero(degree > 1)
    ways = np.zeros((2, len(lengths)))
    ways[:, whole] = [cost.whole_seconds(lengths[whole], back) for back in (False, True)]
    ways[:, cut] = _ring_seconds(lengths[cut], degree[cut], cost, backward)
    total += ways[0] + ways[1]
    return total + waiting(cost, lengths / degree, ways[0], ways[1])


def _ring_seconds(lengths: Ints, degree: Ints, cost: Cost, backward: Mode) -> Floats:
    """Returns the seconds of attention over sequences that are cut into rings, and of the kv transfers that it does not
    hide, [2, n]: forward, backward."""
    model = cost.model
    steps, work = Work.ring(lengths, degree, model.mask)
    ones = np.ones_like(steps)
    heads, kv_heads = model.num_heads * ones, model.num_kv_heads * ones
    link = cost.cluster.link_among(degree)
    block = lengths / degree * model.message_bytes_per_token(KV, 0, model.num_heads)
    hops = (steps - 1) * (cost.message_seconds(block, link) + cost.latency_seconds(link))
    found = list[Floats]()
    for back, moves in zip((False, True), kv_moves(backward), strict=True):
        attend = steps * cost.kernel_seconds(work, heads, kv_heads, back)
        attend += (steps - 1) * cost.join_seconds(work, heads, kv_heads, back)
        found.append(np.maximum(attend, moves * hops))
    return np.stack(found)


def kv_moves(backward: Mode) -> tuple[int, int]:
    """Returns how often kv or its gradient goes round a ring, in the forward and in the backward."""
    return 1, 1 if backward == "keep" else 2


def nic_seconds(lengths: Ints, degree: Ints, ranks: Ints, cost: Cost, backward: Mode) -> float:
    """Returns the seconds for which the busiest node's NICs are busy, one layer, both directions: every ring that
    leaves a node passes all kv but its own through one of them, and rings take turns with the NICs: together they have
    all channels (what one ring's messages to one peer take is in share_seconds)."""
    cluster = cost.cluster
    owner = np.repeat(np.arange(len(lengths)), degree)
    touched = np.unique(owner * cluster.num_nodes + cluster.node_of[ranks])
    item, node = np.divmod(touched, cluster.num_nodes)
    leaves = np.bincount(item, minlength=len(lengths))[item] > 1
    item, node = item[leaves], node[leaves]
    size = lengths[item] * (1 - 1 / degree[item]) * cost.model.message_bytes_per_token(KV, 0, cost.model.num_heads)
    seconds = sum(kv_moves(backward)) * cost.transfer_seconds(size, np.ones(len(item), bool))
    return float(np.bincount(node, seconds, cluster.num_nodes).max()) / cluster.nics_per_node


def cuts(lengths: Ints, num_ranks: int, most: int) -> Ints:
    """Lists the values of C to try, ascending: from the one that spreads the longest sequence over all ranks to `most`
    tokens.

    For few sequences and ranks these are the values at which some sequence's number of ranks changes, all of them
    or CUTS evenly spread ones; else FEWER values in a geometric row.
    """
    longest = int(lengths.max())
    low = -(-longest // num_ranks)
    high = max(min(most, longest), low)
    if len(lengths) * num_ranks > ENUMERATED:
        return np.unique(np.geomspace(low, high, FEWER).astype(np.int64))
    every = np.unique(-(-lengths[:, None] // np.arange(1, num_ranks + 1)))
    every = np.append(every[(every >= low) & (every < high)], high)
    return every[np.unique(np.linspace(0, len(every) - 1, CUTS).astype(np.int64))]


def _fullest(lengths: Ints, degree: Ints, places: Ints, ranks: int) -> float:
    """Returns how many tokens the rank with most of them has."""
    return float(np.bincount(places, np.repeat(lengths / degree, degree), ranks).max())


def balanced(
    lengths: Ints,
    tokens: Ints | list[int],
    cost: Cost,
    backward: Mode,
    near: float = NEAR,
    room: float = np.inf,
    held: Ints | None = None,
) -> RingAssignment:
    """Returns the layout that is done first, busiest rank and busiest node's NICs, among the values of C in `tokens`;
    of those within `near` times that the one with least to do in all. Where some leave every rank at most `room`
    tokens, one of them. held: of each sequence the most tokens that a rank has of it, None: C alone says that."""
    ranks, node = cost.cluster.num_ranks, cost.cluster.gpus_per_node
    dealt = []
    # Deal the shares for every C, the largest first.
    for cut in np.asarray(tokens).tolist():
        most = cut if held is None else np.minimum(cut, held)
        degree = np.minimum(-(-lengths // most), ranks)
        load = share_seconds(lengths, degree, cost, backward)
        places, total = _deal(load, degree, np.lexsort((-degree, -load)), ranks, node)
        network = nic_seconds(lengths, degree, places, cost, backward)
        full = _fullest(lengths, degree, places, ranks) > room
        dealt.append((full, max(float(total.max()), network), cut, network, degree, load, places, total))
    dealt = sorted(dealt, key=lambda one: one[:3])[:IMPROVED]
    # In the best few, move and swap shares of the busiest rank.
    for _, _, _, _, degree, load, places, total in dealt:
        _improve(load, degree, places, total, node, TRIES)  # rings stay in the nodes where they are: `network` holds
    dealt = [one for one in dealt if _fullest(lengths, one[4], one[6], ranks) <= room] or dealt
    # Of those near the best take the one with least to do in all: cutting less costs less.
    seconds = [max(float(total.max()), network) for _, _, _, network, _, _, _, total in dealt]
    close = [one for one, it in zip(dealt, seconds, strict=True) if it <= near * min(seconds)]
    _, _, cut, network, degree, _, places, total = min(close, key=lambda one: (one[7].sum(), one[2]))
    owner = np.repeat(np.arange(len(lengths)), degree)
    return RingAssignment(
        degree, places[np.lexsort((places, owner))], cut, max(float(total.max()), network), float(total.mean())
    )


@nb.njit(**ENTERED)
def _deal(load, width, order, num_ranks, per_node):  # type: ignore[no-untyped-def]
    """Deals items to ranks; returns (the ranks of every item, one item after another; seconds of every rank). An item
    goes to as few nodes as can be, those with least to do in all, and in them to the ranks with least."""
    offsets = np.cumsum(width) - width
    places = np.empty(width.sum(), np.int64)
    total = np.zeros(num_ranks)
    nodes = np.zeros(num_ranks // per_node)
    within = np.arange(per_node)
    for item in order:
        wide = width[item]
        if wide == 1:
            least = 0
            for rank in range(num_ranks):
                if total[rank] < total[least]:
                    least = rank
            chosen = np.full(1, least)
        else:
            some = np.argsort(nodes, kind="mergesort")[: -(-wide // per_node)]
            ranks = (np.sort(some).reshape(-1, 1) * per_node + within).reshape(-1)
            chosen = ranks[np.argsort(total[ranks], kind="mergesort")[:wide]]
        for at in range(wide):
            places[offsets[item] + at] = chosen[at]
            total[chosen[at]] += load[item]
            nodes[chosen[at] // per_node] += load[item]
    return places, total


@nb.njit(**ENTERED)
def _improve(load, width, places, total, per_node, tries):  # type: ignore[no-untyped-def]
    """Moves and swaps of single shares off the busiest rank, in place. Rings stay in the nodes where they are."""
    owner = np.repeat(np.arange(len(width)), width)
    has = np.zeros((len(width), len(total)), np.bool_)
    for at in range(len(places)):
        has[owner[at], places[at]] = True
    for _ in range(tries):
        full = total.argmax()
        goal, best, other, to = total[full] * (1 - 1e-9), -1, -1, -1
        for at in range(len(places)):
            if places[at] != full:
                continue
            i = owner[at]
            for rank in range(len(total)):
                if total[rank] + load[i] < goal and not has[i, rank] and _may(width, has, i, rank, per_node):
                    goal = max(total[rank] + load[i], total[full] - load[i])
                    best, other, to = at, -1, rank
            for place in range(len(places)):
                rank, j = places[place], owner[place]
                less = load[i] - load[j]
                if less <= 0 or total[rank] + less >= goal or total[full] - less >= goal:
                    continue
                if has[i, rank] or has[j, full]:
                    continue
                if _may(width, has, i, rank, per_node) and _may(width, has, j, full, per_node):
                    goal = max(total[rank] + less, total[full] - less)
                    best, other, to = at, place, rank
        if best < 0:
            break
        _shift(load, owner, places, has, total, best, to)
        if other >= 0:
            _shift(load, owner, places, has, total, other, full)


@nb.njit(**INNER)
def _may(width, has, item, rank, per_node):  # type: ignore[no-untyped-def]
    """Returns whether a share may go to `rank`: of a whole sequence always, of a cut one where the node has some of
    it."""
    if width[item] == 1:
        return True
    first = rank - rank % per_node
    for near in range(first, first + per_node):  # noqa: SIM110 - compiled
        if has[item, near]:
            return True
    return False


@nb.njit(**INNER)
def _shift(load, owner, places, has, total, at, rank):  # type: ignore[no-untyped-def]
    item, old = owner[at], places[at]
    has[item, old], has[item, rank] = False, True
    total[old] -= load[item]
    total[rank] += load[item]
    places[at] = rank
