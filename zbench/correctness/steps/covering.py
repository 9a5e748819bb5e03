"""Combinations of choices, many at once, and a cover of all of their pairs by few of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Generic, TypeVar

import numpy as np

from zbench.describe.arrays import Flags, Ints

TRIES = 8  # covers, of which the one with the fewest combinations is taken
T = TypeVar("T")


@dataclass(frozen=True)
class PossibleCombinations(Sequence[T], Generic[T]):
    """Combinations of some first choices with what each of the others can be by itself beside them, made when they are
    asked for: on four GPUs there are hundreds of millions.

    choices: by the names of a combination's fields. rows: the first choices that can be, numbers among those of
    `choices`, [rows, choices]. groups: of the others, those that are told together, the ways that they can be, in such
    numbers, [ways, choices]. able: of each group, the ways that it can be beside each of the rows, [rows, ways]. make:
    of the values of choices in their order.
    """

    choices: Mapping[str, tuple[Any, ...]]
    rows: Ints
    groups: tuple[Ints, ...]
    able: tuple[Flags, ...]
    make: Callable[..., T]

    @staticmethod
    def where(
        can_be: Callable[..., bool],
        choices: Mapping[str, tuple[Any, ...]],
        first: int,
        together: Sequence[tuple[str, ...]],
        make: Callable[..., T],
    ) -> "PossibleCombinations[T]":
        """Returns all combinations that can be. can_be: of values of choices in their order. first: of these the ones
        with which the others are whatever each of them can be beside the first value of the rest, but for those that
        are told `together`, which follow one another."""
        values, names = list(choices.values()), list(choices)
        grouped = {name: group for group in together for name in group}
        groups = list(dict.fromkeys(grouped.get(name, (name,)) for name in names[first:]))
        usual = [of[0] for of in values]
        able_rows = [row for row in product(*values[:first]) if can_be(*row, *usual[first:])]
        ways, able, begin = [], [], first
        for group in groups:
            end = begin + len(group)
            every = list(product(*values[begin:end]))
            found = [[can_be(*row, *usual[first:begin], *way, *usual[end:]) for way in every] for row in able_rows]
            ways.append(_numbers(every, values[begin:end]))
            able.append(np.array(found, bool).reshape(-1, len(every)))
            begin = end
        return PossibleCombinations(choices, _numbers(able_rows, values[:first]), tuple(ways), tuple(able), make)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        row = int(np.searchsorted(self._ends, at, side="right"))
        ways, left = [], at - (int(self._ends[row - 1]) if row else 0)
        for able in self.able[::-1]:
            possible = np.flatnonzero(able[row])
            left, number = divmod(left, len(possible))
            ways.append(int(possible[number]))
        return self.made(row, ways[::-1])

    def made(self, row: int, ways: Sequence[int]) -> T:
        """Returns the combination of a row and of a way of each group."""
        numbers = [*self.rows[row].tolist()]
        for group, way in zip(self.groups, ways, strict=True):
            numbers += group[way].tolist()
        return self.make(*(of[number] for of, number in zip(self.choices.values(), numbers, strict=True)))

    @cached_property
    def _ends(self) -> Ints:
        """How many combinations there are of each row and those before it."""
        counts = np.ones(len(self.rows), np.int64)
        for able in self.able:
            counts = counts * able.sum(axis=1)
        return np.cumsum(counts)


def covering(every: PossibleCombinations[T], seed: int) -> list[T]:
    """Chooses few combinations that have every pair of choices that any has: the fewest of several covers that are
    drawn by the seed, which breaks ties."""
    marks, rng = _Marks.of(every), np.random.default_rng(seed)
    fewest = min((_cover(marks, rng) for _ in range(TRIES)), key=len)
    return [every.made(row, ways) for row, ways in fewest]


def _cover(marks: "_Marks", rng: np.random.Generator) -> list[tuple[int, list[int]]]:
    """Returns the rows and the ways of each group of combinations that have every pair.

    They are chosen one by one. For each row the ways of its groups are chosen one after another, each with most pairs
    that are still missing, and of what all rows come to the combination with most of them is taken. Pairs are counted
    by matrices of ones and zeros, with a column for each value of each choice: of whole numbers, as threads of a BLAS
    wait for one another on a busy machine, for minutes in all.
    """
    missing, chosen = marks.pairs(), list[tuple[int, list[int]]]()
    place = rng.permutation(len(marks.rows))
    ties = [rng.permuted(np.tile(np.arange(able.shape[1]), (len(place), 1)), axis=1) for able in marks.able]
    while missing.any():
        gain, ways = _gains(marks, missing, ties, rng.permutation(len(ties)))
        row = int((equal := np.flatnonzero(gain == gain.max()))[place[equal].argmin()])
        chosen.append((row, [int(way[row]) for way in ways]))
        mine = marks.rows[row] + sum(group[way] for group, way in zip(marks.groups, chosen[-1][1], strict=True))
        missing[np.ix_(mine > 0, mine > 0)] = 0
    return chosen


@dataclass(frozen=True)
class _Marks:
    """Combinations as ones and zeros, with a column for each value of each choice. rows: the first choices, [rows,
    columns]; groups: of each the ways, [ways, columns]; able: as combinations have it; open: of each group the columns
    that have a one in some way that can be beside a row, [rows, columns]."""

    rows: Ints
    groups: list[Ints]
    able: tuple[Flags, ...]
    open: list[Ints]

    @staticmethod
    def of(every: PossibleCombinations[Any]) -> "_Marks":
        """Returns the marks of combinations."""
        sizes = [len(of) for of in every.choices.values()]
        columns = np.split(np.eye(sum(sizes), dtype=np.int64), np.cumsum(sizes)[:-1])
        tables, begin = list[Ints](), 0
        for table in (every.rows, *every.groups):
            marks = [columns[begin + at][table[:, at]] for at in range(table.shape[1])]
            tables.append(np.sum(marks, axis=0, dtype=np.int64))
            begin += table.shape[1]
        opened = [
            (able.astype(np.int64) @ group > 0).astype(np.int64)
            for able, group in zip(every.able, tables[1:], strict=True)
        ]
        return _Marks(tables[0], tables[1:], every.able, opened)

    def pairs(self) -> Ints:
        """Returns the pairs of values that some combination has, [columns, columns]."""
        some = [self.rows, *self.open]
        found = self.rows.T @ self.rows
        for at, one in enumerate(some):
            for other in some[:at]:
                found += one.T @ other + other.T @ one
        for group, able in zip(self.groups, self.able, strict=True):
            real = group[able.any(axis=0)]
            found += real.T @ real
        np.fill_diagonal(found, 0)
        return np.asarray(found > 0, np.int64)


def _gains(marks: _Marks, missing: Ints, ties: Sequence[Ints], order: Ints) -> tuple[Ints, list[Ints]]:
    """Returns of each row the missing pairs of a combination of it, and the way of each group in that, groups filled in
    an order; where ways have as many missing pairs with what is chosen, the one with most of them beside what is still
    open is taken, so that a pair that is missing is never passed over by all rows."""
    gain = (marks.rows @ missing * marks.rows).sum(axis=1) // 2
    chosen, left = marks.rows, np.sum(marks.open, axis=0, dtype=np.int64) if marks.open else marks.rows
    ways = [np.zeros(0, np.int64)] * len(marks.groups)
    for at in order.tolist():
        group = marks.groups[at]
        left = left - marks.open[at]
        partners = missing @ group.T
        inside = (group.T * partners).sum(axis=0) // 2
        now, later = chosen @ partners + inside, left @ partners
        rank = np.where(marks.able[at], (now * len(missing) + later) * len(group) + ties[at], -1)
        ways[at] = rank.argmax(axis=1)
        gain = gain + np.take_along_axis(now, ways[at][:, None], axis=1)[:, 0]
        chosen = chosen + group[ways[at]]
    return gain, ways


def _numbers(rows: Sequence[Sequence[Any]], values: Sequence[tuple[Any, ...]]) -> Ints:
    """Returns the numbers of values among those of each choice, [rows, choices]."""
    found = [[of.index(one) for of, one in zip(values, row, strict=True)] for row in rows]
    return np.array(found, np.int64).reshape(-1, len(values))
