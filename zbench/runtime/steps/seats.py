"""The seats that experts have for the tokens of every GPU (zbench.step.passes.router.seats), as rows of cells. Pure.

Rows of a list of parts of a and one of slices lie slice after slice, in each part after part of a, in each expert after
expert, in each seat after seat. Tokens of a part of a are numbered in the order of its parts of t.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.runtime.steps.instructions import Parts
from zbench.step.layers import COUNTS
from zbench.step.layout import StepLayout
from zbench.step.passes.router.seats import SEATS, TOGETHER


@dataclass(frozen=True)
class SeatParts:
    """The seats of a micro-batch. sizes, group: int64 [parts of t], tokens of each, and the part of a that it is in.
    room: int64 [parts of a], seats that every expert has for its tokens. slices: int64 [experts], where each lies.
    counted: whether the seats with a token alone are rows elsewhere."""

    sizes: Ints
    group: Ints
    room: Ints
    slices: Ints
    counted: bool = False

    @staticmethod
    def of(layout: StepLayout) -> "SeatParts | None":
        """Returns the seats of a layout, None where no router chooses."""
        if TOGETHER not in layout.index:
            return None
        maps = {(one.coarse, one.fine): one.part for one in layout.maps}
        slices, number = maps["k", "e"], layout.number[SEATS]
        rows = layout.tensors[number].amounts
        assert rows is not None, "seats are counted"
        per_slice = len(slices) // len(layout.index["k"])
        room = rows.reshape(layout.shape(number))[:, 0] // per_slice
        return SeatParts(layout.index["t"].sizes, maps[TOGETHER, "t"], room, slices, COUNTS in layout.number)

    @cached_property
    def tokens(self) -> Ints:
        """The tokens of every part of a."""
        return np.bincount(self.group, weights=self.sizes).astype(np.int64)

    def groups(self, parts: Parts) -> Parts:
        """Returns the parts of a that parts of t are in."""
        return tuple(np.unique(self.group[list(parts)]).tolist())

    def positions(self, parts: Parts, groups: Parts) -> Ints:
        """Returns the numbers of the tokens of parts of t, one after another, among all tokens of groups."""
        before = np.cumsum(self.tokens[list(groups)]) - self.tokens[list(groups)]
        found = [np.zeros(0, np.int64)]
        for part in parts:
            group = int(self.group[part])
            inside = int(self.sizes[:part][self.group[:part] == group].sum())
            found.append(before[groups.index(group)] + inside + np.arange(self.sizes[part]))
        return np.concatenate(found)

    def experts_of(self, slices: Parts) -> Sequence[int]:
        """Returns the experts of slices, slice after slice."""
        return [expert for part in slices for expert in np.flatnonzero(self.slices == part).tolist()]

    def rows(self, groups: Parts, slices: Parts) -> tuple[Ints, Ints]:
        """Returns the expert of each row and the number of its group among `groups`."""
        expert, group = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for part in slices:
            mine = np.flatnonzero(self.slices == part)
            for number, one in enumerate(groups):
                expert.append(np.repeat(mine, self.room[one]))
                group.append(np.full(len(mine) * int(self.room[one]), number))
        return np.concatenate(expert), np.concatenate(group)
