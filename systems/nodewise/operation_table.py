"""Tables of the operations of shared sequences: the compiled part of zbench.systems.nodewise.operations.

A table is an array of OPERATION. Its `turn` says when queues serve an operation: the first by phase, then by chunk,
then by the order inside a chunk.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.model import KV, O, Q
from zbench.plans.plan import ATTEND, TRANSFER, Ints
from zbench.systems.nodewise.chunks import WHOLE, chunk_bounds
from zbench.systems.nodewise.records import Record, Table

# Phases, in the order in which queues serve them. An exchange of shards comes before one of groups: GPUs of other nodes
# wait for its keys.
SHARD_OUT, GROUP_OUT, ACROSS, LOCAL, OWN, GROUP, OTHERS = range(7)
CHUNKS, ORDERS = 64, 4096  # more than there are chunks in a phase, and operations of a rank in a chunk
OPERATION = np.dtype(
    [(name, np.int64) for name in ("turn", "kind", "tensor", "src", "dst", "lo", "hi", "blocks", "kv_blocks")],
    align=True,
)


class Sharers(NamedTuple):
    """Describes the GPUs that share the heads of some tokens, P of them.

    ranks: int64 [P]. heads: int64 [P + 1], bounds of each one's heads. blocks: int64 [P], the block that each is home
    of. together: the name of the list of all these blocks.
    """

    ranks: Ints
    heads: Ints
    blocks: Ints
    together: int


class CutSequence(NamedTuple):
    """Describes the sharers of every shard of a cut sequence, in the fields of Sharers.

    Each has an axis of shards in front: ranks is int64 [shards, P], and so on.
    """

    ranks: Ints
    heads: Ints
    blocks: Ints
    together: Ints


class Chunk(NamedTuple):
    """Holds a chunk of every GPU's heads, [lo, hi), int64 [P] each, those whose keys it brings, and its number.

    Heads that share a kv head may be in several chunks: the first of them brings the keys of all.
    """

    lo: Ints
    hi: Ints
    kv_lo: Ints
    kv_hi: Ints
    number: int


@nb.njit(**ENTERED)
def group(sharers: Sharers, cut: int, number: int, queries: int) -> Table:
    """Makes the operations of whole sequences whose heads some GPUs share: exchanged, attended to, sent home.

    cut: of a GPU's heads (zbench.systems.nodewise.chunks). number: of the first chunk. queries: heads a kv head.
    """
    ends, count = _ends(sharers.heads, cut), len(sharers.ranks)
    keys, chunks = _with_whole_keys(ends, queries), len(ends) - 1
    table, at = np.empty(chunks * count * (3 * (count - 1) + 1), OPERATION), 0
    for c in range(chunks):
        chunk = Chunk(ends[c], ends[c + 1], keys[c], keys[c + 1], number + c)
        at = _exchange(table, at, sharers, chunk, GROUP_OUT)
        at = _attend(table, at, sharers, chunk, sharers.together, _turn(GROUP, chunk.number, 0))
        at = _send_home(table, at, sharers, chunk, _turn(GROUP, chunk.number, 1))
    return table[:at]


@nb.njit(**ENTERED)
def cut_sequence(shards: CutSequence, sees: Flags, keys: Ints, cut: int, queries: int) -> Table:
    """Makes the operations of a sequence in several shards.

    Of every shard these are its exchange, keys from other shards, attends, and the way home. sees: bool [shards,
    shards], which others a shard sees. keys: int64 [shards, shards], by how many places before it another shard is: the
    name of the list of keys that a shard attends to in that turn, -1 where they are part of a later turn's. cut,
    queries: as in `group`.
    """
    count, size = shards.ranks.shape
    most = count * size * (3 * (size - 1) + 1 + 2 * (count - 1))
    table, at = np.empty(3 * most, OPERATION), 0  # of three chunks
    for r in range(count):
        own = _one_of(shards, r)
        ends = _ends(own.heads, cut)
        key_ends = _with_whole_keys(ends, queries)
        for c in range(len(ends) - 1):
            chunk = Chunk(ends[c], ends[c + 1], key_ends[c], key_ends[c + 1], c)
            at = _exchange(table, at, own, chunk, SHARD_OUT)
            at = _attend(table, at, own, chunk, own.together, _turn(OWN, c, 0))
            for turn in range(1, count):
                other = (r - turn) % count
                if sees[r, other]:
                    at = _fetch(table, at, own, _one_of(shards, other), chunk, _turn(ACROSS, c, turn))
                if keys[r, turn] != -1:
                    at = _attend(table, at, own, chunk, keys[r, turn], _turn(OTHERS, c, turn))
            at = _send_home(table, at, own, chunk, _turn(OTHERS, c, count))
    return table[:at]


@nb.njit(**INNER)
def _one_of(shards: CutSequence, r: int) -> Sharers:
    return Sharers(shards.ranks[r], shards.heads[r], shards.blocks[r], shards.together[r])


@nb.njit(**ENTERED)
def local_attends(ranks: Ints, blocks: Ints, num_heads: int) -> Table:
    """Makes the attends to blocks of whole sequences, [n], that are on one GPU each."""
    table = np.empty(len(ranks), OPERATION)
    for i in range(len(ranks)):
        _write(table[i], _turn(LOCAL, 0, 0), (ATTEND, -1), (ranks[i], ranks[i]), (0, num_heads), (blocks[i], blocks[i]))
    return table


@nb.njit(**ENTERED)
def divide_blocks(seq: Ints, start: Ints, stop: Ints, share: Floats) -> tuple[Ints, Ints, Ints, Ints]:
    """Divides pieces [start, stop) of sequences into blocks, as `share` says: (seq, start, stop, block) of the pieces
    that they come to.
    """
    ends, cuts, total = np.cumsum(stop - start), np.empty(len(share), np.int64), 0.0
    for b in range(len(share)):
        total += share[b]
        cuts[b] = int(np.rint(total * ends[-1]))
    cuts[-1] = ends[-1]
    edges = np.unique(np.concatenate((np.zeros(1, np.int64), ends, cuts)))
    piece = np.searchsorted(ends, edges[:-1], side="right")
    shift = start[piece] - (ends[piece] - (stop[piece] - start[piece]))
    block = np.searchsorted(cuts, edges[:-1], side="right")
    return seq[piece], edges[:-1] + shift, edges[1:] + shift, block


@nb.njit(**INNER)
def _turn(phase: int, chunk: int, order: int) -> int:
    return (phase * CHUNKS + chunk) * ORDERS + order


@nb.njit(**INNER)
def _ends(heads: Ints, cut: int) -> Ints:
    """Returns where every GPU's chunks of its heads end: int64 [chunks + 1, P]. A GPU with all heads has one chunk."""
    ends, count = chunk_bounds(cut if len(heads) > 2 else WHOLE), len(heads) - 1
    out = np.empty((len(ends), count), np.int64)
    for c in range(len(ends)):
        for p in range(count):
            out[c, p] = heads[p] + int(np.floor((heads[p + 1] - heads[p]) * ends[c] + 0.5))
    return out


