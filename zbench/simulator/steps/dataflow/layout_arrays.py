"""A layout of a step as arrays, read once for all templates that are played of it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.tensor import NATURES


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
        lists, number = layout.lists, {one.name: at for at, one in enumerate(layout.indices)}
        of_list = np.array([number.get(name, -1) for name in lists.indices], np.int64)[lists.of]
        ends = np.array([(number[one.coarse], number[one.fine]) for one in layout.maps], np.int64).reshape(-1, 2)
        axes = np.array([[*(number[axis] for axis in one.axes), -1, -1][:2] for one in layout.tensors], np.int64)
        return LayoutArrays(
            (of_list, lists.offsets, lists.parts),
            np.cumsum([0, *(len(one) for one in layout.indices)]).astype(np.int64),
            (ends, *_joined([one.part for one in layout.maps])),
            axes.reshape(-1, 2),
            np.concatenate([*(one.sizes for one in layout.indices), np.zeros(0, np.int64)]),
            np.array([one.unit for one in layout.tensors], np.int64),
            _joined([one.home for one in layout.tensors]),
            _joined([one.home[:0] if one.amounts is None else one.amounts for one in layout.tensors]),
            np.array([NATURES.index(one.nature) for one in layout.tensors], np.int64),
        )


def _joined(rows: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns (offsets, all rows one after another)."""
    sizes = np.cumsum([0, *(len(row) for row in rows)])
    return sizes.astype(np.int64), np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)
