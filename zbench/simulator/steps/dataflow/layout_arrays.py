"""A layout of a step as arrays, read once for all templates that are played of it."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.form import LayoutForm
from zbench.step.layout import StepLayout


class LayoutArrays(NamedTuple):
    """A layout as the arrays that all of its templates are cut from.

    lists: the number of each one's index (-1: places or lanes), offsets and parts. first: where the parts of each index
    begin among all. maps: (coarse, fine) indices, offsets, parts. axes: the indices of each tensor, -1 where there is
    none. sizes: of all parts. unit, homes, amounts: of tensors, the last two as compressed rows. nature: of tensors.
    """

    lists: tuple[Ints, Ints, Ints]
    first: Ints
    maps: tuple[Ints, Ints, Ints]
    axes: Ints
    sizes: Ints
    unit: Ints
    homes: tuple[Ints, Ints]
    amounts: tuple[Ints, Ints]
    nature: Ints

    @property
    def index_sizes(self) -> Ints:
        """The tokens, heads or columns of all parts of every index, int64 [indices]."""
        total = np.append(0, np.cumsum(self.sizes))
        return np.diff(total[self.first])

    @staticmethod
    def of(layout: StepLayout) -> "LayoutArrays":
        """Reads a layout."""
        lists, names = layout.lists, _names_of(layout.form)
        of_list = np.array([names.numbers.get(name, -1) for name in lists.indices], np.int64)[lists.of]
        return LayoutArrays(
            (of_list, lists.offsets, lists.parts),
            np.cumsum([0, *(len(one) for one in layout.indices)]).astype(np.int64),
            (names.ends, *_joined([one.part for one in layout.maps])),
            layout.form.axes,
            np.concatenate([*(one.sizes for one in layout.indices), np.zeros(0, np.int64)]),
            np.array([one.unit for one in layout.tensors], np.int64),
            _joined([one.home for one in layout.tensors]),
            _joined([one.home[:0] if one.amounts is None else one.amounts for one in layout.tensors]),
            layout.form.natures,
        )


class _Names(NamedTuple):
    """The number of each index by name, and the (coarse, fine) indices of maps."""

    numbers: dict[str, int]
    ends: Ints


@lru_cache(maxsize=64)
def _names_of(form: LayoutForm) -> _Names:
    """Returns what the names of a form stand for."""
    number = {name: at for at, (name, _) in enumerate(form.indices)}
    ends = np.array([(number[coarse], number[fine]) for coarse, fine in form.maps], np.int64)
    return _Names(number, ends.reshape(-1, 2))


def _joined(rows: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns (offsets, all rows one after another)."""
    sizes = np.array([0, *map(len, rows)], np.int64)
    return np.cumsum(sizes), np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64, copy=False)
