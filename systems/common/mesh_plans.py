"""Parts that systems with static groups of ranks share: their keys, plans of packs, and packs that fit."""

from collections.abc import Callable
from functools import partial
from math import ceil

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.describe.units import with_noun
from zbench.passes import reverse
from zbench.passes.reverse import Mode
from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.mesh_groups import Lay, Method, lay
from zbench.systems.common.micro_batches import fitting_tokens, need_bytes

BACKWARD: dict[Method, Mode] = {"ring": "carry", "allgather": "regather", "ulysses": "keep"}  # as systems of that name
LIMITS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)  # of a batch's tokens over the ranks, tried as limits of packs; a judgement
SMALLER = 0.9  # of a pack's tokens, where a micro-batch of such packs does not fit


def check_keys(cost: Cost, degree: int | None, pack_tokens: int | None, context_limit: int | None) -> None:
    """Raises ValueError unless each is None or a whole number of at least 1, and degree divides the ranks."""
    for name, value in (("degree", degree), ("pack_tokens", pack_tokens), ("context_limit", context_limit)):
        check_whole_number(f"system.{name}", value, 1, or_null=True)
    ranks = cost.cluster.num_ranks
    if degree is not None and ranks % degree:
        raise ValueError(
            f"system.degree is {degree}; it takes a divisor of the {with_noun(ranks, cost.owner)}, or null"
        )


def pack_limits(cost: Cost, tokens: int, pack_tokens: int | None) -> list[dict[str, int]]:
    """Lists the limits of a pack, as tokens of a rank, that a user may try before a run whose batches have so many
    tokens: from an even share on, up to what fits a GPU. pack_tokens: the one that is given; then none is tried."""
    if pack_tokens is not None:
        return []
    even, free = tokens / cost.cluster.num_ranks, fitting_tokens(cost)
    sizes = dict.fromkeys(ceil(share * even) for share in LIMITS)
    return [{"pack_tokens": size} for size in (*(one for one in sizes if one < free), free)]


def least_degree(longest: int, free: int, num_ranks: int) -> int:
    """Returns the least divisor of the ranks whose ranks hold a sequence of `longest` tokens, `free` each; else all of
    them."""
    return next((n for n in range(1, num_ranks + 1) if num_ranks % n == 0 and n * free >= longest), num_ranks)


def holding_degree(longest: int, method: Method, most: int, cost: Cost) -> int:
    """Returns the least divisor of `most` whose groups have room for a sequence of `longest` tokens, with all that its
    ranks receive; else `most`, which divides the ranks."""
    pack = np.zeros((1, 2), np.int64)
    return holding(longest, most, cost, lambda alone, degree: mesh_plans(alone, method, degree, cost, pack)[0])


def holding(longest: int, most: int, cost: Cost, plan_of: Callable[[Batch, int], Plan]) -> int:
    """Returns the least degree that holds the longest sequence, as holding_degree does, for plans of any kind. plan_of:
    the plan of a batch of one sequence on one group of that many ranks."""
    alone = Batch(np.array([longest], np.int64), seed=0, step=0)
    degree = least_degree(longest, fitting_tokens(cost), most)
    for wider in (n for n in range(degree, most) if most % n == 0):
        if fits(plan_of(alone, wider), cost):
            return wider
    return most


def fitting_plans(
    batch: Batch, method: Method, degree: int, pack_tokens: int | None, cost: Cost, packed: Callable[[int], Ints]
) -> tuple[Plan, ...]:
    """Returns a plan for every micro-batch, with packs as large as memory allows.

    packed: of the tokens that a group's pack may hold at most, the micro-batch and the group of every sequence, int64
    [num_sequences, 2]. pack_tokens: of a rank of a group, at most.
    """
    return largest_fitting(
        batch, degree, pack_tokens, cost, lambda most: mesh_plans(batch, method, degree, cost, packed(most))
    )


def largest_fitting(
    batch: Batch, degree: int, pack_tokens: int | None, cost: Cost, plans_at: Callable[[int], tuple[Plan, ...]]
) -> tuple[Plan, ...]:
    """Returns the plans whose packs are as large as memory allows. plans_at: of the tokens a group's pack may hold at
    most.

    It is asked for smaller packs until the micro-batches fit, or a pack could not hold the longest sequence any more:
    then the executor's verdict is out of memory. pack_tokens: of a rank of a group, at most.
    """
    free = fitting_tokens(cost)
    most = degree * min(free, pack_tokens or free)
    while True:
        plans = plans_at(most)
        if most < batch.lengths.max() or all(fits(plan, cost) for plan in plans):
            return plans
        most = int(SMALLER * most)


def mesh_plans(batch: Batch, method: Method, degree: int, cost: Cost, pack: Ints) -> tuple[Plan, ...]:
    """Returns a plan for every micro-batch. pack: int64 [num_sequences, 2], micro-batch and group of every sequence."""
    return laid_plans(batch, partial(lay, method=method), BACKWARD[method], degree, cost, pack)


def laid_plans(batch: Batch, laid: Lay, backward: Mode, degree: int, cost: Cost, pack: Ints) -> tuple[Plan, ...]:
    """Returns a plan for every micro-batch, as plans_of does, with any way to lay sequences over groups."""
    return tuple(_plan(batch, laid, backward, degree, cost, pack, turn) for turn in np.unique(pack[:, 0]))


def _plan(batch: Batch, laid: Lay, backward: Mode, degree: int, cost: Cost, pack: Ints, turn: int) -> Plan:
    cluster, seqs = cost.cluster, np.flatnonzero(pack[:, 0] == turn)
    builder = Builder(batch.lengths[seqs], cluster.num_ranks, cost.model.num_heads, cost.model.mask, sequences=seqs)
    groups = np.arange(cluster.num_ranks, dtype=np.int64).reshape(-1, degree)
    laid(builder, group=pack[seqs, 1], groups=groups, gpus_per_node=cluster.gpus_per_node)
    return reverse(builder.build(), backward)


def fits(plan: Plan, cost: Cost) -> bool:
    """Returns whether the fullest rank of the plan has room for it."""
    return need_bytes(plan, cost) <= cost.cluster.device.memory_bytes
