"""Fills nodes with sequences, whole and cut, as a rule says: step 1 of docs/planner.md. Compiled."""

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.area import TILE
from zbench.plans.plan import Ints
from zbench.systems.nodewise.loads import cut_token, estimate, level, level_tokens
from zbench.systems.nodewise.records import SHARD, Estimate, Loads, Nodes, Record, Rule, Sequences, Table, TokenSeconds
from zbench.systems.nodewise.shards import divide, shard_squares, shard_tokens

SQUEEZE = 0.03  # of an even share: room on a node of a group that is not worth it (a choice)
OVER = 0.05  # of an even share: a sequence that would be so much too long for a node of a group is cut over them


@nb.njit(**ENTERED)
def place(sequences: Sequences, order: Ints, nodes: Nodes, rule: Rule) -> tuple[Ints, Table, bool]:
    """Places sequences by a rule: (node of each whole one or -1, shards of the cut ones, whether all fit).

    order: the sequences from most to least work. Where nodes share heads (rule.wide), groups of them are filled as if
    each were one node, and are told apart after that.
    """
    ranked, num = Sequences(sequences.tokens[order], sequences.attention[order]), nodes.num_nodes // rule.wide
    loads = Loads(np.zeros(num), np.zeros(num), rule.wide * nodes.capacity)
    found, shards, fits = _fill(ranked, nodes.token, rule, loads)
    if rule.wide > 1 and fits:
        found, shards, fits = _tell_apart(ranked, nodes, found, shards, rule.wide)
    node_of = np.empty(len(found), np.int64)
    node_of[order] = found
    for shard in shards:
        shard["seq"] = order[shard["seq"]]
    if rule.wide > 1 and fits:
        shards = level_tokens(sequences.tokens, node_of, shards, nodes.num_nodes, rule.wide)
    return node_of, shards, fits


@nb.njit(**ENTERED)
def place_and_estimate(
    sequences: Sequences, order: Ints, nodes: Nodes, rule: Rule
) -> tuple[Ints, Table, bool, Estimate]:
    """Does what `place` does, and estimates what it found."""
    node_of, shards, fits = place(sequences, order, nodes, rule)
    return node_of, shards, fits, estimate(sequences, node_of, shards, nodes, rule.wide)


@nb.njit(**INNER)
def _fill(ranked: Sequences, token: TokenSeconds, rule: Rule, loads: Loads) -> tuple[Ints, Table, bool]:
    """Adds sequences, those with most work first, to nodes that have `loads`; returns what `place` does."""
    tokens, attention = ranked.tokens, ranked.attention
    count, num = len(tokens), len(loads.seconds)
    node_of, shards = np.full(count, -1, np.int64), np.zeros(rule.cut * num, SHARD)
    total = loads.seconds.sum()
    for s in range(count):
        total += attention[s] + (token.linear + (token.repack if s < rule.cut else 0.0)) * tokens[s]
    target, used = rule.full * total / num, 0
    if rule.first:
        used = _cut_longest(tokens, token, rule, target, loads, node_of, shards)
    for s in range(rule.cut, count):
        best = -1
        for n in range(num):
            if loads.held[n] + tokens[s] <= loads.capacity and (best < 0 or loads.seconds[n] < loads.seconds[best]):
                best = n
        if best < 0:
            return node_of, shards[:used], False
        node_of[s] = best
        loads.seconds[best] += attention[s] + token.linear * tokens[s]
        loads.held[best] += tokens[s]
    if not rule.first:
        used = _cut_longest(tokens, token, rule, target, loads, node_of, shards)
    return node_of, shards[:used], rule.full == 1.0 or loads.held.max() <= loads.capacity


@nb.njit(**INNER)
def _cut_longest(
    tokens: Ints, token: TokenSeconds, rule: Rule, target: float, loads: Loads, node_of: Ints, shards: Table
) -> int:
    """Cuts the first `rule.cut` sequences over nodes with room up to `target`; returns the number of shards.

    One that needs a single node is not cut after all.
    """
    seconds, num, used = loads.seconds, len(loads.seconds), 0
    turn = np.argsort(seconds, kind="mergesort")
    for s in range(rule.cut):
        if not rule.wrap:
            turn = np.argsort(seconds, kind="mergesort")
        work = cut_token(token) * tokens[s] + token.square * tokens[s] * tokens[s]
        if rule.even:
            chosen, share = np.arange(num), np.full(num, work / num)
        else:
            chosen, share = _roomiest(seconds, turn, work, target, rule)
        share += (work - share.sum()) / len(share)
        added = _cut(s, tokens[s], token, chosen, share, rule.front, shards[used:])
        for shard in shards[used : used + added]:
            _add(loads, shard, token)
        if added == 1:
            node_of[s] = shards[used]["node"]
        else:
            used += added
    return used


@nb.njit(**INNER)
def _roomiest(seconds: Floats, turn: Ints, work: float, target: float, rule: Rule) -> tuple[Ints, Floats]:
    """Just enough nodes for `work`, in their turn, and the seconds that each of them takes of it."""
    chosen, share, n, left = np.empty(len(turn), np.int64), np.empty(len(turn)), 0, work
    for node in turn:
        take = min(target - seconds[node], left)
        if take > rule.squeeze * target:
            chosen[n], share[n] = node, take
            n += 1
        left -= max(take, 0.0)
        if left <= 1e-9 * work:
            break
    if n == 0:
        chosen[0], share[0], n = turn[0], work, 1
    chosen, share = chosen[:n], share[:n]
    if rule.full > 1:  # nodes that stay uneven are filled alike: what a node sends is least then
        share = np.maximum(level(seconds[chosen], work) - seconds[chosen], 0.0)
    return chosen, share


