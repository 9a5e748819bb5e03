"""Work that nodes do, and keys that they receive, for their shards of cut sequences, for step 2. Compiled."""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.systems.nodewise.chunks import shard_bounds, shard_cut
from zbench.systems.nodewise.records import SHARD_WORK, Estimate, NodeSettings, Pace, Table, TokenSeconds
from zbench.systems.nodewise.shards import join, joint_bounds, sees, shard_squares, shard_tokens


@nb.njit(**ENTERED)
def shard_work(
    shards: Table, wide: int, estimated: Estimate, token: TokenSeconds, pace: Pace, settings: NodeSettings
) -> Table:
    """Sums up what every node has of the shards of a placement, by direction: SHARD_WORK [nodes, 2].

    wide: nodes of a group, which share the heads of a joint shard, and so its attention, evenly. estimated: of the
    placement.
    """
    num, ranks, heads = len(estimated.linear), settings.num_ranks, settings.num_heads / (settings.num_ranks * wide)
    count, tokens, work, own, calls, queries, keys, ready = np.zeros((8, num))
    bounds = joint_bounds(shards, wide)
    joints = join(shards, bounds)
    for i in range(len(joints)):
        size, share = shard_tokens(joints[i]), 1 / (bounds[i + 1] - bounds[i])
        whole = token.square * shard_squares(joints[i]) + token.query * size
        triangle = min(token.square * size * size + token.query * size, whole)  # of queries and keys of the shard
        seen, seen_tokens, latest = 0, 0, 0.0
        for j in range(len(joints)):
            if joints[i]["seq"] == joints[j]["seq"]:
                for shard in shards[bounds[j] : bounds[j + 1]]:
                    latest = max(latest, estimated.linear[shard["node"]])
                if i != j and sees(joints[i], joints[j]):
                    seen, seen_tokens = seen + 1, seen_tokens + shard_tokens(joints[j])
        for shard in shards[bounds[i] : bounds[i + 1]]:
            n = shard["node"]
            count[n] += 1
            tokens[n] += shard_tokens(shard)
            work[n] += share * whole
            own[n] += share * triangle
            calls[n] += seen
            queries[n] += share * (size * seen)
            keys[n] += share * seen_tokens
            ready[n] = max(ready[n], latest)
    found = np.zeros((num, 2), SHARD_WORK)
    for direction in range(2):
        rates = pace.passes[direction]
        chunks = len(shard_bounds(shard_cut(settings.chunks, direction), heads)) - 1
        for n in range(num):
            one = found[n, direction]
            joins = rates.join_query * queries[n] + rates.join_key * keys[n]
            starts = chunks * calls[n] * (rates.start + rates.join)
            others = (rates.attention * (work[n] - own[n]) + joins) / ranks + starts
            one["tokens"] = tokens[n]
            one["own"] = (rates.attention * own[n] + token.repack * tokens[n] / 2) / ranks
            one["others"], one["last_call"] = others, others / max(calls[n], 1)
            one["starts"] = count[n] * rates.start
            one["keys"], one["ready"] = estimated.keys[n], ready[n] * rates.linear
            one["away"], one["heads"] = 1 - 1 / wide, heads
    return found
