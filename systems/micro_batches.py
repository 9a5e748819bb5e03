"""As few micro-batches as memory asks for. Pure: no torch.

A system says how it would plan some of a batch's sequences; `fitting` has it plan all of them, and where
that does not fit a GPU, parts of them. A sequence that fits by itself nowhere is planned all the same: the
executor's verdict is then out of memory, which is the truth about that system and that batch.
"""

from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from zbench.cost import Cost
from zbench.memory import activation_bytes, kept_bytes, least_bytes, peak_bytes, static_bytes
from zbench.model import DKV, DQ, O
from zbench.plan import TRANSFER, Ints, Ops, Plan

# Plans of some of the batch's sequences (their indices), the one to be preferred first.
Planner = Callable[[Ints], Iterable[Plan]]
TRIED = 3  # most plans tried before a part of several sequences is cut into smaller ones


def fitting(lengths: Ints, cost: Cost, planner: Planner) -> tuple[Plan, ...]:
    """Plans that together hold every sequence once and fit the cluster's memory, where any of the planner's do."""
    return tuple(_parts(np.arange(len(lengths), dtype=np.int64), lengths, cost, planner))


def _parts(seqs: Ints, lengths: Ints, cost: Cost, planner: Planner) -> list[Plan]:
    memory, static = cost.cluster.device.memory_bytes, static_bytes(cost)
    alone, tried = len(seqs) == 1, []
    least = least_bytes(cost, int(lengths[seqs].sum()))  # of any plan: tokens spread evenly, nothing received
    if alone or least <= memory:
        for plan in planner(seqs) if alone else islice(planner(seqs), TRIED):
            need = need_range(plan, cost)
            if need[0] <= memory < need[1]:
                need = (exact_bytes(plan, cost),) * 2
            if need[1] <= memory:
                return [plan]
            tried.append((plan, need))
    if alone:
        assert tried, "a planner has at least one plan"
        return [
            min((plan for plan, _ in tried), key=lambda plan: exact_bytes(plan, cost)) if tried[1:] else tried[0][0]
        ]

    def parts_of(need: int) -> int:
        return int(np.clip(np.ceil((max(least, need) - static) / max(memory - static, 1)), 2, len(seqs)))

    low, high = (min((need[end] for _, need in tried), default=0) for end in (0, 1))
    if parts_of(low) != parts_of(high):
        low = min(exact_bytes(plan, cost) for plan, need in tried if need[0] <= high)
    return [plan for part in dealt(seqs, lengths, parts_of(low)) for plan in _parts(part, lengths, cost, planner)]


def fitting_tokens(cost: Cost) -> int:
    """Tokens of a micro-batch that fit a GPU which receives nothing; at least 1, so that there is always a plan."""
    free = int(cost.cluster.device.memory_bytes) - static_bytes(cost)
    return max(free // activation_bytes(cost.model), 1)


def dealt(seqs: Ints, lengths: Ints, count: int) -> list[Ints]:
    """`seqs` in `count` parts of about equal tokens, the longest first, each to the part with the fewest tokens."""
    parts: list[list[int]] = [[] for _ in range(count)]
    held = np.zeros(count, np.int64)
    for seq in seqs[np.argsort(-lengths[seqs], kind="stable")]:
        part = int(held.argmin())
        parts[part].append(int(seq))
        held[part] += lengths[seq]
    return [np.sort(np.array(part, np.int64)) for part in parts]


def need_bytes(plan: Plan, cost: Cost) -> int:
    """Bytes of the fullest rank: an upper bound where that fits already, else exact (which takes longer)."""
    _, most = need_range(plan, cost)
    return most if most <= cost.cluster.device.memory_bytes else exact_bytes(plan, cost)


def exact_bytes(plan: Plan, cost: Cost) -> int:
    """Bytes of the fullest rank at its fullest moment."""
    return int(peak_bytes((plan,), cost).max())


def need_range(plan: Plan, cost: Cost) -> tuple[int, int]:
    """Bytes between which those of the fullest rank lie: nothing, or all that ever comes and goes, held at once."""
    layers = 1 if cost.model.recompute == "full" else cost.model.num_layers
    lasting = activation_bytes(cost.model) * plan.tokens_per_rank + layers * kept_bytes(plan, cost)
    moment = np.maximum(_away_bytes(plan, plan.forward, cost), _away_bytes(plan, plan.backward, cost))
    static = static_bytes(cost)
    return int(lasting.max()) + static, int((lasting + moment).max()) + static


def _away_bytes(plan: Plan, ops: Ops, cost: Cost) -> Ints:
    """int64 [num_ranks]: every copy that ever arrives and every sum that ever leaves, as if held all at once."""
    size, moves = cost.message_bytes(plan, ops), ops.kind == TRANSFER
    leaves = moves & np.isin(ops.tensor, (O, DQ, DKV))
    total = np.bincount(ops.dst[moves], weights=size[moves], minlength=plan.num_ranks)
    total += np.bincount(ops.src[leaves], weights=size[leaves], minlength=plan.num_ranks)
    return total.astype(np.int64)
