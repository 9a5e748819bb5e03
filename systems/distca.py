"""DistCA: tokens stay, attention moves (core attention disaggregation).

Sequences are packed one after another, every rank the same number of tokens, so linear modules are balanced. Attention
has no parameters and can run anywhere: tasks (queries of a sequence, with all keys up to them) move from ranks
with more than the mean to ranks with less, the one with the most gain per byte first, cut where a part is enough.
Every rank is an attention server in place. Source: Zhuang et al. 2025 (arXiv 2510.18121).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.model import KV, O, Q
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.best_first import best_first
from zbench.systems.common.grids import busiest
from zbench.systems.common.micro_batches import fitting
from zbench.systems.common.scattered import FULL, Pieces, needed, scatter, with_backward
from zbench.systems.fcp import KV_MOVES, block_seconds

TOLERANCES = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 1e9)  # the last moves nothing
PLAYED = 3  # most candidates that are built and played
NEAR = 1.5  # times the best estimate: only what is estimated faster is built
SHARD = 128  # tokens: tasks are cut at multiples of it, a kernel's tile


@dataclass(frozen=True, slots=True)
class DistCA:
    """DistCA as a system: attention is moved from ranks with too much of it to ranks with too little, all else stays
    packed. imbalance_tolerance: attention is moved away from ranks above 1 + this times the mean attention time; None:
    the fastest predicted of TOLERANCES, for every batch. rounds_per_attend: rounds of kv after which a rank attends to
    what they brought. received_kv: what becomes of it until the backward.

    Raises:
        ValueError: imbalance_tolerance is not a number of at least 0, rounds_per_attend not a whole number of
            at least 1.
    """

    cost: Cost
    imbalance_tolerance: float | None = None
    rounds_per_attend: int = 1
    received_kv: Mode = "regather"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        value = self.imbalance_tolerance
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
            raise ValueError(
                f"system.imbalance_tolerance is {value!r}; it takes a share of the mean, at least 0, or null"
            )
        check_whole_number("system.rounds_per_attend", self.rounds_per_attend, 1)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        return fitting(batch.lengths, self.cost, lambda seqs, _: self._plans(batch.lengths, seqs))

    def _plans(self, lengths: Ints, sequences: Ints) -> Iterator[Plan]:
        """Yields a plan of every tolerance that is tried, the fastest predicted first."""
        mine, cost = lengths[sequences], self.cost
        start = pieces_in_order(mine, cost.cluster.num_ranks)
        values = TOLERANCES if self.imbalance_tolerance is None else (float(self.imbalance_tolerance),)
        tries = [move_attention(start, mine, cost, value) for value in values]
        seconds, num_ops = (
            np.array(column) for column in zip(*(_estimate(one, mine, cost) for one in tries), strict=True)
        )
        return best_first(seconds, num_ops, lambda i: self._laid(mine, sequences, tries[i]), cost, NEAR, PLAYED)

    def _laid(self, lengths: Ints, sequences: Ints, pieces: Pieces) -> Plan:
        builder = Builder(
            lengths, self.cost.cluster.num_ranks, self.cost.model.num_heads, self.cost.model.mask, sequences=sequences
        )
        scatter(builder, pieces, FULL, self.rounds_per_attend)
        return with_backward(builder.build(), self.received_kv)


def _estimate(pieces: Pieces, lengths: Ints, cost: Cost) -> tuple[float, int]:
    """Returns (seconds of one layer without its linear modules, about how many operations): the longer of attention and
    transfers."""
    model, ranks = cost.model, cost.cluster.num_ranks
    seconds = block_seconds(pieces.start, pieces.stop, lengths[pieces.seq], cost)
    attend = np.bincount(pieces.worker, seconds, ranks).max()
    piece, rank = needed(pieces, model.mask)
    q, kv, o = (model.message_bytes_per_token(tensor, 0, model.num_heads) for tensor in (Q, KV, O))
    tokens, away = pieces.stop - pieces.start, pieces.home != pieces.worker
    src, dst = np.concatenate([pieces.home[piece], pieces.home[away]]), np.concatenate([rank, pieces.worker[away]])
    size = np.concatenate([tokens[piece] * kv * (1 + KV_MOVES), tokens[away] * 2 * (q + o)]).astype(np.float64)
    return float(max(attend, busiest(src, dst, size, cost))), ranks + len(np.unique(src * ranks + dst))


def pieces_in_order(lengths: Ints, num_ranks: int) -> Pieces:
    """Returns the sequences one after another, cut only where a rank has its share of the tokens; attended at home."""
    ends = np.cumsum(lengths)
    borders = int(ends[-1]) * np.arange(num_ranks + 1) // num_ranks
    edges = np.union1d(np.append(ends, 0), borders)
    left, right = edges[:-1], edges[1:]
    seq = np.searchsorted(ends, left, side="right")
    offset = ends[seq] - lengths[seq]
    home = np.searchsorted(borders, left, side="right") - 1
    return Pieces(seq, left - offset, right - offset, home, home)


def move_attention(pieces: Pieces, lengths: Ints, cost: Cost, tolerance: float) -> Pieces:
    """Returns `pieces` cut and given other workers until no rank attends for longer than 1 + tolerance times the mean,
    or nothing can be moved away from those that do.

    Where cuts at multiples of SHARD tokens would leave the fullest rank fuller than it was, nothing is moved.
    """
    model = cost.model
    seconds = block_seconds(pieces.start, pieces.stop, lengths[pieces.seq], cost)
    bytes_of = [model.message_bytes_per_token(tensor, 0, model.num_heads) for tensor in (Q, KV, O)]
    # A rank that has part of a sequence need not receive it: [from, to) of every rank's own stretch of the stream.
    borders = int(lengths.sum()) * np.arange(cost.cluster.num_ranks + 1) // cost.cluster.num_ranks
    tasks = _moved(
        _Tasks(pieces.seq, pieces.start, pieces.stop, pieces.home, pieces.home, seconds),
        _Stream(np.cumsum(lengths) - lengths, borders),
        _Moves(float(tolerance), float(bytes_of[0] + bytes_of[2]), float(bytes_of[1]), SHARD),
    )
    order = np.lexsort((tasks.start, tasks.seq))
    moved = Pieces(*(column[order] for column in tasks[:5]))
    after = block_seconds(moved.start, moved.stop, lengths[moved.seq], cost)
    is_fuller = np.bincount(moved.worker, after).max() > (1 + 1e-9) * np.bincount(pieces.home, seconds).max()
    return pieces if is_fuller else moved


class _Tasks(NamedTuple):
    """Core-attention tasks, as DistCA calls them, [n]: pieces with the rank that attends them and its seconds."""

    seq: Ints
    start: Ints
    stop: Ints
    home: Ints
    worker: Ints
    seconds: Floats


class _Stream(NamedTuple):
    """The batch's tokens one after another. seq_begin: where each sequence begins. borders: int64 [num_ranks + 1],
    where the ranks' stretches do."""

    seq_begin: Ints
    borders: Ints