@nb.njit(**INNER)
def _with_whole_keys(ends: Ints, queries: int) -> Ints:
    """Returns up to which head each chunk brings keys, int64 [chunks + 1, P]: all of each kv head that it reads first.

    A chunk that reads one of those and others besides has no keys left to bring: their gradients go home together, as
    its attend makes them.
    """
    out = ends.copy()
    for c in range(len(ends) - 2, 0, -1):
        for p in range(ends.shape[1]):
            if ends[c, p] % queries > 0 and ends[c, p] > ends[0, p]:
                out[c, p] = out[c + 1, p]
    return out


@nb.njit(**INNER)
def _write(
    operation: Record,
    turn: int,
    what: tuple[int, int],
    ranks: tuple[int, int],
    heads: tuple[int, int],
    blocks: tuple[int, int],
) -> None:
    """Fills an operation; what: kind and tensor, ranks: src and dst, blocks: its blocks and its kv_blocks."""
    operation["turn"] = turn
    operation["kind"], operation["tensor"] = what
    operation["src"], operation["dst"] = ranks
    operation["lo"], operation["hi"] = heads
    operation["blocks"], operation["kv_blocks"] = blocks


@nb.njit(**INNER)
def _partner(here: int, turn: int, count: int) -> int:
    """Whom a GPU exchanges with, as zbench.plans.patterns.partner has it."""
    return here ^ turn if count & (count - 1) == 0 else (here + turn) % count


@nb.njit(**INNER)
def _attend(table: Table, at: int, own: Sharers, chunk: Chunk, keys: int, turn: int) -> int:
    """Adds an attend of every GPU to `keys`, with its heads of the chunk; returns where the table goes on."""
    for p in range(len(own.ranks)):
        if chunk.hi[p] > chunk.lo[p]:
            ranks, heads = (own.ranks[p], own.ranks[p]), (chunk.lo[p], chunk.hi[p])
            _write(table[at], turn, (ATTEND, -1), ranks, heads, (own.together, keys))
            at += 1
    return at


@nb.njit(**INNER)
def _exchange(table: Table, at: int, own: Sharers, chunk: Chunk, phase: int) -> int:
    """Adds an all-to-all, in rounds in which everybody sends and receives once.

    kv comes first, as other nodes wait for it.
    """
    count = len(own.ranks)
    for order, tensor in enumerate((KV, Q)):
        turn = _turn(phase, chunk.number, order)
        for step in range(1, count):
            for here in range(count):
                to = _partner(here, step, count)
                lo, hi = (chunk.kv_lo[to], chunk.kv_hi[to]) if tensor == KV else (chunk.lo[to], chunk.hi[to])
                if hi > lo:
                    ranks = (own.ranks[here], own.ranks[to])
                    _write(table[at], turn, (TRANSFER, tensor), ranks, (lo, hi), (own.blocks[here], -1))
                    at += 1
    return at


@nb.njit(**INNER)
def _fetch(table: Table, at: int, own: Sharers, other: Sharers, chunk: Chunk, turn: int) -> int:
    """Adds the transfers of another shard's keys, each from the GPU in the same place of its node."""
    for p in range(len(own.ranks)):
        if chunk.kv_hi[p] > chunk.kv_lo[p]:
            ranks, heads = (other.ranks[p], own.ranks[p]), (chunk.kv_lo[p], chunk.kv_hi[p])
            _write(table[at], turn, (TRANSFER, KV), ranks, heads, (other.together, -1))
            at += 1
    return at


@nb.njit(**INNER)
def _send_home(table: Table, at: int, own: Sharers, chunk: Chunk, turn: int) -> int:
    """Adds the all-to-all that sends o home, in the rounds of `_exchange`."""
    count = len(own.ranks)
    for step in range(1, count):
        for here in range(count):
            to = _partner(here, step, count)
            if chunk.hi[here] > chunk.lo[here]:
                ranks, heads = (own.ranks[here], own.ranks[to]), (chunk.lo[here], chunk.hi[here])
                _write(table[at], turn, (TRANSFER, O), ranks, heads, (own.blocks[to], -1))
                at += 1
    return at
