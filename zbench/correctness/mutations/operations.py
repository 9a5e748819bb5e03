"""Mutations of a plan's operations: one column, several, their order, and whole operations. Pure: no torch."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from zbench.correctness.mutations.paths import OPERATIONS, Mutation, array, counts, other, put, put_at
from zbench.cost.cost import Cost
from zbench.plans.plan import ATTEND, COLUMNS, TRANSFER, Ints, Ops, Plan

_OF_TRANSFERS = ("tensor", "dst", "via", "keep", "collective")  # columns that say little of an attend


def column(name: str) -> Mutation:
    """Changes one column of one operation, of a transfer rather than of an attend where it is a transfer's."""

    def change(rng: Generator, plan: Plan, cost: Cost) -> Plan:
        part = _part(rng)
        ops: Ops = getattr(plan, part)
        transfers = np.flatnonzero(ops.kind == TRANSFER)
        chosen = transfers if name in _OF_TRANSFERS and len(transfers) and rng.random() < 0.7 else np.arange(len(ops))
        at = int(rng.choice(chosen))
        return put_at(plan, f"{part}.{name}", at, other(rng, int(getattr(ops, name)[at]), counts(plan)[name]))

    return change


def several_columns(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Changes two to four columns, of one operation or of several."""
    part, same = _part(rng), rng.random() < 0.5
    count = len(getattr(plan, part))
    at = int(rng.integers(count))
    for name in rng.choice(COLUMNS, int(rng.integers(2, 5)), replace=False).tolist():
        at = at if same else int(rng.integers(count))
        plan = put_at(
            plan, f"{part}.{name}", at, other(rng, int(array(plan, f"{part}.{name}")[at]), counts(plan)[name])
        )
    return plan


def copied(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Gives an operation a column's value of another one of its kind."""
    part = _part(rng)
    ops: Ops = getattr(plan, part)
    at = int(rng.integers(len(ops)))
    source = int(rng.choice(np.flatnonzero(ops.kind == ops.kind[at])))
    path = f"{part}.{rng.choice(COLUMNS)}"
    return put_at(plan, path, at, int(array(plan, path)[source]))


def moved_attend(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Has another rank attend."""
    part = _part(rng)
    at = int(rng.choice(np.flatnonzero(getattr(plan, part).kind == ATTEND)))
    rank = int(rng.integers(plan.num_ranks))
    return put_at(put_at(plan, f"{part}.src", at, rank), f"{part}.dst", at, rank)


def turned(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Sends a transfer from where it goes to where it comes from."""
    part = _part(rng)
    ops: Ops = getattr(plan, part)
    at = int(rng.integers(len(ops)))
    src, dst = int(ops.src[at]), int(ops.dst[at])
    return put_at(put_at(plan, f"{part}.src", at, dst), f"{part}.dst", at, src)


def shifted_heads(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Moves an operation's range of heads, or cuts it."""
    part = _part(rng)
    ops: Ops = getattr(plan, part)
    at, by = int(rng.integers(len(ops))), rng.integers(-2, 3, 2)
    plan = put_at(plan, f"{part}.head_lo", at, int(ops.head_lo[at] + by[0]))
    return put_at(plan, f"{part}.head_hi", at, int(ops.head_hi[at] + by[1]))


def kept_or_not(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Turns over which copies of the forward are kept, of some of its transfers."""
    ops = plan.forward
    some = (ops.kind == TRANSFER) & (rng.random(len(ops)) < rng.choice((0.1, 0.5, 1.0)))
    return put(plan, "forward.keep", np.where(some, 1 - ops.keep, ops.keep))


def halved(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Splits an operation by heads in two, one after the other: right, unless it has one head or is counted twice."""
    part = _part(rng)
    ops: Ops = getattr(plan, part)
    at = int(rng.integers(len(ops)))
    plan = _taken(plan, part, np.insert(np.arange(len(ops)), at, at))
    middle = int(ops.head_lo[at] + ops.head_hi[at]) // 2
    plan = put_at(plan, f"{part}.head_hi", at, middle)
    return put_at(plan, f"{part}.head_lo", at + 1, middle + int(rng.random() < 0.2))


def dropped(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Leaves out one operation, a few, or all after one."""
    part = _part(rng)
    count = len(getattr(plan, part))
    kind = rng.integers(3)
    if kind == 0:
        return _taken(plan, part, np.delete(np.arange(count), rng.integers(count)))
    if kind == 1:
        return _taken(plan, part, np.flatnonzero(rng.random(count) > 0.2))
    return _taken(plan, part, np.arange(rng.integers(count)))


def doubled(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Has an operation done once more, anywhere."""
    part = _part(rng)
    count = len(getattr(plan, part))
    return _taken(plan, part, np.insert(np.arange(count), rng.integers(count + 1), rng.integers(count)))


def moved(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Puts an operation elsewhere in the order."""
    part = _part(rng)
    count = len(getattr(plan, part))
    at = int(rng.integers(count))
    return _taken(plan, part, np.insert(np.delete(np.arange(count), at), rng.integers(count), at))


def exchanged(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Exchanges two operations' places."""
    part = _part(rng)
    order = np.arange(len(getattr(plan, part)))
    a, b = rng.integers(len(order), size=2)
    order[[a, b]] = order[[b, a]]
    return _taken(plan, part, order)


def reordered(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Turns a stretch of operations round, or shuffles it."""
    part = _part(rng)
    order = np.arange(len(getattr(plan, part)))
    a, b = np.sort(rng.integers(len(order) + 1, size=2))
    order[a:b] = order[a:b][::-1].copy() if rng.random() < 0.5 else rng.permutation(order[a:b])
    return _taken(plan, part, order)


def directions(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Takes the forward's operations for the backward's, or the other way round, or both."""
    kind = rng.integers(3)
    forward, backward = plan.forward, plan.backward
    return replace(plan, forward=backward if kind != 0 else forward, backward=forward if kind != 1 else backward)


def _part(rng: Generator) -> str:
    return OPERATIONS[rng.integers(2)]


def _taken(plan: Plan, part: str, index: Ints) -> Plan:
    return plan.with_(**{part: getattr(plan, part).take(index)})
