"""Shards of cut sequences: what is in them, and which share heads. Compiled.

A shard is what one node has of a cut sequence (SHARD of zbench.systems.nodewise.records). Where `wide` nodes next to
each other form a group, the shards of a group's nodes share heads: together they are one *joint* shard, whose `node` is
the number of the group.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.nodewise.records import SHARD, Record, Table


@nb.njit(**ENTERED)
def sees(shard: Record, other: Record) -> bool:
    """Returns whether queries of a shard see keys of another one of the same sequence, under a causal mask."""
    two_pieces = shard["second_stop"] > shard["second_start"]
    last = max(shard["first_stop"], shard["second_stop"]) if two_pieces else shard["first_stop"]
    return bool(other["first_start"] < last)


@nb.njit(**ENTERED)
def sees_others(shards: Table) -> Flags:
    """Returns which shards see keys of which other ones, bool [n, n]; those of other sequences none."""
    seen = np.zeros((len(shards), len(shards)), np.bool_)
    for i in range(len(shards)):
        for j in range(len(shards)):
            seen[i, j] = i != j and shards[i]["seq"] == shards[j]["seq"] and sees(shards[i], shards[j])
    return seen


@nb.njit(**ENTERED)
def shard_tokens(shard: Record) -> Record:
    """Returns the number of tokens of a shard, or int64 [n] of a table of shards."""
    return shard["first_stop"] - shard["first_start"] + shard["second_stop"] - shard["second_start"]


@nb.njit(**ENTERED)
def shard_squares(shard: Record) -> Record:
    """Returns what a shard's attention is in proportion to, for one shard or a table of them.

    Tokens from `start` to `stop` see the triangle of the first `stop` tokens less that of the first `start`.
    """
    first = shard["first_stop"] ** 2 - shard["first_start"] ** 2
    return first + shard["second_stop"] ** 2 - shard["second_start"] ** 2


@nb.njit(**ENTERED)
def joint_bounds(shards: Table, wide: int) -> Ints:
    """Finds where joint shards begin in a table of shards, and where the last one ends: int64 [n + 1].

    A sequence cut over groups of nodes has `wide` shards a group. One that is cut inside a group has fewer shards than
    two groups have, each for itself.
    """
    found, used, begin = np.zeros(len(shards) + 1, np.int64), 0, 0
    while begin < len(shards):
        stop = begin
        while stop < len(shards) and shards[stop]["seq"] == shards[begin]["seq"]:
            stop += 1
        count = stop - begin
        for at in range(begin, stop, wide if count >= 2 * wide and count % wide == 0 else 1):
            found[used] = at
            used += 1
        begin = stop
    found[used] = len(shards)
    return found[: used + 1]


@nb.njit(**ENTERED)
def join(shards: Table, bounds: Ints) -> Table:
    """Makes a table of the joint shards whose `bounds` these are; it undoes `divide`."""
    joints = np.empty(len(bounds) - 1, SHARD)
    for i in range(len(joints)):
        begin, last = bounds[i], bounds[i + 1] - 1
        joints[i] = shards[begin]
        joints[i]["node"] = shards[begin]["node"] // (last + 1 - begin)
        joints[i]["first_stop"] = shards[last]["first_stop"]
        joints[i]["second_stop"] = shards[last]["second_stop"]
    return joints


@nb.njit(**ENTERED)
def divide(joint: Record, share: Floats) -> Table:
    """Divides a joint shard into one for every node of its group, with tokens in proportion to `share`, [wide]."""
    wide, total, before = len(share), share.sum(), 0.0
    shards = np.empty(wide, SHARD)
    for i in range(wide):
        after = 1.0 if i == wide - 1 else before + (share[i] / total if total > 0 else 1 / wide)
        shards[i]["seq"], shards[i]["node"] = joint["seq"], joint["node"] * wide + i
        shards[i]["first_start"] = _between(joint["first_start"], joint["first_stop"], before)
        shards[i]["first_stop"] = _between(joint["first_start"], joint["first_stop"], after)
        shards[i]["second_start"] = _between(joint["second_start"], joint["second_stop"], before)
        shards[i]["second_stop"] = _between(joint["second_start"], joint["second_stop"], after)
        before = after
    return shards


@nb.njit(**INNER)
def _between(start: int, stop: int, share: float) -> int:
    return start + int(np.rint(share * (stop - start)))
