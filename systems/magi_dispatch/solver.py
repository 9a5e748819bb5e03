"""MagiAttention's dispatch solver: it decides which rank of a group gets which chunk of a pack.

A pack is cut in chunks of equal tokens, the last one shorter. The area of a chunk under the document mask is its work,
and chunks go to ranks so that the largest sum is small. Source: MagiAttention 2c641357,
magi_attention/meta/solver/dispatch_solver.py and meta/_make_dispatch_meta.py.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints

Algorithm = Literal["lpt", "binary_search", "backtracking", "topp"]
SEARCHED = 200_000  # ranks looked at for one limit: milliseconds (a judgement; theirs searches on, exponentially)


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunks of a pack, in pieces of single sequences. seq, start, stop, chunk: int64 [num_pieces], tokens [start,
    stop) of sequence seq are in that chunk; in the order of the pack. area: int64 [num_chunks], the visible pairs of
    each. causal: what is visible."""

    seq: Ints
    start: Ints
    stop: Ints
    chunk: Ints
    area: Ints
    causal: bool

    @staticmethod
    def cut(lengths: Ints, size: int, causal: bool = True) -> "Chunks":
        """Cuts a pack of sequences of these lengths, one behind the other, into chunks of `size` tokens."""
        ends = np.cumsum(lengths)
        begins, total = ends - lengths, int(ends[-1])
        first = np.unique(np.concatenate([begins, np.arange(0, total, size)]))
        last = np.append(first[1:], total)
        seq = np.searchsorted(ends, first, side="right")
        start, stop, chunk = first - begins[seq], last - begins[seq], first // size
        pairs = (start + 1 + stop) * (stop - start) // 2 if causal else (stop - start) * lengths[seq]
        area = np.zeros(int(chunk[-1]) + 1, np.int64)
        np.add.at(area, chunk, pairs)
        return Chunks(seq, start, stop, chunk, area, causal)


