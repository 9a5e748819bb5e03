"""Which nodes a sequence is on, and which of its tokens: whole sequences first, cut ones fill what is left.

A cut sequence is spread over just enough nodes. Of these, **front** nodes take a stretch from its beginning each,
**back** nodes share the rest zigzag, weighted by what each has left. Early tokens see few keys: they are linear work
above all, and fill nodes that lack tokens for the price of keys that leave them; they need hardly any from others. Keys
come to few back nodes, which do most of the attention. Pure: no torch.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from systems.nodewise_work import Rates
from zbench.area import TILE
from zbench.plan import Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A sequence over several nodes: row i is on nodes[i] and has pieces [start, stop) (lists of pairs)."""

    seq: int
    nodes: Ints
    pieces: tuple[tuple[tuple[int, int], ...], ...]

    def tokens(self, row: int) -> int:
        return sum(stop - start for start, stop in self.pieces[row])

    def attention(self, row: int, rates: Rates) -> float:
        return sum(rates.prefix(stop) - rates.prefix(start) for start, stop in self.pieces[row])

    def needs(self, row: int, other: int) -> bool:
        """Whether queries of `row` see keys of `other`."""
        return min(start for start, _ in self.pieces[other]) < max(stop for _, stop in self.pieces[row])


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """node: int64 [num_sequences], -1 for cut ones. load: float64 [num_nodes], seconds of a node's GPUs together."""

    node: Ints
    cuts: tuple[Cut, ...]
    load: Floats


@dataclass(frozen=True, slots=True)
class Rule:
    """cut: how many of the longest sequences are cut. wrap: each goes on where the one before ended; otherwise it
    starts on the nodes with the most room. back: nodes with less room than this, of the roomiest of the sequence, are
    front nodes. squeeze: room of a last node that is not worth it, in even shares of a node.
    """

    cut: int
    wrap: bool = False
    back: float = 0.0
    squeeze: float = 0.03


def place(lengths: Ints, work: Floats, rates: Rates, num_nodes: int, rule: Rule, capacity: int) -> Placement | None:
    """The longest sequences over nodes, the others whole; None where these do not fit.

    work: float64 [num_sequences], seconds. capacity: tokens of a node.
    """
    order = np.argsort(-work, kind="stable")
    node = np.full(len(lengths), -1, np.int64)
    whole, split = order[rule.cut :], order[: rule.cut]
    load, held, fits = _whole(work[whole], lengths[whole], num_nodes, capacity, node, whole)
    if not fits:
        return None
    mean = float(work.sum() + rates.repack * lengths[split].sum()) / num_nodes
    turn = np.argsort(load, kind="stable")
    cuts = []
    for seq in split:
        room = np.maximum(mean - load, 0.0)
        if not rule.wrap:
            turn = np.argsort(load, kind="stable")
        one = _cut(int(seq), int(lengths[seq]), rates, room, turn[room[turn] > 0], mean, rule)
        for row, n in enumerate(one.nodes):
            load[n] += (rates.token + rates.repack) * one.tokens(row) + one.attention(row, rates)
        if len(one.nodes) == 1:
            node[one.seq] = one.nodes[0]
        cuts.append(one)
    return Placement(node, tuple(one for one in cuts if len(one.nodes) > 1), load)


@nb.njit(cache=True)
def _whole(work, tokens, num_nodes, capacity, node, index):  # type: ignore[no-untyped-def]
    load, held = np.zeros(num_nodes), np.zeros(num_nodes, np.int64)
    for i in range(len(work)):
        best = -1
        for n in range(num_nodes):
            if held[n] + tokens[i] <= capacity and (best < 0 or load[n] < load[best]):
                best = n
        if best < 0:
            return load, held, False
        node[index[i]] = best
        load[best] += work[i]
        held[best] += tokens[i]
    return load, held, True


