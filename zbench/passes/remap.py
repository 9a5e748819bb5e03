"""Remapping: give every rank the same number of tokens for the linear modules.

A plan made for balanced attention leaves some ranks with more tokens than others. This moves the
homes of surplus tokens to ranks with a deficit; their q and kv travel to the rank that attends with
them, and o travels back (Zeppelin, arXiv 2509.21841, remapping layer; that hidden states could move
instead is no cheaper except by 1-2 % on batches whose moves cross nodes).

What is minimised is the largest weighted volume any rank sends or receives, a token across nodes
weighing more than one inside. That has a closed form, no solver: inside a node as much as possible
is settled; what a node as a whole has too much (or too little) crosses, and is split over its ranks
so that the largest weighted volume is least. Domains inside a node come before it in the same way.
"""

from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.links import NIC
from zbench.describe.model import KV, O, Q
from zbench.plans.build import without_unused
from zbench.plans.plan import ATTEND, Blocks, Ints, Lists, Ops, Plan


def remap(plan: Plan, cost: Cost, tolerance: int = 128, across: bool = True) -> Plan:
    """Returns `plan` (forward only) with homes balanced to within `tolerance` tokens of the mean; across: of all ranks,
    else of a node's, so that nothing moves between nodes.

    Moving a handful of tokens costs more than it gains, hence the tolerance.
    """
    assert not len(plan.backward), "remap comes before reverse"
    source, target, amount = flows(plan.tokens_per_rank, cost, tolerance, across)
    if not len(source):
        return plan
    return _moved(plan, source, target, amount)


def flows(tokens: Ints, cost: Cost, tolerance: int, across: bool = True) -> tuple[Ints, Ints, Ints]:
    """Returns who sends how many tokens to whom: (source, target, amount) int64 [num_flows]; tokens: [num_ranks].
    across: as of `remap`."""
    cluster = cost.cluster
    rows = tokens.reshape(1 if across else -1, len(tokens) if across else cluster.gpus_per_node)
    share, rest = np.divmod(rows.sum(axis=1), rows.shape[1])
    excess = (rows - share[:, None] - (np.arange(rows.shape[1]) < rest[:, None])).reshape(-1)
    if np.abs(excess).max() <= tolerance:
        return (np.zeros(0, np.int64),) * 3
    surplus, deficit = np.maximum(excess, 0), np.maximum(-excess, 0)
    # Ranks are matched in order, so that most of what one gives goes to one other: a message has one channel.
    pairs: list[tuple[Ints, Ints, Ints]] = []
    wider = [*(link for link, _ in cluster.levels[1:]), NIC]
    for (link, gpus), far in zip(cluster.levels, wider, strict=True):
        near, wide = cost.message_seconds(np.full(2, 1e6), np.array([link, far])).tolist()
        more, weight = (surplus - deficit).reshape(-1, gpus).sum(axis=1), min(near / wide, 0.99)
        leaving = _split(surplus, np.maximum(more, 0), gpus, weight)
        entering = _split(deficit, np.maximum(-more, 0), gpus, weight)
        # Inside the domain, or node, both sides sum up to the same, so one running match over all ranks stays inside.
        pairs.insert(0, _match(surplus - leaving, deficit - entering))
        surplus, deficit = leaving, entering
    pairs.insert(0, _match(surplus, deficit))
    source, target, amount = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return source, target, amount


