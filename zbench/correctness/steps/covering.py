"""A cover of all pairs of choices by few combinations."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from zbench.correctness.steps.choices import CHOICES
from zbench.correctness.steps.combination import StepCombinations
from zbench.describe.arrays import Ints

T = TypeVar("T")


def covering(every: Sequence[T], seed: int, choices: Mapping[str, tuple[Any, ...]] = CHOICES) -> list[T]:
    """Chooses few combinations that have every pair of choices that any has; ties are broken by the seed. choices: by
    the names of the combinations' fields.

    They are chosen one by one, each with the most pairs that are still missing.
    """
    if not every:
        return []
    if isinstance(every, StepCombinations):
        first, others = every.numbers()
    else:
        first, others = _numbers(every, choices), np.zeros((0, 1), np.int8)
    rows, columns = first.shape[1], others.shape[1]
    # Of each, its place in the order that ties are broken by: there are tens of millions, so four bytes each.
    place = np.random.default_rng(seed).permutation(np.arange(len(every), dtype=np.int32))
    sizes = [len(of) for of in choices.values()]
    missing = {(a, b): np.ones((sizes[a], sizes[b]), bool) for a, b in combinations(range(len(sizes)), 2)}
    gain = np.full((rows, columns), len(missing), np.int16)  # pairs of each that are still missing
    flat, chosen = gain.reshape(-1), list[T]()
    while (most := flat.max()) > 0:
        best = (equal := np.flatnonzero(flat == most))[place[equal].argmin()]
        row, column = divmod(int(best), columns)
        numbers = *map(int, first[:, row]), *map(int, others[:, column])
        fewer = np.zeros(columns, np.int16)
        for a, number in enumerate(numbers):
            new = [b for b in range(a + 1, len(numbers)) if missing[a, b][number, numbers[b]]]
            for b in new:
                missing[a, b][number, numbers[b]] = False
            of_rows, of_columns = ([b for b in new if (b < len(first)) == early] for early in (True, False))
            if a >= len(first):
                fewer += _has(others, a - len(first), number) * _shared(others, len(first), of_columns, numbers)
            elif new:
                has = np.flatnonzero(_has(first, a, number))
                shared = _shared(first[:, has], 0, of_rows, numbers)
                of_a = _shared(others, len(first), of_columns, numbers)
                if of_columns:
                    gain[has] -= shared[:, None] + of_a
                else:
                    has, shared = has[shared > 0], shared[shared > 0]
                    gain[has] -= shared[:, None]
        if fewer.any():
            gain -= fewer
        chosen.append(every[int(best)])
    return chosen


def _has(table: Ints, axis: int, number: int) -> Any:
    return table[axis] == number


def _shared(table: Ints, before: int, axes: Sequence[int], numbers: Sequence[int]) -> Any:
    """Returns, of each column of a table, on how many of these axes it has these numbers. before: axes of others."""
    found = np.zeros(table.shape[1], np.int16)
    for axis in axes:
        found += table[axis - before] == numbers[axis]
    return found


def _numbers(every: Sequence[Any], choices: Mapping[str, tuple[Any, ...]]) -> Ints:
    """Returns the numbers of all combinations' choices, [choices, combinations]."""
    return np.array([[of.index(getattr(one, name)) for one in every] for name, of in choices.items()], np.int8)
