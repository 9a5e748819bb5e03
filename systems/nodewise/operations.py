"""Puts the operations of a layout in order: step 3 of docs/planner.md.

Heads are exchanged and attended to in chunks, so that one chunk's exchange hides behind another's attends. Keys go from
shard to shard between GPUs of the same place: across nodes every NIC then carries its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Ops
from zbench.systems.nodewise import operation_table
from zbench.systems.nodewise.chunks import chunk_bounds, shard_cut
from zbench.systems.nodewise.operation_table import OPERATION, CutSequence, Sharers
from zbench.systems.nodewise.records import BACKWARD, FORWARD, Record, Table

PAIR = 2  # other shards whose keys are one call (a choice: three or four were as good)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Holds tokens whose heads some GPUs share: whole sequences of a node, or a shard of a cut one.

    seq, start, stop: int64 [n], pieces [start, stop) of sequences. ranks, share: [P], the GPUs, and how much of the
    tokens each is home of. heads: int64 [P + 1], bounds of each one's heads.
    """

    seq: Ints
    start: Ints
    stop: Ints
    ranks: Ints
    share: Floats
    heads: Ints

    @staticmethod
    def of_shard(shard: Record, ranks: Ints, share: Floats, heads: Ints) -> "Shared":
        """Makes shared tokens of a SHARD, without the second piece where it has none."""
        start = np.array([shard["first_start"], shard["second_start"]])
        stop = np.array([shard["first_stop"], shard["second_stop"]])
        filled = stop > start
        return Shared(np.full(filled.sum(), shard["seq"]), start[filled], stop[filled], ranks, share, heads)

    @staticmethod
    def joined(shards: Sequence["Shared"], num_heads: int) -> "Shared":
        """Makes one of several shards, whose GPUs share heads evenly."""
        if len(shards) == 1:
            return shards[0]
        seq, start, stop, ranks = (
            np.concatenate([getattr(shard, name) for shard in shards]) for name in ("seq", "start", "stop", "ranks")
        )
        share = np.concatenate([shard.share * (shard.stop - shard.start).sum() for shard in shards])
        share /= share.sum()
        order = np.argsort(start)
        heads = num_heads * np.arange(len(ranks) + 1) // len(ranks)
        return Shared(seq, start[order], stop[order], ranks, share, heads)


class Layer:
    """Collects a plan's operations with the turns in which queues serve them.

    `done` gives them to the builder: those of the forward (keep 0), then those of the backward, as a forward too (keep
    1). queries: heads a kv head. chunks: in how many parts the heads of a GPU are exchanged and attended to at most, of
    shards of cut sequences. pairs: whether shards attend to the keys of two others in one call of the backward, which
    has them from the start.
    """

    def __init__(self, builder: Builder, queries: int, chunks: int, pairs: bool = False) -> None:
        self.builder, self.queries, self.chunks, self.pairs = builder, queries, chunks, pairs
        self.tables: tuple[list[Table], list[Table]] = ([], [])

    def done(self) -> None:
        """Sorts the operations of both directions by their turns and gives them to the builder."""
        for direction, tables in enumerate(self.tables):
            # As plain numbers, which numpy joins and sorts faster than records: [operations, fields].
            numbers = np.concatenate([table.view(np.int64) for table in tables]).reshape(-1, len(OPERATION.names or ()))
            columns = np.ascontiguousarray(numbers[np.argsort(numbers[:, 0], kind="stable")].T)
            _, kind, tensor, src, dst, lo, hi, blocks, kv_blocks = columns  # the turns have done their work
            none, zero = np.full_like(kind, -1), np.zeros_like(kind)
            self.builder.add_ops(Ops(kind, tensor, src, dst, lo, hi, blocks, kv_blocks, none, zero + direction, zero))

    def local(self, seqs: Ints, rank: Ints) -> None:
        """Adds whole sequences [n] that are on one rank each, as one attend a rank."""
        used, block = np.unique(rank, return_inverse=True)
        if len(used):
            zero = np.zeros_like(seqs)
            ids = self.builder.add_blocks(seqs, zero, self.builder.lengths[seqs], block, used) + np.arange(len(used))
            for direction in (FORWARD, BACKWARD):
                self.tables[direction].append(operation_table.local_attends(used, ids, self.builder.num_heads))

    def groups(self, groups: Sequence[Shared], cuts: Ints) -> None:
        """Adds whole sequences whose heads a node shares, group after group.

        cuts: [2, G], of every group's heads in either direction (zbench.systems.nodewise.chunks).
        """
        sharers = [self._sharers(of) for of in groups]
        for direction in (FORWARD, BACKWARD):
            number = 0  # of the next chunk
            for one, cut in zip(sharers, cuts[direction].tolist(), strict=True):
                self.tables[direction].append(operation_table.group(one, cut, number, self.queries))
                number += len(chunk_bounds(cut)) - 1

    def cut(self, shards: Sequence[Shared], sees: Flags) -> None:
        """Adds a sequence in several (joint) shards, of as many GPUs each.

        sees: bool [shards, shards], which shards see keys of which others under a causal mask.
        """
        if not self.builder.mask.causal:
            sees = np.ones_like(sees)
        columns = zip(*(self._sharers(shard) for shard in shards), strict=True)
        together = CutSequence(*(np.array(column, np.int64) for column in columns))
        for direction in (FORWARD, BACKWARD):
            cut = shard_cut(self.chunks, direction)
            keys = self._keys(together, sees, PAIR if self.pairs and direction == BACKWARD else 1)
            self.tables[direction].append(operation_table.cut_sequence(together, sees, keys, cut, self.queries))

    def _keys(self, shards: CutSequence, sees: Flags, most: int) -> Ints:
        """Keys as operation_table.cut_sequence takes them: of `most` shards that one sees the last turn has all."""
        count = len(sees)
        keys = np.full((count, count), -1, np.int64)
        for r in range(count):
            turns = [turn for turn in range(1, count) if sees[r, r - turn]]
            for some in (turns[at : at + most] for at in range(0, len(turns), most)):
                others = r - np.array(some)
                if len(some) == 1:
                    keys[r, some[-1]] = shards.together[others[0]]
                else:
                    keys[r, some[-1]] = self.builder.add_lists(shards.blocks[others].reshape(1, -1))[0]
        return keys

    def _sharers(self, of: Shared) -> Sharers:
        """Adds one block a GPU, and the list of them all, to the builder."""
        seq, start, stop, block = operation_table.divide_blocks(of.seq, of.start, of.stop, of.share)
        base = self.builder.add_blocks(seq, start, stop, block, of.ranks)
        ids = base + np.arange(len(of.ranks))
        together = int(ids[0]) if len(ids) == 1 else int(self.builder.add_lists(ids.reshape(1, -1))[0])
        return Sharers(of.ranks, of.heads, ids, together)