def _split(amounts: Ints, crossing: Ints, per_node: int, inside_weight: float) -> Ints:
    """Returns how much of each rank's `amounts` crosses nodes, `crossing` [num_nodes] in all from each node.

    Rank r's weighted volume is w (a_r - x_r) + x_r with w < 1; the largest is least when x_r is
    (T - w a_r) / (1 - w), clipped to [0, a_r], for the T at which they sum up to `crossing`.
    """
    rows = amounts.reshape(-1, per_node).astype(np.float64)

    def share(level: np.ndarray) -> np.ndarray:  # [nodes, levels] -> [nodes, levels, per_node]
        return np.clip((level[..., None] - inside_weight * rows[:, None]) / (1 - inside_weight), 0, rows[:, None])

    # The sum over ranks is linear in T between the T at which a rank starts or ends to send across.
    levels = np.sort(np.concatenate([inside_weight * rows, rows], axis=1), axis=1)
    sums = share(levels).sum(axis=2)
    nodes = np.arange(len(rows))
    after = np.minimum((sums < crossing[:, None]).sum(axis=1), levels.shape[1] - 1)
    before = np.maximum(after - 1, 0)
    low, high = sums[nodes, before], sums[nodes, after]
    part = np.where(high > low, (crossing - low) / np.where(high > low, high - low, 1.0), 0.0)
    level = levels[nodes, before] + np.clip(part, 0, 1) * (levels[nodes, after] - levels[nodes, before])
    whole = np.floor(share(level[:, None])[:, 0] + 1e-9).astype(np.int64)
    missing = crossing - whole.sum(axis=1)  # what rounding lost
    room = amounts.reshape(-1, per_node) - whole
    for step in (1, -1):
        left = np.maximum(step * missing, 0)
        can = room if step > 0 else whole
        before = np.cumsum(can, axis=1) - can
        change = np.clip(left[:, None] - before, 0, can)
        whole = whole + step * change
        room = room - step * change
    return whole.reshape(-1)


def _match(give: Ints, take: Ints) -> tuple[Ints, Ints, Ints]:
    """Pairs givers and takers in rank order (northwest corner): at most one flow more than there are ranks."""
    edges = np.unique(np.concatenate([[0], np.cumsum(give), np.cumsum(take)]))
    left = edges[:-1]
    source = np.searchsorted(np.cumsum(give), left, side="right")
    target = np.searchsorted(np.cumsum(take), left, side="right")
    return source, target, np.diff(edges)


def _moved(plan: Plan, source: Ints, target: Ints, amount: Ints) -> Plan:
    """Cuts blocks so that every flow takes whole ones, and adds their transfers.

    A rank gives from the end of its blocks: patterns laid last (local sequences) are attended last,
    so their q and kv have the most time to travel.
    """
    blocks = plan.blocks
    piece = np.lexsort((np.arange(len(blocks.block)), blocks.block, blocks.home[blocks.block]))
    home = blocks.home[blocks.block][piece]
    size = (blocks.stop - blocks.start)[piece]
    ends = np.cumsum(size)
    rank_end = np.cumsum(plan.tokens_per_rank)
    flow = np.argsort(source, kind="stable")
    source, target, amount = source[flow], target[flow], amount[flow]
    given = np.cumsum(amount)
    last_of_source = given[np.searchsorted(source, source, side="right") - 1]
    flow_end = rank_end[source] - (last_of_source - given)
    flow_begin = flow_end - amount
    edges = np.unique(np.concatenate([[0], ends, flow_begin, flow_end]))
    left, right = edges[:-1], edges[1:]
    at = np.searchsorted(ends, left, side="right")
    in_flow = np.searchsorted(flow_begin, left, side="right") - 1
    moved = (in_flow >= 0) & (left < flow_end[np.maximum(in_flow, 0)])
    in_flow = np.where(moved, in_flow, -1)
    new_home = np.where(moved, target[np.maximum(in_flow, 0)], home[at])
    old = blocks.block[piece[at]]
    child, new_block = np.unique(old * (len(source) + 1) + in_flow + 1, return_inverse=True)
    homes = np.empty(len(child), np.int64)
    homes[new_block] = new_home
    begin = blocks.start[piece[at]] + left - (ends[at] - size[at])
    seq = blocks.seq[piece[at]]
    order = np.lexsort((begin, seq))
    cut = Blocks(seq[order], begin[order], (begin + right - left)[order], new_block[order], homes)
    child_old, child_flow = child // (len(source) + 1), child % (len(source) + 1) - 1
    lists = _expanded(plan.lists, child_old, len(blocks))
    done_lo, done_hi = _done_at_home(plan.forward, lists, homes)
    given = np.flatnonzero(child_flow >= 0)
    kinds, which = np.unique(np.stack([child_flow, done_lo, done_hi])[:, given], axis=1, return_inverse=True)
    lists, names = _with_lists(lists, [given[which == index] for index in range(kinds.shape[1])])
    lists, rest = _without_returns(plan.forward, lists, homes, plan.num_ranks)
    flow, done_lo, done_hi = kinds
    parts = []  # the heads before and after those that the new home attends to itself: usually none, so all
    for lo, hi in ((np.zeros_like(flow), done_lo), (done_hi, np.full_like(flow, plan.num_heads))):
        some = hi > lo
        parts.append((source[flow][some], target[flow][some], (lo[some], hi[some]), names[some]))
    out = [Ops.transfers(tensor, there, here, heads, name) for tensor in (KV, Q) for here, there, heads, name in parts]
    back = [Ops.transfers(O, here, there, heads, name) for here, there, heads, name in parts]
    return replace(plan, blocks=cut, lists=lists, forward=Ops.concatenate([*out, rest, *back]))


