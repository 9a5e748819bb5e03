"""Moves cuts, and whole sequences, so that nodes take equally long, by what a played plan took.

This is the evening of step 4 of docs/planner.md. What estimates leave out (whole tiles, joins, starts) makes nodes
differ by some per cent, and cuts can be anywhere. Tokens and attention of a shard are two numbers, and so are the sizes
of its two pieces, one from either end of what is left of the sequence: both can be had, as long as neither piece would
be less than nothing.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints
from zbench.systems.nodewise.fill import aligned
from zbench.systems.nodewise.loads import cut_token, held_tokens
from zbench.systems.nodewise.placements import Placement, placement
from zbench.systems.nodewise.records import SHARD, Loads, Nodes, Sequences, Table, TokenSeconds
from zbench.systems.nodewise.shards import divide, join, joint_bounds, shard_squares, shard_tokens

EVEN = 0.003  # of the mean: nodes that differ by less are left as they are (a choice)
LEAST = 0.02  # of a sequence's work: a shard that would have less is left as it is


def even_out(
    placed: Placement, sequences: Sequences, nodes: Nodes, busy: Floats, alike: bool, swaps: bool
) -> Placement | None:
    """Moves the cuts of every cut sequence and then, with `swaps`, whole sequences; None where nothing is moved, or
    where memory would not do.

    busy: seconds of a GPU of every node, [nodes]. Nodes of a sequence get the same sum. alike: shards keep the
    proportion of their two pieces; otherwise nodes get half of what would make their tokens equal, too, as ranks meet
    between forward and backward, which may cut a sequence in quite another way.
    """
    shards, node_of, tokens = placed.shards.copy(), placed.node_of.copy(), sequences.tokens
    held = held_tokens(tokens, node_of, shards, nodes.num_nodes)
    loads = Loads(nodes.num_ranks * busy, held, nodes.capacity)
    most = max(nodes.capacity, held.max())
    bounds = joint_bounds(shards, placed.rule.wide)
    joints = join(shards, bounds)
    for seq in np.unique(joints["seq"]):
        mine = np.flatnonzero(joints["seq"] == seq)
        begin, stop = bounds[mine[0]], bounds[mine[-1] + 1]
        groups = shards["node"][begin:stop].reshape(len(mine), -1)
        moved = _moved(joints[mine], groups, loads, nodes.token, alike)
        if moved is not None:
            shards[begin:stop] = np.concatenate([divide(joint, np.ones(groups.shape[1])) for joint in moved])
    if swaps:
        swap(tokens, sequences.work(nodes.token.linear), node_of, loads)
    found = placement(placed.rule, node_of, shards, sequences, nodes)
    if held_tokens(tokens, node_of, found.shards, nodes.num_nodes).max() > most:
        return None
    same = np.array_equal(found.shards, placed.shards) and np.array_equal(node_of, placed.node_of)
    return None if same else found


def _moved(joints: Table, groups: Ints, loads: Loads, token: TokenSeconds, alike: bool) -> Table | None:
    """One sequence's joint shards with their cuts moved, or None; what they add to nodes is added to `loads`.

    groups: int64 [joints, wide], the nodes of each.
    """
    each, tokens, count = cut_token(token), shard_tokens(joints), groups.shape[1]
    seconds, held = loads.seconds[groups].sum(axis=1), loads.held[groups].sum(axis=1)
    work = each * tokens + token.square * shard_squares(joints)
    wanted = work + seconds.mean() - seconds
    if wanted.min() <= LEAST * work.sum():
        return None
    kept = None if alike else np.maximum(tokens + 0.5 * (held.mean() - held), 0.0)
    new = _recut(joints, wanted, kept, each, token.square)
    if new is None:
        return None
    more = shard_tokens(new) - tokens
    added = each * more + token.square * (shard_squares(new) - shard_squares(joints))
    loads.seconds[groups] += added[:, None] / count
    loads.held[groups] += more[:, None] / count
    return new


def _recut(old: Table, wanted: Floats, tokens: Floats | None, each: float, square: float) -> Table | None:
    """The shards of one sequence with `wanted` seconds and, where that can be, so many tokens each; the last has the
    rest. Without `tokens`, with pieces in the proportion that they have.

    None where a shard would be left without a tile.
    """
    left = int(old["first_start"].min())
    right = int(max(old["first_stop"].max(), old["second_stop"].max()))  # the first shard may be at the end only
    out = []
    begin = left  # of what was left of the sequence
    for i, (seq, node, first_start, first_stop, second_start, second_stop) in enumerate(old[:-1].tolist()):
        seconds = float(wanted[i])
        if tokens is None:
            ahead = first_stop - first_start if first_start == begin else 0
            begin += ahead
            behind = first_stop - first_start + second_stop - second_start - ahead
            front, back = _in_proportion((ahead, behind), (left, right), seconds, each, square)
        else:
            front, back = _with_tokens((left, right), seconds, float(tokens[i]), each, square)
        to = min(left + aligned(front), right)
        down = max(right - aligned(back), to)
        pieces = [piece for piece in ((left, to), (down, right)) if piece[1] > piece[0]]
        if not pieces:
            return None
        out.append((seq, node, *pieces[0], *(pieces[1] if len(pieces) > 1 else (0, 0))))
        left, right = to, down
    if right <= left:
        return None
    return np.array([*out, (old[-1]["seq"], old[-1]["node"], left, right, 0, 0)], SHARD)


def _in_proportion(
    pieces: tuple[int, int], ends: tuple[int, int], seconds: float, each: float, square: float
) -> tuple[float, float]:
    """Tokens from either end that have `seconds`: as many times those of the two pieces, a quadratic equation."""
    (front, back), (left, right) = pieces, ends
    twice = square * (front**2 - back**2)
    once = each * (front + back) + 2 * square * (left * front + right * back)
    times = 2 * seconds / (once + float(np.sqrt(max(once**2 + 4 * twice * seconds, 0.0))))
    return times * front, times * back


def _with_tokens(
    ends: tuple[int, int], seconds: float, tokens: float, each: float, square: float
) -> tuple[float, float]:
    """Tokens from the left end and from the right one, which have `seconds` and, if neither is below 0, `tokens`.

    f from the left and g from the right see f^2 + 2 f left and 2 g right - g^2 pairs twice; with f + g given the
    squares cancel. Otherwise one end has all of it.
    """
    left, right = ends
    pairs = max(seconds - each * tokens, 0.0) / square
    front = (
        (pairs - 2 * right * tokens + tokens**2) / (2 * (left - right + tokens)) if tokens < right - left else tokens
    )
    if 0 <= front <= tokens:
        return front, tokens - front
    if front > tokens:
        half = square * left + each / 2
        return seconds / (half + float(np.sqrt(half * half + square * seconds))), 0.0
    half = square * right + each / 2
    return 0.0, (half - float(np.sqrt(max(half * half - square * seconds, 0.0)))) / square


@nb.njit(**ENTERED)
def swap(tokens: Ints, work: Floats, node_of: Ints, loads: Loads) -> bool:
    """Moves whole sequences, or has two change places, and returns whether anything was moved.

    Every move is from the node with most work to the node with which both are left with least; it ends where nothing
    helps. tokens, work: [n], of every sequence. `node_of` ([n], the node of each, or -1) and `loads` are changed.
    """
    load, held, count, changed = loads.seconds, loads.held, len(loads.seconds), False
    for _ in range(4 * count):
        high = load.argmax()
        if load[high] <= (1 + EVEN) * load.mean():
            break
        least, give, take, to = load[high] * (1 - EVEN), -1, -1, -1
        for i in range(len(node_of)):
            if node_of[i] != high:
                continue
            for j in range(-count, len(node_of)):  # below zero: move i to node j + count, and take nothing from it
                low = j + count if j < 0 else node_of[j]
                if low < 0 or low == high or load[low] > least:
                    continue
                moved, size = work[i] - (work[j] if j >= 0 else 0.0), tokens[i] - (tokens[j] if j >= 0 else 0)
                most = max(load[high] - moved, load[low] + moved)
                if most < least and held[low] + size <= loads.capacity and held[high] - size <= loads.capacity:
                    least, give, take, to = most, i, j, low
        if give < 0:
            break
        for s, old, new in ((give, high, to), (take, to, high)):
            if s >= 0:
                node_of[s] = new
                load[old] -= work[s]
                load[new] += work[s]
                held[old] -= tokens[s]
                held[new] += tokens[s]
        changed = True
    return changed
