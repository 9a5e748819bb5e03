"""Attention of pieces of sequences on any ranks: what has to travel, in which rounds, and who attends when.

A piece has a home (linear modules) and a worker (attention). Its q goes to its worker and o comes back, where
these differ; the kv of a piece goes to every other rank that works on a piece of its sequence which sees it, once.
Transfers stand in congestion-free rounds (rounds). A worker attends to what it has at home first, then to
what the rounds of a stage brought, all of a stage in one call.
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import KV, O, Q
from zbench.passes import reverse
from zbench.passes.reverse import Mode
from zbench.plans.build import Builder
from zbench.plans.plan import TRANSFER, Ints, Ops, Plan
from zbench.systems.common.rounds import colour_rounds

FULL = 1 << 40  # blocks of a message: no limit
LAST = 1 << 62  # a place in the plan after all others


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """int64 [n] each: tokens [start, stop) of sequence seq live on rank home and are attended on rank worker.

    Sorted by (seq, start); the pieces of a sequence are all of it.
    """

    seq: Ints
    start: Ints
    stop: Ints
    home: Ints
    worker: Ints


@dataclass(frozen=True, slots=True, eq=False)
class MessageTable:
    """Messages of kv between ranks, in rounds. blocks: what each carries, as a builder's name of a list. round: int64
    [n]. unit, message: every (block, the message that carries it)."""

    src: Ints
    dst: Ints
    blocks: Ints
    round: Ints
    unit: Ints
    message: Ints


def needed(pieces: Pieces, mask: Mask = CAUSAL) -> tuple[Ints, Ints]:
    """Returns (piece, rank) of every kv copy: ranks other than its home that work on a piece of its sequence which sees
    it, which causally are it and all later ones."""
    count = np.int64(max(int(pieces.worker.max(initial=0)), int(pieces.home.max(initial=0))) + 1)
    first = np.searchsorted(pieces.seq, pieces.seq)
    key = pieces.seq * count + pieces.worker
    order = np.argsort(key, kind="stable")
    last = order[np.concatenate([key[order][1:] != key[order][:-1], [True]])[: len(order)]]
    end = last + 1 if mask.causal else np.searchsorted(pieces.seq, pieces.seq[last], side="right")
    reach = end - first[last]
    rank = np.repeat(pieces.worker[last], reach)
    piece = np.repeat(first[last] - np.cumsum(reach) + reach, reach) + np.arange(int(reach.sum()))
    wanted = pieces.home[piece] != rank
    if mask.window:
        total = np.int64(len(key))
        place = np.sort(key * total + np.arange(total))
        at = np.searchsorted(place, (pieces.seq[piece] * count + rank) * total + piece)
        following = place[at] % total  # the first piece of the rank that is not before this one
        wanted &= mask.reach(pieces.start[following]) > pieces.start[following] - pieces.stop[piece]
    return piece[wanted], rank[wanted]


def scatter(builder: Builder, pieces: Pieces, blocks_per_message: int, rounds_per_stage: int) -> None:
    """Lays `pieces` into `builder`.

    blocks_per_message: how many blocks from one rank to another share a message; rounds_per_stage: after how many
    rounds of kv a worker attends to what they brought.
    """
    block, units = add_units(builder, pieces)
    wanted, rank = needed(units, builder.mask)
    moved = np.flatnonzero(units.home != units.worker)
    queries = _messages(builder, block, moved, units.home[moved], units.worker[moved], blocks_per_message)
    kv = _messages(builder, block, wanted, units.home[wanted], rank, blocks_per_message)
    returns = _messages(builder, block, moved, units.worker[moved], units.home[moved], blocks_per_message)
    heads = (0, builder.num_heads)
    stage = kv.round // rounds_per_stage
    # Own queries need nothing from elsewhere; those that came for attention do, and so wait for the first stage.
    at_home = np.arange(len(units.seq), dtype=np.int64)
    own, came = units.home == units.worker, units.home != units.worker
    wide = max(builder.num_ranks, 1)
    begin = attends(builder, block, units, own, at_home, units.home, np.zeros(len(at_home), np.int64), wide)
    late = attends(builder, block, units, came, at_home, units.home, np.ones(len(at_home), np.int64), wide)
    later = attends(builder, block, units, own | came, kv.unit, kv.dst[kv.message], 2 + stage[kv.message], wide)
    parts = [
        (Ops.transfers(Q, queries.src, queries.dst, heads, queries.blocks), queries.round - len(queries.round)),
        (Ops.transfers(KV, kv.src, kv.dst, heads, kv.blocks), _turn(stage, kv.round, 0)),
        (begin[0], _turn(begin[1], 0 * begin[1], 1)),
        (late[0], _turn(late[1] - 1, 0 * late[1], 1)),
        (later[0], _turn(later[1] - 1, 0 * later[1], 1)),
        (Ops.transfers(O, returns.src, returns.dst, heads, returns.blocks), LAST + returns.round),
    ]
    turn = np.concatenate([when for _, when in parts])
    builder.add_ops(Ops.concatenate([ops for ops, _ in parts]).take(np.argsort(turn, kind="stable")))


def _turn(stage: Ints, within: Ints, attend: int) -> Ints:
    """Returns the place of operations in the plan: a stage's transfers in their rounds, then the attends that they do
    not feed."""
    return (2 * stage + attend) * (1 << 32) + within


def with_backward(plan: Plan, mode: Mode, leading: int = 0) -> Plan:
    """Returns `plan` reversed. Where kv is fetched again it comes in the order in which the backward needs it: last
    first, after the `leading` ones that the others pass on."""
    plan = reverse(plan, mode)
    if mode != "regather":
        return plan
    count = int(((plan.forward.kind == TRANSFER) & (plan.forward.tensor == KV)).sum())
    order = np.arange(len(plan.backward))
    order[leading:count] = order[leading:count][::-1]
    return replace(plan, backward=plan.backward.take(order))


def add_units(builder: Builder, pieces: Pieces) -> tuple[Ints, Pieces]:
    """Adds the blocks: one a rank for all sequences that are one piece and stay, one for every other piece.

    Returns (block of each unit, the units as pieces); a rank's whole sequences are a unit of a sequence of its own.
    """
    count = len(builder.lengths)
    parts = np.bincount(pieces.seq, minlength=count)
    whole = (parts[pieces.seq] == 1) & (pieces.home == pieces.worker)
    ranks, place = np.unique(pieces.home[whole], return_inverse=True)
    block = np.empty(len(pieces.seq), np.int64)
    block[whole] = place
    block[~whole] = len(ranks) + np.arange(int((~whole).sum()))
    homes = np.concatenate([ranks, pieces.home[~whole]])
    base = builder.add_blocks(pieces.seq, pieces.start, pieces.stop, block, homes)
    units = Pieces(
        np.concatenate([count + ranks, pieces.seq[~whole]]),
        np.concatenate([0 * ranks, pieces.start[~whole]]),
        np.concatenate([0 * ranks + 1, pieces.stop[~whole]]),
        homes,
        np.concatenate([ranks, pieces.worker[~whole]]),
    )
    order = np.lexsort((units.start, units.seq))
    sorted_units = Pieces(*(getattr(units, name)[order] for name in Pieces.__dataclass_fields__))
    return base + order, sorted_units


def _messages(builder: Builder, block: Ints, unit: Ints, src: Ints, dst: Ints, most: int) -> MessageTable:
    """Gathers the blocks that go the same way into messages of at most `most`, in rounds; long sequences' blocks come
    first in `unit`."""
    way = src * builder.num_ranks + dst
    order = np.argsort(way, kind="stable")
    way = way[order]
    place = np.arange(len(way)) - np.searchsorted(way, way)
    starts = np.concatenate([[True], way[1:] != way[:-1]])[: len(way)] | (place % most == 0)
    message = np.cumsum(starts) - 1
    sizes = np.bincount(message) if len(message) else np.zeros(0, np.int64)
    names = ragged(builder, sizes, block[unit[order]])
    here, there = src[order][starts], dst[order][starts]
    turn = place[starts] // most  # a way's first message before any way's second
    urgent = np.argsort(turn, kind="stable")
    when = np.empty(len(urgent), np.int64)
    when[urgent] = colour_rounds(here[urgent], there[urgent], builder.num_ranks)
    return MessageTable(here, there, names, when, unit[order], message)


def attends(
    builder: Builder, block: Ints, units: Pieces, asks: Ints, unit: Ints, rank: Ints, stage: Ints, wide: int
) -> tuple[Ops, Ints]:
    """Returns (attends, the stage of each): a rank's queries among `asks` with the kv of `unit` that is there since
    `stage`.

    One attend for each (stage, rank); its queries are those that see any of its keys. wide: at least the ranks.
    """
    key = stage * wide + rank
    sequence = units.seq[unit]
    span = np.int64(max(int(units.seq.max()) + 1, 1))
    # The first of a sequence's keys in an attend, and which of the rank's queries see it: those at or after it, or all.
    order = np.lexsort((unit, sequence, key))
    key, unit, sequence = key[order], unit[order], sequence[order]
    group = key * span + sequence
    first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]])[: len(group)])
    mine = np.flatnonzero(asks)
    ask = units.worker[mine] * span + units.seq[mine]
    by_ask = np.lexsort((mine, ask))
    mine, ask = mine[by_ask], ask[by_ask]
    total = np.int64(len(units.seq) + 1)
    place = ask * total + mine
    wanted = (key[first] % wide) * span + sequence[first]
    low = np.searchsorted(place, wanted * total + (unit[first] if builder.mask.causal else 0))
    high = np.searchsorted(ask, wanted, side="right")
    count = np.maximum(high - low, 0)
    query = mine[np.repeat(low - np.cumsum(count) + count, count) + np.arange(int(count.sum()))]
    query_key = np.repeat(key[first], count)
    seen = np.repeat(count > 0, np.diff(np.append(first, len(key))))  # keys that some query of the rank sees
    keys, q_sizes = np.unique(query_key, return_counts=True)
    _, kv_sizes = np.unique(key[seen], return_counts=True)
    q_lists, kv_lists = ragged(builder, q_sizes, block[query]), ragged(builder, kv_sizes, block[unit[seen]])
    return Ops.attends(keys % wide, (0, builder.num_heads), q_lists, kv_lists), keys // wide


def ragged(builder: Builder, sizes: Ints, items: Ints) -> Ints:
    """Lists of different sizes, one after another in `items`, as names of a builder; a single block names itself."""
    offsets = np.cumsum(sizes) - sizes
    names = np.empty(len(sizes), np.int64)
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        rows = items[offsets[same][:, None] + np.arange(size)]
        names[same] = rows[:, 0] if size == 1 else builder.add_lists(rows)
    return names
