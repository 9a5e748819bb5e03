"""The data edges of a list of operations: who makes what an operation uses.

An item is (tensor, block, rank). Copies (q, kv, do) are there from the start on the block's home
and come elsewhere by transfer; sums (o, dq, dkv) collect what attends and arrivals add, and a
transfer takes all that has been added so far. Every rule about operations and data is here: the
verifier reports the first one broken, the simulator and the list scheduler wait along the edges,
and the memory account follows the items.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Flags
from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.model import TENSOR_NAMES
from zbench.plans.plan import Column, Ints, Ops, Plan
from zbench.plans.touches import ACTION, ADD, HI, IS_COPY, LO, PLACE, READ, TAKE, WRITE, scratch, source, touches

_OK, _MISSING, _TWICE, _NOTHING, _SPLIT, _LEFT = range(6)


@dataclass(frozen=True)
class Violation:
    """A rule that an operation breaks first: what, at which operation (-1: before any), block and rank."""

    reason: str
    op: int
    block: int
    rank: int


@dataclass(frozen=True)
class Edges:
    """The data edges of a list: producer[i] has to be complete before consumer[i] starts; both int32 [num_edges],
    operation indices."""

    producer: Column
    consumer: Column


def edges(plan: Plan, ops: Ops, backward: bool) -> Edges | Violation:
    """Returns the data edges of `ops`, or the first rule they break: of the first item by tensor, block and rank."""
    room = 2 * len(ops) + 16
    found = _followed(plan, ops, backward, room)
    return found if isinstance(found, Violation) else Edges(*found)


def first_violation(plan: Plan, ops: Ops, backward: bool) -> Violation | None:
    """Returns the first rule that `ops` break, without the edges."""
    found = _followed(plan, ops, backward, 0)
    return found if isinstance(found, Violation) else None


def _followed(plan: Plan, ops: Ops, backward: bool, room: int) -> tuple[Column, Column] | Violation:
    of = source(plan, ops, backward)
    work = scratch(of, len(plan.blocks))
    first, producer, consumer = _follow(of, work, plan.blocks.home, room)
    return (producer, consumer) if first[0] == _OK else _fault(plan, *first.tolist())


def _fault(plan: Plan, code: int, tensor: int, block: int, rank: int, op: int) -> Violation:
    home, what = int(plan.blocks.home[block]), f"{TENSOR_NAMES[tensor]} of block {block}"
    reason = {
        _MISSING: f"uses {what} on rank {rank}, which no earlier operation brought there",
        _TWICE: f"brings {what} to rank {rank}, which has it already",
        _NOTHING: f"sends {what} from rank {rank}, where nothing was added to it for all of these heads",
        _SPLIT: f"sends {what} from rank {rank} for heads that cut through an earlier contribution",
        _LEFT: f"adds to {what} on rank {rank}, and nothing sends that home to rank {home}",
    }[code]
    return Violation(reason, op, block, rank)


class _Items(NamedTuple):
    """One rank's items and their touches (zbench.plans.touches.scratch); taken: [num touches], of sums that left."""

    table: NDArray[np.int32]
    order: NDArray[np.int32]
    runs: NDArray[np.int32]
    keys: Ints
    taken: Flags


@nb.njit(**ENTERED)
def _follow(of, work, home, room):  # type: ignore[no-untyped-def]
    """Follows every rank's items: returns (the first fault, producers, consumers); no edges where there is room for
    none.

    A fault is (code, tensor, block, rank, operation).
    """
    offsets, index = of[3]
    table, order, runs, keys, _ = work
    producer, consumer = np.empty(room, np.int32), np.empty(room, np.int32)
    items_of = _Items(table, order, runs, keys, np.empty(len(order), np.bool_))
    first, count = np.array([_OK, 0, 0, 0, -1]), 0
    for rank in range(len(offsets) - 1):
        num, items = touches(rank, of, work, home)
        mine = index[offsets[rank] : offsets[rank + 1]]
        while True:
            items_of.taken[:num] = False
            after = _match(rank, items, items_of, home, mine, (producer, consumer), count, first)
            if not room or after <= len(producer):
                break
            producer, consumer = _grown(producer), _grown(consumer)
        count = after
    return first, producer[:count], consumer[:count]