@nb.njit(**INNER)
def _add(loads: Loads, shard: Record, token: TokenSeconds) -> None:
    """Adds a shard to its node, one piece after the other."""
    node = shard["node"]
    first = shard["first_stop"] - shard["first_start"]
    second = shard["second_stop"] - shard["second_start"]
    loads.held[node] += first
    loads.seconds[node] += cut_token(token) * first
    loads.seconds[node] += token.square * (shard["first_stop"] ** 2 - shard["first_start"] ** 2)
    loads.held[node] += second
    loads.seconds[node] += cut_token(token) * second
    loads.seconds[node] += token.square * (shard["second_stop"] ** 2 - shard["second_start"] ** 2)


@nb.njit(**ENTERED)
def aligned(tokens: float) -> int:
    """Returns the multiple of the kernel's tile that is nearest: pieces that begin and end on one waste nothing."""
    return int(np.round(tokens / TILE)) * TILE


@nb.njit(**INNER)
def _cut(seq: int, length: int, token: TokenSeconds, chosen: Ints, share: Floats, front: float, shards: Table) -> int:
    """Writes a shard for each of the chosen nodes that gets tokens, whose seconds are `share`; returns how many.

    Front nodes have a stretch each. One of y tokens from x takes square (y^2 + 2 x y) + cut_token y, which is solved
    for y. What is behind the stretches is cut in nested pairs of chunks, one a node: the attention and the tokens of a
    pair are in proportion to its share. The node with most has the innermost pair, which is one piece.
    """
    largest = share.argmax()
    least, at, n = front * share[largest], 0, 0
    for i in range(len(share)):
        if i != largest and share[i] < least:
            half = token.square * at + cut_token(token) / 2
            stop = min(aligned(at + share[i] / (half + np.sqrt(half * half + token.square * share[i]))), length)
            if stop > at:
                _write(shards[n], seq, chosen[i], (at, stop), (0, 0))
                n += 1
            at = stop
    done, total = 0.0, 0.0
    for i in range(len(share)):
        if i == largest or share[i] >= least:
            total += share[i]
    begin, end, left, right = at, length, at, length  # left and right: what the pairs so far leave
    for i in range(len(share)):
        if i == largest or share[i] < least:
            continue
        done += share[i]
        size = done / total * (end - begin) / 2
        to = max(min(aligned(begin + size), begin + (end - begin) // 2), left)
        down = min(max(aligned(end - size), to), right)
        if to > left:
            _write(shards[n], seq, chosen[i], (left, to), (down, right))
            n += 1
        elif right > down:
            _write(shards[n], seq, chosen[i], (down, right), (0, 0))
            n += 1
        left, right = to, down
    if right > left:
        _write(shards[n], seq, chosen[largest], (left, right), (0, 0))
        n += 1
    return n


@nb.njit(**INNER)
def _write(shard: Record, seq: int, node: int, first: tuple[int, int], second: tuple[int, int]) -> None:
    shard["seq"], shard["node"] = seq, node
    shard["first_start"], shard["first_stop"] = first
    shard["second_start"], shard["second_stop"] = second


@nb.njit(**INNER)
def _tell_apart(ranked: Sequences, nodes: Nodes, group_of: Ints, joints: Table, wide: int) -> tuple[Ints, Table, bool]:
    """Makes places on nodes of places on groups of `wide` nodes; returns what `place` does.

    Nodes of a group share evenly what is cut over groups. What else a group has is placed on its nodes; what is longer
    than a node has room for is cut over them.
    """
    groups = max(group_of.max() if len(group_of) else 0, joints["node"].max() if len(joints) else 0) + 1
    node_of, used = np.full(len(group_of), -1, np.int64), len(joints) * wide
    shards = np.zeros(used + groups * wide * wide, SHARD)
    for r in range(len(joints)):
        shards[r * wide : (r + 1) * wide] = divide(joints[r], np.ones(wide))
    for g in range(groups):
        mine = np.flatnonzero(group_of == g)
        own = Sequences(ranked.tokens[mine], ranked.attention[mine])
        found, inner, fits = _fill_group(own, nodes, joints[joints["node"] == g], wide)
        if not fits:
            return node_of, shards[:0], False
        for i in range(len(mine)):
            node_of[mine[i]] = found[i] + g * wide if found[i] >= 0 else -1
        for shard in inner:
            shards[used] = shard
            shards[used]["seq"], shards[used]["node"] = mine[shard["seq"]], shard["node"] + g * wide
            used += 1
    return node_of, shards[:used], True


@nb.njit(**INNER)
def _fill_group(own: Sequences, nodes: Nodes, joints: Table, wide: int) -> tuple[Ints, Table, bool]:
    """Places a group's own sequences on its nodes, which have its joint shards already; returns what `place` does."""
    token, tokens, base, size = nodes.token, own.tokens, 0.0, 0
    for joint in joints:
        size += shard_tokens(joint)
        base += (token.square * shard_squares(joint) + cut_token(token) * shard_tokens(joint)) / wide
    mean, cut = base, 0
    for s in range(len(tokens)):
        mean += (own.attention[s] + token.linear * tokens[s]) / wide
    while cut < len(tokens) and own.attention[cut] + token.linear * tokens[cut] > mean - base + OVER * mean:
        cut += 1
    loads = Loads(np.full(wide, base), np.full(wide, size / wide), nodes.capacity)
    found: tuple[Ints, Table, bool] = _fill(own, token, Rule(cut, False, False, 0.0, SQUEEZE, False, 1, 1.0), loads)
    return found
