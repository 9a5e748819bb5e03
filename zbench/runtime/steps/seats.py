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
from zbench.step.expert_cut import ExpertCut
from zbench.step.layers import COUNTS
from zbench.step.layout import StepLayout
from zbench.step.passes.router.seats import SEATS, TOGETHER


@dataclass(frozen=True)
class SeatParts:
    """The seats of a micro-batch. sizes, group: int64 [parts of t], tokens of each, and the part of a that it is in.
    room: int64 [parts of a], seats that every expert has for its tokens. slices, experts: int64 [parts of e], where
    each lies, and the expert that it is of. nodes: int64 [slices], the group of slices with the same experts that each
    is in, where experts are cut. counted: whether the seats with a token alone are rows elsewhere."""

    sizes: Ints
    group: Ints
    room: Ints
    slices: Ints
    experts: Ints
    nodes: Ints | None = None
    counted: bool = False

    @staticmethod
    def of(layout: StepLayout) -> "SeatParts | None":
        """Returns the seats of a layout, None where no router chooses."""
        if TOGETHER not in layout.index:
            return None
        maps = {(one.coarse, one.fine): one.part for one in layout.maps}
        slices, nodes, number = maps["k", "e"], maps.get(("n", "k")), layout.number[SEATS]
        rows = layout.tensors[number].amounts
        assert rows is not None, "seats are counted"
        count, cut = len(layout.index["k"]), 1 if nodes is None else len(nodes) // len(np.unique(nodes))
        experts = ExpertCut(len(slices) // cut, count, cut).experts
        room = rows.reshape(layout.shape(number))[:, 0] // (len(slices) // count)
        counted = COUNTS in layout.number
        return SeatParts(layout.index["t"].sizes, maps[TOGETHER, "t"], room, slices, experts, nodes, counted)

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

    @property
    def per_slice(self) -> int:
        """The experts of a slice."""
        return int((self.slices == 0).sum())

    def parts_of(self, slices: Parts) -> Sequence[int]:
        """Returns the parts of e in slices, slice after slice."""
        return [part for one in slices for part in np.flatnonzero(self.slices == one).tolist()]

    def of_nodes(self, nodes: Parts) -> Parts:
        """Returns of each group of slices with the same experts the first one."""
        assert self.nodes is not None, "a slot of groups of slices has a map to them"
        return tuple(int(np.flatnonzero(self.nodes == one)[0]) for one in nodes)

    def rows(self, groups: Parts, slices: Parts) -> tuple[Ints, Ints]:
        """Returns the part of e of each row and the number of its group among `groups`."""
        part, group = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for one in slices:
            mine = np.flatnonzero(self.slices == one)
            for number, own in enumerate(groups):
                part.append(np.repeat(mine, self.room[own]))
                group.append(np.full(len(mine) * int(self.room[own]), number))
        return np.concatenate(part), np.concatenate(group)

    def tables(self, groups: Parts, seats: Ints) -> list[Ints]:
        """Returns what rows of all experts' seats for some groups have for each of them, int64 [experts, seats]."""
        every = np.unique(self.slices) if self.nodes is None else np.unique(self.nodes, return_index=True)[1]
        part, group = self.rows(groups, tuple(every.tolist()))
        return [seats[group == number].reshape(len(np.unique(part)), -1) for number in range(len(groups))]