def _expanded(lists: Lists, child_old: Ints, num_old: int) -> Lists:
    """Lists of old blocks as lists of their children (child ids ascend with their old block)."""
    count = np.bincount(child_old, minlength=num_old)
    first = np.cumsum(count) - count
    per_item = count[lists.items]
    total = np.concatenate([[0], np.cumsum(per_item)])
    items = np.repeat(first[lists.items] - total[:-1], per_item) + np.arange(total[-1])
    return Lists(total[lists.offsets], items)


def _touching(ops: Ops, lists: Lists) -> tuple[Ints, Ints]:
    """Returns (operation, block) for every block that an operation moves, or attends with."""
    counts = lists.lengths[ops.blocks]
    op = np.repeat(np.arange(len(ops)), counts)
    begin = np.repeat(lists.offsets[ops.blocks] - (np.cumsum(counts) - counts), counts)
    return op, lists.items[begin + np.arange(len(op))]


def _done_at_home(ops: Ops, lists: Lists, home: Ints) -> tuple[Ints, Ints]:
    """Returns per block the heads [lo, hi) of o that were sent from the rank that is now its home; 0:0 where none
    were."""
    op, block = _touching(ops, lists)
    here = (ops.tensor[op] == O) & (ops.src[op] == home[block])
    lo, hi = np.zeros(len(home), np.int64), np.zeros(len(home), np.int64)
    lo[block[here]], hi[block[here]] = ops.head_lo[op[here]], ops.head_hi[op[here]]
    return lo, hi


def _without_returns(ops: Ops, lists: Lists, home: Ints, num_ranks: int) -> tuple[Lists, Ops]:
    """Drops from transfers the blocks that moved to where a copy is sent, or an output sent from: at home there now."""
    end = np.where(ops.kind == ATTEND, -1, np.where(ops.tensor == O, ops.src, ops.dst))
    op, block = _touching(ops, lists)
    returns = np.unique(op[home[block] == end[op]])
    if not len(returns):
        return lists, ops
    distinct, which = np.unique(ops.blocks[returns].astype(np.int64) * num_ranks + end[returns], return_inverse=True)
    whole = [(lists[int(key) // num_ranks], int(key) % num_ranks) for key in distinct]
    left = [row[home[row] != rank] for row, rank in whole]
    filled = np.array([len(row) > 0 for row in left])
    lists, names = _with_lists(lists, [row for row in left if len(row)])
    name = np.full(len(distinct), -1, np.int64)
    name[filled] = names
    blocks = ops.blocks.copy()
    blocks[returns] = name[which]
    return lists, without_unused(replace(ops, blocks=blocks).take(blocks >= 0), lists, num_ranks, len(home))


def _with_lists(lists: Lists, rows: list[Ints]) -> tuple[Lists, Ints]:
    """Returns `lists` with `rows` appended, and the new lists' indices."""
    extra = Lists.of(rows)
    offsets = np.concatenate([lists.offsets, lists.offsets[-1] + extra.offsets[1:]])
    names = len(lists) + np.arange(len(rows), dtype=np.int64)
    return Lists(offsets, np.concatenate([lists.items, extra.items])), names