class _Moves(NamedTuple):
    """Limits and costs of moves. tolerance: relative to the mean load. q_bytes: of a token that moves, with its
    output. kv_bytes: of a token that is sent. shard: tokens that cuts are multiples of."""

    tolerance: float
    q_bytes: float
    kv_bytes: float
    shard: int


@nb.njit(**ENTERED)
def _moved(given, stream, moves):  # type: ignore[no-untyped-def]
    """Moves attention greedily from overloaded ranks to others; returns the tasks afterwards."""
    count, num_ranks = len(given.seq), len(stream.borders) - 1
    most = 8 * num_ranks + count  # every move makes at most one piece more
    seq, start, stop = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    home, worker, seconds = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    seq[:count], start[:count], stop[:count] = given.seq, given.start, given.stop
    home[:count], worker[:count], seconds[:count] = given.home, given.worker, given.seconds
    tasks = _Tasks(seq, start, stop, home, worker, seconds)
    load = np.zeros(num_ranks)
    for i in range(count):
        load[home[i]] += seconds[i]
    mean = load.mean()
    received = np.zeros(
        (num_ranks, len(stream.seq_begin)), np.int32
    )  # up to which token a rank is sent a sequence's kv
    closed = np.zeros(num_ranks, np.bool_)
    while count < most:
        # The rank with the least attention takes a task, or a part of one, from one with too much.
        target = -1
        for r in range(num_ranks):
            if not closed[r] and load[r] < mean and (target < 0 or load[r] < load[target]):
                target = r
        if target < 0:
            break
        best, best_cut, best_head = _best_task(tasks, count, load, mean, target, received[target], stream, moves)
        if best < 0:
            # Nobody has anything for it: it takes no more.
            closed[target] = True
            continue
        i, source = best, worker[best]
        share = _area(start[i], best_cut) if best_head else _area(best_cut, stop[i])
        gained = seconds[i] * share / _area(start[i], stop[i])
        end = best_cut if best_head else stop[i]
        if (best_cut == stop[i]) if best_head else (best_cut == start[i]):
            worker[i] = target  # all of it
        else:
            new = count
            count += 1
            seq[new], home[new], worker[new] = seq[i], home[i], target
            seconds[new] = gained
            seconds[i] -= gained
            if best_head:
                start[new], stop[new], start[i] = start[i], best_cut, best_cut
            else:
                start[new], stop[new], stop[i] = best_cut, stop[i], best_cut
        received[target, seq[i]] = max(received[target, seq[i]], end)
        load[source] -= gained
        load[target] += gained
    return _Tasks(seq[:count], start[:count], stop[:count], home[:count], worker[:count], seconds[:count])