def chunk_size(total: int, num_ranks: int, chunks_per_rank: int, chunk_tokens: int | None) -> int:
    """Returns the tokens of a chunk of a pack of `total`: `chunk_tokens`, or fewer, so that a rank gets
    `chunks_per_rank`."""
    most = -(-total // (chunks_per_rank * num_ranks))
    return min(most, chunk_tokens or most)


def dispatch_chunks(chunks: Chunks, num_ranks: int, algorithm: Algorithm, top_p: float) -> Ints:
    """Deals chunks to ranks: int64 [num_chunks], the rank of every chunk, at most ceil(n / num_ranks) on each, but with
    binary_search."""
    if algorithm == "lpt":
        return longest_first(chunks.area, num_ranks)
    if algorithm == "topp":
        return nearest(chunks, num_ranks, top_p)
    return least_maximum(chunks.area, num_ranks, equal_counts=algorithm == "backtracking")


def longest_first(area: Ints, num_ranks: int) -> Ints:
    """Deals the largest chunk first, to the rank with the least so far that has room for one more: int64 [num_chunks].

    Of equal chunks the last one is first; of equal ranks the one with the lowest number.
    """
    rank, most = np.empty(len(area), np.int64), -(-len(area) // num_ranks)
    count = [0] * num_ranks
    heap = [(0, number) for number in range(num_ranks)]
    for chunk in np.argsort(area, kind="stable")[::-1].tolist():
        load, least = heapq.heappop(heap)
        rank[chunk] = least
        count[least] += 1
        if count[least] < most:
            heapq.heappush(heap, (load + int(area[chunk]), least))
    return rank


def nearest(chunks: Chunks, num_ranks: int, top_p: float) -> Ints:
    """Deals the largest chunk first, as longest_first does, but of the ranks with the least so far, a share `top_p` of
    all, to the one that needs most of the chunk's keys for other chunks already: int64 [num_chunks].

    Keys that a rank needs for several of its chunks count as often. Of equal chunks the first one is first.
    """
    rank, most = np.empty(len(chunks.area), np.int64), -(-len(chunks.area) // num_ranks)
    tried, count = max(1, ceil(num_ranks * top_p)), [0] * num_ranks
    needs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # by rank and sequence: keys of each chunk there
    heap = [(0, number) for number in range(num_ranks)]
    keys = _keys(chunks)
    for chunk in np.argsort(-chunks.area, kind="stable").tolist():
        least = [heapq.heappop(heap) for _ in range(min(tried, len(heap)))]
        shared = [
            sum(min(reach, other) for seq, reach in keys[chunk] for other in needs.get((number, seq), ()))
            for _, number in least
        ]
        load, chosen = least.pop(int(np.argmax(shared)))
        rank[chunk] = chosen
        for seq, reach in keys[chunk]:
            needs[chosen, seq].append(reach)
        count[chosen] += 1
        if count[chosen] < most:
            least.append((load + int(chunks.area[chunk]), chosen))
        for one in least:
            heapq.heappush(heap, one)
    return rank


def _keys(chunks: Chunks) -> list[list[tuple[int, int]]]:
    """Returns, for every chunk, pairs (sequence, how many of its first tokens are visible to the chunk's)."""
    length: Ints = np.zeros(int(chunks.seq[-1]) + 1, np.int64)
    np.maximum.at(length, chunks.seq, chunks.stop)
    reach = chunks.stop if chunks.causal else length[chunks.seq]
    found: list[list[tuple[int, int]]] = [[] for _ in chunks.area]
    for chunk, seq, keys in zip(chunks.chunk.tolist(), chunks.seq.tolist(), reach.tolist(), strict=True):
        found[chunk].append((seq, keys))
    return found


def least_maximum(area: Ints, num_ranks: int, equal_counts: bool) -> Ints:
    """Deals chunks to ranks so that the largest sum is least, by binary search of it: int64 [num_chunks].

    equal_counts: at most ceil(n / num_ranks) chunks a rank, else any number. A limit for which neither a placement is
    found nor its absence shown within SEARCHED looks is taken for too low: the result is the best for tens of chunks,
    and never worse than longest_first.
    """
    order = np.argsort(-area, kind="stable")
    most = -(-len(area) // num_ranks) if equal_counts else len(area)
    best = longest_first(area, num_ranks)
    high = int(np.bincount(best, area, num_ranks).max())
    low = max(int(area.max()), -(-int(area.sum()) // num_ranks))
    while low < high:
        limit = (low + high) // 2
        found, rank = _placed(area[order], num_ranks, limit, most, SEARCHED)
        if found:
            best[order] = rank
            high = int(np.bincount(best, area, num_ranks).max())
        else:
            low = limit + 1
    return best


@nb.njit(**ENTERED)
def _placed(area, num_ranks, limit, most, looks):  # type: ignore[no-untyped-def]
    """Places chunks of falling area by backtracking: returns (whether there is a way with no rank above `limit`, the
    rank of each).

    Of ranks without chunks one is tried. Where numbers are free, a chunk that fills a rank to the limit stays there:
    whatever else it could hold can take the chunk's place.
    """
    rank = np.full(len(area), -1, np.int64)
    load, count = np.zeros(num_ranks, np.int64), np.zeros(num_ranks, np.int64)
    at = 0
    while 0 <= at < len(area):
        begin, chosen = 0, -1
        if rank[at] >= 0:  # back again: the next rank, if there was reason to try one
            was = rank[at]
            load[was] -= area[at]
            count[was] -= 1
            full = load[was] + area[at] == limit and most >= len(area)
            begin = num_ranks if count[was] == 0 or full else was + 1
        for number in range(begin, num_ranks):
            looks -= 1
            if load[number] + area[at] <= limit and count[number] < most:
                chosen = number
                break
            if count[number] == 0:
                break
        if looks < 0:
            return False, rank
        rank[at] = chosen
        if chosen < 0:
            at -= 1
        else:
            load[chosen] += area[at]
            count[chosen] += 1
            at += 1
    return at == len(area), rank