@nb.njit(**INNER)
def _grown(column):  # type: ignore[no-untyped-def]
    larger = np.empty(2 * len(column), np.int32)
    larger[: len(column)] = column
    return larger


@nb.njit(**INNER)
def _match(rank, items, items_of, home, mine, found_edges, count, first):  # type: ignore[no-untyped-def]
    """Walks one rank's items, touch by touch; returns the number of edges so far, and writes them where there is room.

    mine: the rank's operations. found_edges: (producers, consumers). first: the first fault of all, which is replaced
    by one of an item before its own.
    """
    table, order, runs, keys, taken = items_of
    producer, consumer = found_edges
    for item in range(items):
        tensor, block = keys[item] // len(home), keys[item] % len(home)
        begin, end, is_home = runs[item], runs[item + 1], home[block] == rank
        code, fault_at, open_sums = _OK, -1, not IS_COPY[tensor] and not is_home
        for turn in range(begin, end):
            at = order[turn]
            action, lo, hi = table[at, ACTION], table[at, LO], table[at, HI]
            if action == READ:
                reach = lo
                while reach < hi and code == _OK:  # the head range may have come in several transfers
                    found = -1
                    for before in range(begin, turn):
                        other = order[before]
                        if table[other, ACTION] == WRITE and table[other, LO] <= reach < table[other, HI]:
                            found = other
                    if found < 0:
                        code = _MISSING
                        break
                    reach = table[found, HI]
                    if table[found, PLACE] >= 0:
                        if count < len(producer):
                            producer[count], consumer[count] = mine[table[found, PLACE]], mine[table[at, PLACE]]
                        count += 1
            elif action == WRITE:
                code = _TWICE if is_home or _overlaps(table, order, begin, turn) else _OK
            elif action == TAKE:
                code, count = _take(items_of, begin, turn, mine, found_edges, count)
            if code != _OK:
                fault_at = at
                break
        if code == _OK and open_sums:
            for turn in range(begin, end):
                if table[order[turn], ACTION] == ADD and not taken[order[turn]]:
                    code, fault_at = _LEFT, order[turn]
                    break
        if code != _OK and (first[0] == _OK or (tensor, block, rank) < (first[1], first[2], first[3])):
            place = table[fault_at, PLACE]
            first[:] = (code, tensor, block, rank, mine[place] if place >= 0 else -1)
    return count


@nb.njit(**INNER)
def _overlaps(table, order, begin, turn):  # type: ignore[no-untyped-def]
    """Returns whether a copy that is there already has some of the heads that arrive."""
    at = order[turn]
    for before in range(begin, turn):
        other = order[before]
        if table[other, ACTION] == WRITE and table[other, LO] < table[at, HI] and table[at, LO] < table[other, HI]:
            return True
    return False


@nb.njit(**INNER)
def _take(items_of, begin, turn, mine, found_edges, count):  # type: ignore[no-untyped-def]
    """Lets a transfer take all of its heads that was added before: returns (fault, number of edges so far)."""
    table, order, taken = items_of.table, items_of.order, items_of.taken
    producer, consumer = found_edges
    at = order[turn]
    lo, hi = table[at, LO], table[at, HI]
    reach = lo
    while reach < hi:
        further = reach
        for before in range(begin, turn):
            other = order[before]
            if table[other, ACTION] == ADD and not taken[other] and table[other, LO] <= reach:
                further = max(further, table[other, HI])
        if further == reach:
            return _NOTHING, count
        reach = further
    for before in range(begin, turn):
        other = order[before]
        first, last = table[other, LO], table[other, HI]
        if table[other, ACTION] == ADD and not taken[other] and first < hi and lo < last:
            if first < lo or last > hi:
                return _SPLIT, count
            taken[other] = True
            if count < len(producer):
                producer[count], consumer[count] = mine[table[other, PLACE]], mine[table[at, PLACE]]
            count += 1
    return _OK, count
