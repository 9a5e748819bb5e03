"""The rules that a plan follows for its cluster and model: ranks, heads and lanes are theirs.

A rank, a head or a lane that the plan names and the cluster has not would be charged to somebody else, or to nobody:
an operation routed over no lane is never sent. A kv head that several query heads share comes to a rank once, whichever
of them a transfer names.
"""

from collections.abc import Iterator

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.model import KV
from zbench.describe.units import with_noun
from zbench.plans.plan import TRANSFER, Plan


def cluster_fault(plan: Plan, cost: Cost | None) -> str:
    """Returns the first rule that the plan breaks, "" if none; without a cost model only of those that need none."""
    return next(_faults(plan, cost), "")


def _faults(plan: Plan, cost: Cost | None) -> Iterator[str]:
    if cost is not None:
        if plan.num_ranks != cost.cluster.num_ranks:
            name, ranks = cost.cluster.name, cost.cluster.num_ranks
            yield f"plan.num_ranks is {plan.num_ranks}; the cluster {name} has {with_noun(ranks, cost.owner)}"
        if plan.num_heads != cost.model.num_heads:
            heads = with_noun(cost.model.num_heads, "head")
            yield f"plan.num_heads is {plan.num_heads}; the model {cost.model.name} has {heads}"
        if plan.pipelines is not None and not cost.pipelines:
            yield "plan.pipelines has groups of ranks; what runs this plan takes plans without them, which is None"
    yield from _lane_faults(plan, cost)
    if cost is not None:
        yield from _route_faults(plan, cost)
        yield from _kv_head_faults(plan, cost.model.num_heads // cost.model.num_kv_heads)


def _lane_faults(plan: Plan, cost: Cost | None) -> Iterator[str]:
    lanes = plan.lanes
    if (lanes.lengths < 1).any():
        yield f"plan.lanes has nothing in list {int(np.argmin(lanes.lengths))}; a list has at least one lane"
    nics = None if cost is None else cost.cluster.nics_per_node
    outside = (lanes.items < 0) if nics is None else (lanes.items < 0) | (lanes.items >= nics)
    if outside.any():
        at = int(np.argmax(outside))
        right = "lanes are numbered from 0" if nics is None else f"the NICs of a node are 0 to {nics - 1}"
        yield f"plan.lanes.items[{at}] is {lanes.items[at]}; {right}"
    row = np.repeat(np.arange(len(lanes)), lanes.lengths)
    order = np.lexsort((lanes.items, row))
    row, items = row[order], lanes.items[order]
    twice = (row[1:] == row[:-1]) & (items[1:] == items[:-1])
    if twice.any():
        at = int(np.argmax(twice))
        yield f"plan.lanes has lane {items[at]} twice in list {row[at]}; the lanes of a list are different ones"


def _route_faults(plan: Plan, cost: Cost) -> Iterator[str]:
    node = cost.cluster.node_of
    for name, ops in (("forward", plan.forward), ("backward", plan.backward)):
        routed = np.flatnonzero(ops.via >= 0)
        inside = routed[node[ops.src[routed]] == node[ops.dst[routed]]]
        if len(inside):
            at = int(inside[0])
            yield (
                f"{name} operation {at} on rank {ops.src[at]}: via is {ops.via[at]}; a transfer to rank {ops.dst[at]} "
                "stays in its node and takes -1"
            )


def _kv_head_faults(plan: Plan, group: int) -> Iterator[str]:
    """Yields what a kv head's second arrival at a rank breaks, the first one of each list of operations. group: query
    heads to a kv head. Of transfers that cut none, and of those of one range of heads to a rank, which share none,
    blocks are not looked at."""
    for name, ops in (("forward", plan.forward), ("backward", plan.backward)):
        keys = np.flatnonzero((ops.kind == TRANSFER) & (ops.tensor == KV))
        low, high = ops.head_lo, ops.head_hi
        cut = [keys[end[keys] % group > 0] for end in (low, high)]
        at = np.concatenate(cut)
        if not len(at):
            continue
        head = np.concatenate([end[rows] // group for end, rows in zip((low, high), cut, strict=True)])
        order = np.lexsort((at, head, ops.dst[at]))
        at, head = at[order], head[order]
        begin = np.flatnonzero(np.diff(ops.dst[at], prepend=-1) | np.diff(head, prepend=-1))
        ranges = [(np.minimum.reduceat(end, begin), np.maximum.reduceat(end, begin)) for end in (low[at], high[at])]
        differ = np.flatnonzero(np.any([least < most for least, most in ranges], axis=0))
        for first, stop in zip(begin[differ].tolist(), np.append(begin, len(at))[differ + 1].tolist(), strict=True):
            there: dict[int, int] = {}
            for one in at[first:stop].tolist():
                for block in plan.lists[int(ops.blocks[one])].tolist():
                    if there.setdefault(block, one) != one:
                        query = int(head[first]) * group
                        yield (
                            f"{name} operation {one} ({plan.view(ops, one)}) brings kv of block {block} to rank "
                            f"{ops.dst[one]}, which has the kv head of query heads {query} to {query + group - 1} "
                            f"already, from operation {there[block]}; one transfer brings all of a kv head"
                        )
                        return
