"""Cells of what layers keep, GPU by GPU: which of them go to a host memory, and by which GPU."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.template import AT_HOME


class KeptCells(NamedTuple):
    """Cells of a tensor on a GPU. lists: along its axes, -1 where it has none. complete: the count of a contract's
    entry."""

    tensor: int
    gpu: int
    lists: tuple[int, int]
    complete: int


def by_gpu(row: Sequence[int], layout: StepLayout, lists: ListTable) -> Iterator[KeptCells]:
    """Yields the cells of a contract's entry, GPU by GPU."""
    tensor, _, places, first, second, count, *_ = row
    if places != AT_HOME:
        for gpu in lists.rows[places].tolist():
            yield KeptCells(tensor, gpu, (first, second), count)
        return
    (axis,), home = layout.tensors[tensor].axes, layout.tensors[tensor].home  # what is at home is of tokens alone
    for gpu in np.unique(home).tolist():
        yield KeptCells(tensor, gpu, (lists.number(axis, np.flatnonzero(home == gpu)), -1), count)


def by_tokens(
    every: Sequence[KeptCells], tokens: Flags, layout: StepLayout, lists: ListTable
) -> tuple[list[KeptCells], list[KeptCells]]:
    """Returns cells of some parts of t, and those of others. tokens: whether each part is among the first, bool
    [parts]; what is not cut along t is."""
    found: tuple[list[KeptCells], list[KeptCells]] = ([], [])
    for one in every:
        if layout.tensors[one.tensor].axes[0] != "t":
            found[0].append(one)
            continue
        mine = lists.rows[one.lists[0]]
        for some, cells in zip((mine[tokens[mine]], mine[~tokens[mine]]), found, strict=True):
            if len(some):
                cells.append(one._replace(lists=(lists.number("t", some), one.lists[1])))
    return found


def once_a_host(
    there: Sequence[KeptCells], layout: StepLayout, lists: ListTable, gpus_per_host: int
) -> Iterator[KeptCells]:
    """Yields cells without those that a GPU before with the same host has, too. there: by tensor and GPU in order."""
    at, gone = (-1, -1), np.zeros((0, 0), np.bool_)
    for one in there:
        axes = layout.tensors[one.tensor].axes
        if at != (one.tensor, one.gpu // gpus_per_host):
            at = one.tensor, one.gpu // gpus_per_host
            gone = np.zeros(layout.shape(one.tensor), np.bool_)
        sides = [lists.rows[which] if which >= 0 else np.zeros(1, np.int64) for which in one.lists]
        fresh = ~gone[np.ix_(*sides)]
        gone[np.ix_(*sides)] = True
        if fresh.all():
            yield one
            continue
        for parts, columns in _rectangles(fresh):
            inside = zip(sides, (parts, columns), one.lists, (*axes, ""), strict=False)
            numbers = [lists.number(axis, side[mine]) if which >= 0 else -1 for side, mine, which, axis in inside]
            yield one._replace(lists=(numbers[0], numbers[1]))


def _rectangles(cells: Flags) -> list[tuple[Ints, Ints]]:
    """Returns rows and columns of rectangles that have all cells that are set, each once: rows that are alike go
    together."""
    rows = dict[bytes, list[int]]()
    for number, row in enumerate(cells):
        if row.any():
            rows.setdefault(row.tobytes(), []).append(number)
    return [(np.array(alike), np.flatnonzero(cells[alike[0]])) for alike in rows.values()]
