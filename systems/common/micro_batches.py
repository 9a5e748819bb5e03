"""Divides a batch into as few micro-batches as memory asks for.

A system says how it would plan some of a batch's sequences; `fitting` has it plan all of them, and where
that does not fit a GPU, parts of them. A sequence that fits by itself nowhere is planned all the same: the
executor's verdict is then out of memory, which is the truth about that system and that batch.
"""

from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory.copies import kept_over_own
from zbench.cost.memory.needs import least_bytes, memory_of
from zbench.cost.memory.peak import step_bytes
from zbench.describe.model import DKV, DQ, O
from zbench.interfaces.dealt import dealt
from zbench.plans.plan import TRANSFER, Ints, Ops, Plan

# Plans of some of the batch's sequences (their indices), the one to be preferred first, by the cost model of a part of
# the step (Cost.of_part).
Planner = Callable[[Ints, Cost], Iterable[Plan]]
TRIED = 3  # most plans tried before a part of several sequences is cut into smaller ones
COUNTS = 5  # most numbers of parts tried before parts that do not fit are cut by themselves


def fitting(lengths: Ints, cost: Cost, planner: Planner) -> tuple[Plan, ...]:
    """Returns plans that together hold every sequence once and fit the cluster's memory, where any of the planner's do.

    As few as possible: a number of parts of equal tokens is tried after another, and the next one as soon as a part
    does not fit.
    """
    return tuple(_parts(np.arange(len(lengths), dtype=np.int64), lengths, cost, planner))


def _parts(seqs: Ints, lengths: Ints, cost: Cost, planner: Planner) -> list[Plan]:
    memory, lines = int(cost.cluster.device.memory_bytes), memory_of(cost)
    if (room := lines.tokens(memory)) <= 0:  # however few tokens
        return [next(iter(planner(seqs, cost)))]
    count, need = 1, least_bytes(cost, int(lengths[seqs].sum()))
    for _ in range(COUNTS):
        if need > memory:
            in_proportion = int(np.ceil(count * lines.tokens(need) / room))
            count = min(max(count + 1, in_proportion), len(seqs))
        parts, plans = dealt(seqs, lengths, count), []
        of_part = [cost.of_part(number == 0, number == count - 1) for number in range(count)]
        for part, own in zip(parts, of_part, strict=True):
            plan, need = _plan(part, lengths, own, planner)
            if plan is None:
                break
            plans.append(plan)
        else:
            return plans
    each = zip(parts, of_part, strict=True)
    return [plan for part, own in each for plan in _parts(part, lengths, own, planner)]


def _plan(seqs: Ints, lengths: Ints, cost: Cost, planner: Planner) -> tuple[Plan | None, int]:
    """Returns (the first plan that fits, or none, bytes that one needs at least). Of a single sequence always a
    plan."""
    memory, alone = int(cost.cluster.device.memory_bytes), len(seqs) == 1
    least = least_bytes(cost, int(lengths[seqs].sum()))  # of any plan: tokens spread evenly, nothing received
    tried: list[tuple[int, Plan]] = []
    if least > memory and not alone:
        return None, least
    for plan in planner(seqs, cost) if alone else islice(planner(seqs, cost), TRIED):
        need, most = need_range(plan, cost)
        if need <= memory < most:
            need = most = exact_bytes(plan, cost)
        if most <= memory:
            return plan, most
        tried.append((need, plan))
    assert tried, "a planner has at least one plan"
    if alone:
        fullest = [exact_bytes(plan, cost) for _, plan in tried] if tried[1:] else [tried[0][0]]
        return tried[int(np.argmin(fullest))][1], min(fullest)
    return None, max(least, min(need for need, _ in tried))


def fitting_tokens(cost: Cost) -> int:
    """Returns how many tokens of a micro-batch fit a GPU which receives nothing; at least 1, so that there is always a
    plan."""
    return max(int(memory_of(cost).tokens(int(cost.cluster.device.memory_bytes))), 1)


def need_bytes(plan: Plan, cost: Cost) -> int:
    """Returns the bytes of the fullest rank: an upper bound where that fits already, else exact (which takes
    longer)."""
    _, most = need_range(plan, cost)
    return most if most <= cost.cluster.device.memory_bytes else exact_bytes(plan, cost)


def exact_bytes(plan: Plan, cost: Cost) -> int:
    """Returns the bytes of the fullest rank at its fullest moment."""
    return int(step_bytes(plan, cost).max())


def need_range(plan: Plan, cost: Cost) -> tuple[int, int]:
    """Returns bounds of the bytes of the fullest rank: nothing received, and all that ever comes and goes, held at
    once. With stages, whose fullest one is not known beforehand, exact ones."""
    if cost.pp > 1:
        exact = exact_bytes(plan, cost)
        return exact, exact
    tokens, kept = plan.tokens_per_rank, kept_over_own(plan, cost)
    moment = np.maximum(_away_bytes(plan, plan.forward, cost), _away_bytes(plan, plan.backward, cost))
    least, most = 0.0, 0.0
    for line in memory_of(cost).lines:
        there = line.constant + line.token * tokens + line.chunk * np.minimum(tokens, line.chunk_tokens)
        there = there + line.received * kept + line.spread * np.sqrt(tokens)
        least, most = max(least, there.max()), max(most, (there + line.copies * moment).max())
    return int(np.ceil(least)), int(np.ceil(most))


def _away_bytes(plan: Plan, ops: Ops, cost: Cost) -> Ints:
    """Returns int64 [num_ranks]: every copy that ever arrives and every sum that ever leaves, as if held all at
    once."""
    size, moves = cost.message_bytes(plan, ops), ops.kind == TRANSFER
    leaves = moves & np.isin(ops.tensor, (O, DQ, DKV))
    total = np.bincount(ops.dst[moves], weights=size[moves], minlength=plan.num_ranks)
    total += np.bincount(ops.src[leaves], weights=size[leaves], minlength=plan.num_ranks)
    return total.astype(np.int64)