@nb.njit(**INNER)
def _best_task(tasks, count, load, mean, target, received, stream, moves):  # type: ignore[no-untyped-def]
    """Finds the task with the most seconds per byte for `target`: (task, where to cut it, whether its front moves).

    The task is -1 where there is none.

    count: tasks so far. load: of every rank, mean: of all. received: up to which token `target` is sent each sequence.
    """
    seq, start, stop, worker, seconds = tasks.seq, tasks.start, tasks.stop, tasks.worker, tasks.seconds
    best, best_gain, best_cut, best_head = -1, 0.0, 0, False
    for i in range(count):
        if load[worker[i]] <= mean * (1 + moves.tolerance) or worker[i] != tasks.home[i]:
            continue
        # Cuts round down, so a target may take up to its tolerance: else what is lost stays with one rank.
        amount = min(seconds[i], load[worker[i]] - mean, mean * (1 + moves.tolerance) - load[target])
        for head in (False, True):
            cut, part = _cut(start[i], stop[i], amount / seconds[i], head, moves.shard)
            if part <= 0.0:
                continue
            end = cut if head else stop[i]
            queries = cut - start[i] if head else stop[i] - cut
            own = _overlap(stream.borders, target, stream.seq_begin[seq[i]], received[seq[i]], end)
            sent = max(end - received[seq[i]], 0) - own
            gain = part * seconds[i] / (moves.q_bytes * queries + moves.kv_bytes * max(sent, 0))
            if gain > best_gain:
                best, best_gain, best_cut, best_head = i, gain, cut, head
    return best, best_cut, best_head


@nb.njit(**INNER)
def _area(start, stop):  # type: ignore[no-untyped-def]
    """Returns how many (query, key) pairs queries [start, stop) of a sequence see."""
    return 0.5 * (stop - start) * (stop + start + 1)


@nb.njit(**INNER)
def _cut(start, stop, share, head, shard):  # type: ignore[no-untyped-def]
    """Cuts a task from the front or the back so that about `share` of its pairs moves: returns (where to cut, share of
    the pairs that moves)."""
    total = _area(start, stop)
    low = 1.0 * start * (start + 1)
    at = np.sqrt(low + 2 * (share if head else 1 - share) * total + 0.25) - 0.5
    cut = int(np.floor((at - start) / shard)) * shard + start if head else stop - int((stop - at) // shard) * shard
    if share >= 1 - 1e-9:
        cut = stop if head else start
    cut = min(max(cut, start), stop)
    return cut, (_area(start, cut) if head else _area(cut, stop)) / total


@nb.njit(**INNER)
def _overlap(borders, rank, begin, low, high):  # type: ignore[no-untyped-def]
    """Returns how many of tokens [low, high) of a sequence, which begins at `begin` of the stream, `rank` is home
    of."""
    return max(min(borders[rank + 1] - begin, high) - max(borders[rank] - begin, low), 0)
