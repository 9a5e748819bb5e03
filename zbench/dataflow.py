"""Who makes what an operation uses: the data edges of a list of operations. Pure: no torch.

An item is (tensor, block, rank). Copies (q, kv, do) are there from the start on the block's home
and come elsewhere by transfer; sums (o, dq, dkv) collect what attends and arrivals add, and a
transfer takes all that has been added so far. Every rule about operations and data is here: the
verifier reports the first one broken, the simulator and the list scheduler wait along the edges,
and the memory account follows the items.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.model import TENSOR_NAMES
from zbench.plan import Column, Ops, Plan
from zbench.touches import ACTION, ADD, HI, IS_COPY, LO, PLACE, READ, TAKE, WRITE, scratch, source, touches

_OK, _MISSING, _TWICE, _NOTHING, _SPLIT, _LEFT = range(6)


@dataclass(frozen=True)
class Fault:
    """The first rule an operation breaks: what, at which operation (-1: before any), block and rank."""

    reason: str
    op: int
    block: int
    rank: int


@dataclass(frozen=True)
class Edges:
    """producer[i] has to be complete before consumer[i] starts; both int32 [num_edges], operation indices."""

    producer: Column
    consumer: Column


def edges(plan: Plan, ops: Ops, backward: bool) -> Edges | Fault:
    """The data edges of `ops`, or the first rule they break: of the first item by tensor, block and rank."""
    room = 2 * len(ops) + 16
    found = _followed(plan, ops, backward, room)
    return found if isinstance(found, Fault) else Edges(*found)


def fault(plan: Plan, ops: Ops, backward: bool) -> Fault | None:
    """The first rule that `ops` break, without the edges."""
    found = _followed(plan, ops, backward, 0)
    return found if isinstance(found, Fault) else None


def _followed(plan: Plan, ops: Ops, backward: bool, room: int) -> tuple[Column, Column] | Fault:
    of = source(plan, ops, backward)
    work = scratch(of, len(plan.blocks))
    first, producer, consumer = _follow(of, work, plan.blocks.home, room)
    return (producer, consumer) if first[0] == _OK else _fault(plan, *first.tolist())


def _fault(plan: Plan, code: int, tensor: int, block: int, rank: int, op: int) -> Fault:
    home, what = int(plan.blocks.home[block]), f"{TENSOR_NAMES[tensor]} of block {block}"
    reason = {
        _MISSING: f"uses {what} on rank {rank} before an earlier operation brought it there",
        _TWICE: f"brings {what} to rank {rank}, which has it already",
        _NOTHING: f"sends {what} from rank {rank}, where nothing was added to it for all of these heads",
        _SPLIT: f"sends {what} from rank {rank} for heads that cut through an earlier contribution",
        _LEFT: f"adds to {what} on rank {rank}, and nothing sends that home to rank {home}",
    }[code]
    return Fault(reason, op, block, rank)


@nb.njit(cache=True)
def _follow(of, work, home, room):  # type: ignore[no-untyped-def]
    """Every rank's items: (the first fault, producers, consumers); no edges where there is room for none.

    A fault is (code, tensor, block, rank, operation).
    """
    offsets, index = of[3]
    _, grouped, runs, keys, _ = work
    producer, consumer = np.empty(room, np.int32), np.empty(room, np.int32)
    taken = np.empty(grouped.shape[1], np.bool_)
    first, count = np.array([_OK, 0, 0, 0, -1]), 0
    for rank in range(len(offsets) - 1):
        num, items = touches(rank, of, work, len(home))
        mine = index[offsets[rank] : offsets[rank + 1]]
        taken[:num] = False
        for item in range(items):
            tensor, block = keys[item] // len(home), keys[item] % len(home)
            if first[0] != _OK and (tensor, block, rank) > (first[1], first[2], first[3]):
                continue
            begin, end, what = runs[item], runs[item + 1], (IS_COPY[tensor], home[block] == rank)
            code, at, after = _match(grouped, begin, end, what, taken, mine, producer, consumer, count)
            while room and after > len(producer):
                producer, consumer = _grown(producer), _grown(consumer)
                taken[begin:end] = False
                code, at, after = _match(grouped, begin, end, what, taken, mine, producer, consumer, count)
            count = after
            if code != _OK:
                place = grouped[PLACE, at]
                first[:] = (code, tensor, block, rank, mine[place] if place >= 0 else -1)
    return first, producer[:count], consumer[:count]


@nb.njit(cache=True)
def _grown(column):  # type: ignore[no-untyped-def]
    larger = np.empty(2 * len(column), np.int32)
    larger[: len(column)] = column
    return larger


@nb.njit(cache=True)
def _match(table, begin, end, what, taken, mine, producer, consumer, count):  # type: ignore[no-untyped-def]
    """Walks an item's touches in order; returns (fault, touch, number of edges so far), and writes edges where there is
    room. what: whether a copy, whether at home."""
    is_copy, is_home = what
    place, action, lo, hi = table[PLACE], table[ACTION], table[LO], table[HI]
    for at in range(begin, end):
        if action[at] == READ and not is_home:
            reach = lo[at]
            while reach < hi[at]:  # the head range may have come in several transfers
                found = -1
                for earlier in range(begin, at):
                    if action[earlier] == WRITE and lo[earlier] <= reach < hi[earlier]:
                        found = earlier
                if found < 0:
                    return _MISSING, at, count
                reach = hi[found]
                if place[found] >= 0:
                    if count < len(producer):
                        producer[count], consumer[count] = mine[place[found]], mine[place[at]]
                    count += 1
        elif action[at] == WRITE:
            if is_home:
                return _TWICE, at, count
            for earlier in range(begin, at):
                if action[earlier] == WRITE and lo[earlier] < hi[at] and lo[at] < hi[earlier]:
                    return _TWICE, at, count
        elif action[at] == TAKE:
            reach = lo[at]
            while reach < hi[at]:
                further = reach
                for earlier in range(begin, at):
                    if action[earlier] == ADD and not taken[earlier] and lo[earlier] <= reach:
                        further = max(further, hi[earlier])
                if further == reach:
                    return _NOTHING, at, count
                reach = further
            for earlier in range(begin, at):
                if action[earlier] == ADD and not taken[earlier] and lo[earlier] < hi[at] and lo[at] < hi[earlier]:
                    if lo[earlier] < lo[at] or hi[earlier] > hi[at]:
                        return _SPLIT, at, count
                    taken[earlier] = True
                    if count < len(producer):
                        producer[count], consumer[count] = mine[place[earlier]], mine[place[at]]
                    count += 1
    if not is_copy and not is_home:
        for at in range(begin, end):
            if action[at] == ADD and not taken[at]:
                return _LEFT, at, count
    return _OK, 0, count
