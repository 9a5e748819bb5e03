"""Loads of nodes under a placement: tokens, work, keys on their NICs, and an estimate of a layer.

Compiled. None of it knows how sequences came to be where they are. node_of is int64 [n], the node of every whole
sequence, and -1 for those that are cut into shards.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.nodewise.records import Estimate, Nodes, Sequences, Table, TokenSeconds
from zbench.systems.nodewise.shards import divide, join, joint_bounds, sees, shard_squares, shard_tokens


@nb.njit(**ENTERED)
def level(load: Floats, work: float) -> float:
    """Returns the level up to which `work` fills the least loaded, as water fills a basin."""
    order = np.sort(load)
    left = work
    for i in range(len(order)):
        above = order[i + 1] if i + 1 < len(order) else np.inf
        if left <= (above - order[i]) * (i + 1):
            return float(order[i] + left / (i + 1))
        left -= (above - order[i]) * (i + 1)
    return float(order[-1])


@nb.njit(**ENTERED)
def held_tokens(tokens: Ints, node_of: Ints, shards: Table, count: int) -> Floats:
    """Counts the tokens that each of `count` nodes is home of, float64 [count]."""
    held = np.zeros(count)
    for s in range(len(tokens)):
        if node_of[s] >= 0:
            held[node_of[s]] += tokens[s]
    for shard in shards:
        held[shard["node"]] += shard_tokens(shard)
    return held


@nb.njit(**ENTERED)
def level_tokens(tokens: Ints, node_of: Ints, shards: Table, count: int, wide: int) -> Table:
    """Moves tokens between nodes that share heads, so that each has as many of all it is home of as can be.

    The work of a joint shard is shared by heads, evenly, whoever is home of its tokens.
    """
    shards, bounds = shards.copy(), joint_bounds(shards, wide)
    joints = join(shards, bounds)
    pool, held = np.zeros(count // wide), held_tokens(tokens, node_of, shards[:0], count)
    for i in range(len(joints)):
        for shard in shards[bounds[i] : bounds[i + 1]]:
            if bounds[i + 1] - bounds[i] > 1:
                pool[shard["node"] // wide] += shard_tokens(shard)
            else:
                held[shard["node"]] += shard_tokens(shard)
    for i in range(len(joints)):
        if bounds[i + 1] - bounds[i] > 1:
            group = joints[i]["node"]
            here = held[group * wide : (group + 1) * wide]
            lacking = np.maximum(level(here, pool[group]) - here, 0.0)
            shards[bounds[i] : bounds[i + 1]] = divide(joints[i], lacking)
    return shards


@nb.njit(**ENTERED)
def estimate(sequences: Sequences, node_of: Ints, shards: Table, nodes: Nodes, wide: int) -> Estimate:
    """Estimates the seconds of a layer.

    A layer takes as long as its slowest node: in either direction linear modules, then attention or the keys on its
    NICs, whichever is longer.
    """
    bounds = joint_bounds(shards, wide)
    linear = held_tokens(sequences.tokens, node_of, shards, nodes.num_nodes) * nodes.token.linear / nodes.num_ranks
    keys = _nic_tokens(shards, bounds, nodes) * nodes.across
    busy = _work(sequences, node_of, shards, bounds, nodes) / nodes.num_ranks - linear
    for i in range(len(bounds) - 1):
        group = shards["node"][bounds[i] : bounds[i + 1]]
        linear[group] = linear[group].max()  # the first exchange waits for all of them
    seconds, passes = 0.0, np.zeros(2)
    for n in range(nodes.num_nodes):
        forward = max(nodes.forward * busy[n], keys[n])
        backward = max((1 - nodes.forward) * busy[n], keys[n])
        seconds = max(seconds, linear[n] + (forward + backward))
        passes[0] = max(passes[0], linear[n] / 3 + forward)  # linear modules take twice as long in the backward
        passes[1] = max(passes[1], 2 * linear[n] / 3 + backward)
    return Estimate(linear, busy, keys, seconds, passes)


@nb.njit(**ENTERED)
def cut_token(token: TokenSeconds) -> float:
    """Returns the seconds of a token of a cut sequence, beside those in proportion to `shard_squares`."""
    return token.linear + token.repack + token.query


@nb.njit(**INNER)
def _work(sequences: Sequences, node_of: Ints, shards: Table, bounds: Ints, nodes: Nodes) -> Floats:
    """Seconds of every node's GPUs together; nodes of a joint shard share its attention evenly."""
    token, load = nodes.token, np.zeros(nodes.num_nodes)
    for s in range(len(node_of)):
        if node_of[s] >= 0:
            load[node_of[s]] += sequences.attention[s] + token.linear * sequences.tokens[s]
    for i in range(len(bounds) - 1):
        attention, together = 0.0, shards[bounds[i] : bounds[i + 1]]
        for shard in together:
            attention += token.square * shard_squares(shard) + (token.query + token.repack) * shard_tokens(shard)
            load[shard["node"]] += token.linear * shard_tokens(shard)
        for shard in together:
            load[shard["node"]] += attention / len(together)
    return load


@nb.njit(**INNER)
def _nic_tokens(shards: Table, bounds: Ints, nodes: Nodes) -> Floats:
    """Tokens whose keys every node sends or receives, whichever is more.

    Where one peer cannot have all of a node's NICs, it is `one_peer` times as many as go from one node to one other, if
    that is more.
    """
    sent, received = np.zeros(nodes.num_nodes), np.zeros(nodes.num_nodes)
    peers = nodes.num_nodes if nodes.one_peer > 1 else 0
    pair = np.zeros((nodes.num_nodes, peers))  # from, to
    joints = join(shards, bounds)
    for i in range(len(joints)):
        mine = shards[bounds[i] : bounds[i + 1]]
        count = len(mine)
        for shard in mine:
            # Nodes that share heads exchange q and o as well: about twice as much as kv.
            received[shard["node"]] += 2 * shard_tokens(shard) * (count - 1) / count
        for j in range(len(joints)):
            if i == j or joints[i]["seq"] != joints[j]["seq"] or not sees(joints[i], joints[j]):
                continue
            others, each = shards[bounds[j] : bounds[j + 1]], shard_tokens(joints[j]) / count
            for shard in mine:
                received[shard["node"]] += each
            for shard in others:
                sent[shard["node"]] += each
            for at in range(len(others) if peers else 0):  # GPUs send to the one in their place
                pair[others[at]["node"], mine[at]["node"]] += each
    keys = np.maximum(sent, received)
    for n in range(peers):
        keys[n] = max(keys[n], nodes.one_peer * pair[n].max(), nodes.one_peer * pair[:, n].max())
    return keys
