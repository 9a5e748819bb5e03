"""FCP: fixed-size blocks of every sequence on any ranks, balanced by bin packing, sent in congestion-free rounds.

Sequences are cut in blocks of a fixed size; a block is a bin-packing item with tokens (memory) and attention
(compute, more for later blocks of a sequence), and may go to any rank. Its queries need the keys of all earlier
blocks of the sequence, which are sent from rank to rank in rounds in which nobody sends or receives twice. Tokens
are reshuffled for the linear modules. Source: FCP (arXiv 2605.08524, MLSys 2026), whose code is not published;
what is derived here is told apart in docs/systems/fcp.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_whole_number
from zbench.describe.model import KV, O, Q
from zbench.interfaces.published import Published, PublishedValue
from zbench.passes import remap
from zbench.passes.remap import flows
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Ops, Plan
from zbench.systems.common.best_first import best_first
from zbench.systems.common.bins import bins
from zbench.systems.common.grids import busiest
from zbench.systems.common.micro_batches import fitting, fitting_tokens
from zbench.systems.common.scattered import Pieces, needed, scatter, with_backward
from zbench.systems.zeppelin.zones import capacity_tokens

SIZES = (1024, 2048, 4096, 8192)  # tokens of a block: the paper's 4,096 and its neighbours
PLAYED = 5  # most candidates that are built and played
NEAR = 2.0  # times the best estimate: what a reshuffle delays is not estimated, and can double a layer
KV_MOVES = 2  # in the backward: kv again, and its gradient home


@dataclass(frozen=True, slots=True)
class FCP:
    """FCP as a system: sequences are cut into blocks, which bin packing places on any ranks. block_tokens: size of a
    block; None: the best estimate of SIZES. rounds_per_attend: rounds after which a rank attends to what they
    brought. reshuffle: balance tokens for the linear modules to `reshuffle_tolerance` tokens, where that is predicted
    to gain. received_kv: what becomes of it until the backward.

    Raises:
        ValueError: block_tokens or rounds_per_attend is not a whole number of at least 1, reshuffle_tolerance not one
            of at least 0.
    """

    PUBLISHED: ClassVar[Published] = {
        "block_tokens": PublishedValue(4096, "arXiv 2605.08524: blocks of 4,096 tokens"),
        "rounds_per_attend": PublishedValue(16, "arXiv 2605.08524: 16 blocks are attended to at a time"),
    }

    cost: Cost
    block_tokens: int | None = None
    rounds_per_attend: int = 1
    reshuffle: bool = True
    reshuffle_tolerance: int = 128
    received_kv: Mode = "regather"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_boolean("system.reshuffle", self.reshuffle)
        check_whole_number("system.block_tokens", self.block_tokens, 1, or_null=True)
        check_whole_number("system.rounds_per_attend", self.rounds_per_attend, 1)
        check_whole_number("system.reshuffle_tolerance", self.reshuffle_tolerance, 0)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        return fitting(batch.lengths, self.cost, lambda seqs, _: self._plans(batch.lengths, seqs))

    def _plans(self, lengths: Ints, sequences: Ints) -> Iterator[Plan]:
        """Yields a plan of every block size, with and without the reshuffle where that is on, the fastest predicted
        first."""
        sizes = SIZES if self.block_tokens is None else (self.block_tokens,)
        mine, ways = lengths[sequences], (True, False) if self.reshuffle else (False,)
        # Blocks of every size, bin packing of each, and an estimate: the best few are built and played.
        blocks = [SequenceBlocks.cut(mine, size, self.cost) for size in sizes]
        tries = [(self.placed(one, way), way) for one in blocks for way in ways]
        estimates = [self.estimate(*one, blocks[i // len(ways)].seconds) for i, one in enumerate(tries)]
        seconds, num_ops = (np.array(column) for column in zip(*estimates, strict=True))
        return best_first(
            seconds, num_ops, lambda i: self.pieces_plan(mine, sequences, *tries[i]), self.cost, NEAR, PLAYED
        )

    def placed(self, blocks: "SequenceBlocks", reshuffle: bool) -> Pieces:
        """Places every block on the rank that bin packing gives it."""
        tokens, ranks = blocks.stop - blocks.start, self.cost.cluster.num_ranks
        load = blocks.seconds if reshuffle else blocks.seconds + _linear_seconds(tokens, self.cost)
        room = max(capacity_tokens(self.cost), int(tokens.max()))
        rank = neighbours(bins(load, tokens, ranks, room), blocks.length, ranks)
        return Pieces(blocks.seq, blocks.start, blocks.stop, rank, rank)

    def estimate(self, pieces: Pieces, reshuffle: bool, attention: Floats) -> tuple[float, int]:
        """Estimates a plan of blocks: (seconds of one layer, about how many operations). Infinite where a rank has more
        tokens than fit.

        attention: seconds of every piece.
        """
        cost, model, ranks = self.cost, self.cost.model, self.cost.cluster.num_ranks
        tokens = pieces.stop - pieces.start
        attend = np.bincount(pieces.worker, attention, ranks).max()
        linear = np.bincount(pieces.home, _linear_seconds(tokens, cost), ranks)
        piece, rank = needed(pieces, model.mask)
        q, kv, o = (model.message_bytes_per_token(tensor, 0, model.num_heads) for tensor in (Q, KV, O))
        # A key goes to every rank that needs it once, forward; backward, KV_MOVES times more.
        moved = (1 + KV_MOVES) * busiest(pieces.home[piece], rank, (tokens[piece] * kv).astype(np.float64), cost)
        held = np.bincount(pieces.home, tokens, ranks).astype(np.int64)
        if not reshuffle:
            fits = held.max() <= fitting_tokens(cost)
            return float(linear.max() + max(attend, moved)) if fits else np.inf, ranks + len(piece)
        source, target, amount = flows(held, cost, self.reshuffle_tolerance)
        aside = busiest(source, target, (amount * 2 * (q + kv + o)).astype(np.float64), cost)
        return float(linear.mean() + max(attend, moved) + aside), ranks + len(piece) + 3 * len(source)

    def pieces_plan(self, lengths: Ints, sequences: Ints, pieces: Pieces, reshuffle: bool) -> Plan:
        """Makes the plan of blocks that are placed: rounds of keys, tokens balanced for the linear modules where
        `reshuffle`, and the backward."""
        cost = self.cost
        builder = Builder(lengths, cost.cluster.num_ranks, cost.model.num_heads, cost.model.mask, sequences=sequences)
        scatter(builder, pieces, 1, self.rounds_per_attend)
        plan = builder.build()
        if not reshuffle:
            return with_backward(plan, self.received_kv)
        plan = remap(plan, cost, self.reshuffle_tolerance)
        return with_backward(plan, self.received_kv, _leading_kv(plan.forward))


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBlocks:
    """Blocks of consecutive tokens that sequences are cut into, and the attention of each. int64 [n] each: tokens
    [start, stop) of sequence seq, which is `length` tokens long; seconds: float64 [n], of its attention."""

    seq: Ints
    start: Ints
    stop: Ints
    length: Ints
    seconds: Floats

    @staticmethod
    def cut(lengths: Ints, size: int, cost: Cost) -> "SequenceBlocks":
        """Cuts sequences into blocks of `size` tokens each; a sequence's last one is shorter."""
        count = -(-lengths // size)
        seq = np.repeat(np.arange(len(lengths), dtype=np.int64), count)
        start = size * (np.arange(len(seq)) - np.repeat(np.cumsum(count) - count, count))
        stop = np.minimum(start + size, lengths[seq])
        return SequenceBlocks(seq, start, stop, lengths[seq], block_seconds(start, stop, lengths[seq], cost))


def neighbours(rank: Ints, length: Ints, num_ranks: int) -> Ints:
    """Renames ranks: bins are alike, so those that share a long sequence become neighbours, most in the same node.

    length: int64 [n], of the sequence that each item is of.
    """
    longest = np.zeros(num_ranks, np.int64)
    np.maximum.at(longest, rank, length)
    name = np.empty(num_ranks, np.int64)
    name[np.argsort(-longest, kind="stable")] = np.arange(num_ranks)
    return name[rank]


def block_seconds(start: Ints, stop: Ints, length: Ints, cost: Cost) -> np.ndarray:
    """Returns the seconds of attention of queries [start, stop) of a sequence of `length` to all keys they see, one
    layer, both directions."""
    return np.asarray(sum(cost.piece_seconds(start, stop, length, back) for back in (False, True)))


def _linear_seconds(tokens: Ints, cost: Cost) -> np.ndarray:
    """Returns the seconds of one layer's linear modules, both directions, for `tokens` that are a part of a rank's:
    without what a call costs however many there are."""
    one, cost = np.ones_like(tokens), of_parts(cost)
    again = cost.again_seconds(tokens) - cost.again_seconds(one)
    return np.asarray(3 * (cost.linear_seconds(tokens) - cost.linear_seconds(one)) + again, np.float64)


def _leading_kv(ops: Ops) -> int:
    """Returns how many transfers of kv remapping put first: those before the first of q, which only it sends here."""
    queries = np.flatnonzero(ops.tensor == Q)
    return int((ops.tensor[: queries[0]] == KV).sum()) if len(queries) else 0
