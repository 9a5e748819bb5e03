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
LEAST_SHARE = 0.02  # of a node's even share of work: less room than this is not worth keys of a sequence


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


def place(
    lengths: Ints, work: Floats, rates: Rates, num_nodes: int, cut: int, back: float, capacity: int
) -> Placement | None:
    """The `cut` longest sequences over nodes, the others whole; None where these do not fit.

    work: float64 [num_sequences], seconds. back: the share of a cut sequence's nodes that are back nodes.
    capacity: tokens of a node.
    """
    order = np.argsort(-work, kind="stable")
    node = np.full(len(lengths), -1, np.int64)
    whole = order[cut:]
    load, held, fits = _whole(work[whole], lengths[whole], num_nodes, capacity, node, whole)
    if not fits:
        return None
    mean = float(work.sum() + rates.repack * lengths[order[:cut]].sum()) / num_nodes
    cuts = tuple(_cut(int(seq), int(lengths[seq]), rates, load, mean, back) for seq in order[:cut])
    for one in cuts:
        if len(one.nodes) == 1:
            node[one.seq] = one.nodes[0]
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


def _cut(seq: int, length: int, rates: Rates, load: Floats, mean: float, back: float) -> Cut:
    """Adds the sequence's work to `load` as it cuts it."""
    token = rates.token + rates.repack
    total = token * length + rates.prefix(length)
    order = np.argsort(load, kind="stable")
    room = np.maximum(mean - load[order], 0.0)
    open_ = int((room > LEAST_SHARE * mean).sum())
    enough = int(np.searchsorted(np.cumsum(room[:open_]), total * (1 - 1e-9))) + 1
    count = max(min(enough, open_), 1)
    nodes, room = order[:count], np.maximum(room[:count], 1e-12)
    room = room * (total / room.sum()) if enough <= open_ else room + (total - room.sum()) / count
    backs = max(int(np.ceil(back * count - 1e-9)), 1)
    pieces: list[tuple[tuple[int, int], ...]] = []
    at = 0
    for share in room[backs:]:
        stop = _stretch(at, float(share), token, rates, length)
        pieces.append(((at, stop),))
        at = stop
    pieces = _zigzag(at, length, room[:backs]) + pieces
    filled = [i for i, row in enumerate(pieces) if sum(stop - start for start, stop in row) > 0]
    one = Cut(seq, nodes[filled], tuple(tuple(p for p in pieces[i] if p[1] > p[0]) for i in filled))
    for row, n in enumerate(one.nodes):
        load[n] += token * one.tokens(row) + one.attention(row, rates)
    return one


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
