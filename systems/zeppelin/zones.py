"""Zeppelin's zones: the lengths from which on a sequence is worth cutting, and what cutting it costs."""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.cost.memory.host_copies import waiting
from zbench.cost.memory.needs import memory_of
from zbench.describe.arrays import Flags, Floats
from zbench.describe.model import KV
from zbench.plans.area import TILE, Work
from zbench.plans.plan import Ints


@dataclass(frozen=True, slots=True)
class SequenceSeconds:
    """The four curves that zones come from: seconds of one layer, forward and backward, for sequences of given lengths
    [n], whole and alone.

    attention, linear: on one GPU; linear with what a layer waits for its copies to and from hosts. inside, across:
    their kv to one peer, through a GPU's NVLink port and through a NIC.
    """

    attention: Floats
    linear: Floats
    inside: Floats
    across: Floats


def curves(lengths: Ints, cost: Cost, kv_moves: int) -> SequenceSeconds:
    """Returns the four curves; kv_moves: how often kv (or its gradient) travels in forward and backward together."""
    ahead, back = (cost.whole_seconds(lengths, backward=way) for way in (False, True))
    attention = ahead + back
    size = kv_moves * lengths * cost.model.message_bytes_per_token(KV, 0, cost.model.num_heads)
    no, yes = np.zeros(len(lengths), bool), np.ones(len(lengths), bool)
    one, part = np.ones_like(lengths), of_parts(cost)
    linear = 3 * (part.linear_seconds(lengths) - part.linear_seconds(one))
    linear += part.again_seconds(lengths) - part.again_seconds(one)
    linear += waiting(cost, lengths, ahead, back)
    return SequenceSeconds(attention, linear, cost.message_seconds(size, no), cost.message_seconds(size, yes))


def ring_seconds(lengths: Ints, widths: Ints, cost: Cost) -> Floats:
    """Returns the attention seconds per rank of one layer, forward and backward, in a zigzag ring [len(lengths),
    len(widths)].

    Each of G steps is a call of half a block's queries against a block's keys (or the reverse), and all
    but the first join an earlier result: short pieces cost tiles, joins and calls that a whole sequence does not.
    """
    steps, work = Work.ring(lengths[:, None], widths, cost.model.mask)
    ones = np.ones_like(steps)
    heads, kv_heads = cost.model.num_heads * ones, cost.model.num_kv_heads * ones
    step = sum(cost.kernel_seconds(work, heads, kv_heads, back) for back in (False, True))
    join = sum(cost.join_seconds(work, heads, kv_heads, back) for back in (False, True))
    return np.asarray(steps * step + (steps - 1) * join)


def ring_bound(lengths: Ints, cost: Cost, kv_moves: int, lanes: int) -> float:
    """Returns the seconds that one layer of a ring over all ranks takes at least: its compute spread evenly, or its kv
    through the link between two nodes (or two GPUs)."""
    c, ranks = curves(lengths, cost, kv_moves), cost.cluster.num_ranks
    link = c.across.sum() / lanes if cost.cluster.num_nodes > 1 else c.inside.sum()
    return float(max((c.attention.sum() + c.linear.sum()) / ranks, link * (ranks - 1) / ranks))


def zones(cost: Cost, kv_moves: int, lanes: int) -> tuple[int, int]:
    """Returns (first length of the intra-node zone, first of the inter-node zone), tokens.

    A ring over G ranks computes 1/G of the attention on each and passes (G-1)/G of kv through each; with
    G = 2, the first cut, attention hides it where the curves of attention and of the link cross.
    lanes: NICs a transfer is spread over.
    """
    lengths = np.unique(np.geomspace(2 * TILE, 2**24, 400).astype(np.int64))
    c = curves(lengths, cost, kv_moves)

    def first(hidden: Flags) -> int:
        return int(lengths[np.argmax(hidden)]) if hidden.any() else int(lengths[-1])

    inside = first(c.attention >= c.inside)
    return inside, max(inside, first(c.attention >= c.across / lanes))


def capacity_tokens(cost: Cost) -> int:
    """Returns how many tokens' activations fit a GPU; a tenth is left for received blocks."""
    return max(int(memory_of(cost).tokens(cost.cluster.device.memory_bytes, filled=0.9)), 1)
