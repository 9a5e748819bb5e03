"""Deals items to sets of about equal work under a limit on the tokens of a set, as verl's balancer is called. Pure.

The start is the largest differencing method (zbench.systems.common.differencing) or, where its sets break the limit,
best fit by tokens, longest first. Then items of the set with the most work change places with items of others, or move
to them, as long as the slower of the two sets gets less.
"""

from collections.abc import Sequence

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.systems.common.best_fit import best_fit
from zbench.systems.common.differencing import balanced_sets

EXCHANGES = 1000  # most moves and exchanges


def balanced_partitions(
    works: Sequence[int], num_sets: int, equal_counts: bool, tokens: Sequence[int] | None = None, limit: int = 0
) -> list[list[int]]:
    """Deals items to `num_sets` sets, none empty, such that the most work of a set is small; returns the indices of
    each, ascending.

    works: of every item. equal_counts: as many items in every set. tokens: of every item, and `limit` those of a set at
    most; where no way is found to keep it in so many sets, sets are made as without one: whoever asked looks and asks
    for more sets.

    Raises:
        ValueError: there are fewer items than sets, or equal counts do not divide.
    """
    if len(works) < num_sets or num_sets < 1:
        raise ValueError(f"{len(works)} items for {num_sets} sets; it takes at least an item for every set")
    if equal_counts and len(works) % num_sets:
        raise ValueError(f"{len(works)} items for {num_sets} sets of as many each; it takes a multiple of {num_sets}")
    sets = balanced_sets(works, num_sets, equal_counts)
    weight = np.zeros(len(works), np.int64) if tokens is None else np.array(tokens, np.int64)
    most = limit if tokens is not None else 1
    owner = _owners(sets, len(works))
    _fill_empty(owner, num_sets)
    if np.bincount(owner, weight, num_sets).max() > most:
        packed = best_fit(weight, most)
        if not equal_counts and packed.max() < num_sets:
            owner = packed
            _fill_empty(owner, num_sets)
        else:
            most = int(weight.sum())  # no way is known: the limit is given up, and the work is what is balanced
    _exchange(owner, np.array(works, np.float64), weight, most, num_sets, equal_counts)
    return [np.flatnonzero(owner == one).tolist() for one in range(num_sets)]


def fewest_sets(tokens: Sequence[int], limit: int) -> int:
    """Returns in how many sets of at most `limit` tokens the items are known to fit, each longer one alone."""
    return int(best_fit(np.array(tokens, np.int64), limit).max()) + 1


def _owners(sets: Sequence[Sequence[int]], count: int) -> Ints:
    owner = np.zeros(count, np.int64)
    for number, members in enumerate(sets):
        owner[list(members)] = number
    return owner


def _fill_empty(owner: Ints, num_sets: int) -> None:
    """Gives every empty set an item of the set with the most."""
    counts = np.bincount(owner, minlength=num_sets)
    for empty in np.flatnonzero(counts == 0).tolist():
        item = int(np.flatnonzero(owner == np.argmax(counts))[-1])
        counts[owner[item]] -= 1
        counts[empty] += 1
        owner[item] = empty


def _exchange(owner: Ints, works: Floats, tokens: Ints, limit: int, num_sets: int, equal_counts: bool) -> None:
    """Moves and exchanges items of the set with the most work as long as it helps; `owner` is changed."""
    load = np.asarray(np.bincount(owner, works, num_sets), np.float64)
    held = np.bincount(owner, tokens, num_sets).astype(np.int64)
    for _ in range(EXCHANGES):
        heavy = int(np.argmax(load))
        mine, others = np.flatnonzero(owner == heavy), np.flatnonzero(owner != heavy)
        if len(others) == 0:
            return
        best, moved, taken, to = _best_exchange(mine, others, owner, works, tokens, load, held, limit)
        if not equal_counts and len(mine) > 1:
            room = (held[None, :] + tokens[mine, None] <= limit) & (np.arange(num_sets) != heavy)[None, :]
            after = np.maximum(load[None, :] + works[mine, None], load[heavy] - works[mine, None])
            after[~room] = np.inf
            if after.min() < best:
                at = np.unravel_index(int(np.argmin(after)), after.shape)
                best, moved, taken, to = float(after[at]), int(mine[at[0]]), -1, int(at[1])
        if best >= load[heavy] * (1 - 1e-9):
            return
        owner[moved] = to
        if taken >= 0:
            owner[taken] = heavy
        load = np.asarray(np.bincount(owner, works, num_sets), np.float64)
        held = np.bincount(owner, tokens, num_sets).astype(np.int64)


def _best_exchange(
    mine: Ints, others: Ints, owner: Ints, works: Floats, tokens: Ints, load: Floats, held: Ints, limit: int
) -> tuple[float, int, int, int]:
    """Finds the exchange of one of `mine` with one of `others` after which the heavier of the two sets has least work;
    returns (that work, the item given, the item taken, the set of the latter)."""
    heavy, there = owner[mine[0]], owner[others]
    less = works[mine][:, None] - works[others][None, :]
    fewer = tokens[mine][:, None] - tokens[others][None, :]
    after = np.maximum(load[heavy] - less, load[there][None, :] + less)
    after[(held[heavy] - fewer > limit) | (held[there][None, :] + fewer > limit)] = np.inf
    at = np.unravel_index(int(np.argmin(after)), after.shape)
    return float(after[at]), int(mine[at[0]]), int(others[at[1]]), int(there[at[1]])
