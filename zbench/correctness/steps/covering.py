"""A cover of all pairs of choices by few combinations."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from zbench.correctness.steps.combination import CHOICES, StepCombinations
from zbench.describe.arrays import Ints

T = TypeVar("T")


def covering(every: Sequence[T], seed: int, choices: Mapping[str, tuple[Any, ...]] = CHOICES) -> list[T]:
    """Chooses few combinations that have every pair of choices that any has; ties are broken by the seed. choices: by
    the names of the combinations' fields.

    They are chosen one by one, each with the most pairs that are still missing.
    """
    if not every:
        return []
    order = np.random.default_rng(seed).permutation(len(every))
    table = (every.numbers() if isinstance(every, StepCombinations) else _numbers(every, choices))[:, order]
    has = [[table[at] == number for number in range(len(of))] for at, of in enumerate(choices.values())]
    pairs = list(combinations(range(len(choices)), 2))
    gain = np.full(len(every), len(pairs), np.int16)  # pairs of each that are still missing
    covered, chosen = set[tuple[int, int, int, int]](), list[T]()
    while gain[best := int(gain.argmax())] > 0:
        for a, b in pairs:
            pair = a, b, int(table[a, best]), int(table[b, best])
            if pair not in covered:
                covered.add(pair)
                gain -= has[a][pair[2]] & has[b][pair[3]]
        chosen.append(every[int(order[best])])
    return chosen


def _numbers(every: Sequence[Any], choices: Mapping[str, tuple[Any, ...]]) -> Ints:
    """Returns the numbers of all combinations' choices, [choices, combinations]."""
    return np.array([[of.index(getattr(one, name)) for one in every] for name, of in choices.items()], np.int8)