def _cut(seq: int, length: int, rates: Rates, room: Floats, turn: Ints, mean: float, rule: Rule) -> Cut:
    """room: [num_nodes], seconds; turn: nodes with some, in the order in which they are filled."""
    token = rates.token + rates.repack
    total = token * length + rates.prefix(length)
    turn = turn if len(turn) else np.arange(1)
    filled = np.cumsum(room[turn])
    count = min(int(np.searchsorted(filled, total * (1 - 1e-9))) + 1, len(turn))
    share = room[turn[:count]].copy()
    if filled[count - 1] > total:
        share[-1] -= filled[count - 1] - total
    some = share > rule.squeeze * mean
    some[np.argmax(share)] = True
    nodes, share = turn[:count][some], np.maximum(share[some], 1e-12)
    share += (total - share.sum()) / len(share)
    front = share < rule.back * share.max()
    front[np.argmax(share)] = False
    pieces: list[tuple[tuple[int, int], ...]] = []
    at = 0
    for seconds in share[front]:
        stop = _stretch(at, float(seconds), token, rates, length)
        pieces.append(((at, stop),))
        at = stop
    rows = _zigzag(at, length, share[~front]) + pieces
    nodes = np.concatenate([nodes[~front], nodes[front]])
    kept = [i for i, row in enumerate(rows) if sum(stop - start for start, stop in row) > 0]
    return Cut(seq, nodes[kept], tuple(tuple(p for p in rows[i] if p[1] > p[0]) for i in kept))


def _stretch(start: int, seconds: float, token: float, rates: Rates, length: int) -> int:
    """Where a stretch from `start` ends that takes `seconds`: square (y^2 + 2 y start) + (row + token) y."""
    half = rates.square * start + (rates.row + token) / 2
    size = seconds / (half + np.sqrt(half * half + rates.square * seconds))
    return min(_aligned(start + size), length)


def _zigzag(begin: int, end: int, shares: Floats) -> list[tuple[tuple[int, int], ...]]:
    """[begin, end) in nested pairs of chunks, one pair a share: attention and tokens are in proportion to shares."""
    if len(shares) == 1:
        return [((begin, end),)]
    ends = np.cumsum(shares) / shares.sum() * (end - begin) / 2
    left = [begin, *(min(_aligned(begin + x), begin + (end - begin) // 2) for x in ends[:-1])]
    right = [end, *(max(_aligned(end - x), left[i + 1]) for i, x in enumerate(ends[:-1]))]
    rows: list[tuple[tuple[int, int], ...]] = []
    for i in range(len(shares) - 1):
        rows.append(((left[i], left[i + 1]), (right[i + 1], right[i])))
    return [*rows, ((left[-1], right[-1]),)]


def _aligned(tokens: float) -> int:
    """A multiple of the kernel's tile: pieces that begin and end on one waste nothing."""
    return int(round(tokens / TILE)) * TILE


def estimate(placed: Placement, lengths: Ints, rates: Rates, num_nodes: int, per_node: int) -> float:
    """Seconds of a layer: in either direction of the slowest node linear modules, then attention or its keys on NICs."""
    tokens, moved = np.zeros(num_nodes), np.zeros((2, num_nodes))
    whole = placed.node >= 0
    tokens += np.bincount(placed.node[whole], weights=lengths[whole], minlength=num_nodes)
    for cut in placed.cuts:
        count = len(cut.nodes)
        for row, n in enumerate(cut.nodes):
            tokens[n] += cut.tokens(row)
            for other in range(count):
                if other != row and cut.needs(row, other):
                    moved[0, n] += cut.tokens(other)
                    moved[1, cut.nodes[other]] += cut.tokens(other)
    nic = moved.max(axis=0) * rates.across
    linear = tokens * rates.token / per_node
    attention = placed.load / per_node - linear
    forward = linear / 3 + np.maximum(attention * rates.forward, nic)
    backward = linear * 2 / 3 + np.maximum(attention * (1 - rates.forward), nic)
    return float((forward + backward).max())
