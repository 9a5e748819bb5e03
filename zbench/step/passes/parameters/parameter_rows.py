"""Operations and contract entries of parameters: which GPUs have which parts of them, and gathers and reductions."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.degrees import WORLD
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import GATHER, operation_row
from zbench.step.passes.parameters.kept_tables import KeptTables
from zbench.step.passes.parameters.lossy import LossyHops
from zbench.step.passes.parameters.weights import WHOLE
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.template import AT_HOME


@dataclass(frozen=True)
class ParameterRows:
    """Makes the operations and contract entries of parameters in a layout. tables: that are kept of them."""

    of: ShardedParameters
    layout: StepLayout
    lists: ListTable
    tables: KeptTables = field(default_factory=KeptTables)

    def kept(self, key: Hashable, make: Callable[[], Sequence[Ints | list[list[int]]]]) -> tuple[Ints, ...]:
        """Returns the tables that `make` makes, as zbench.step.passes.parameters.kept_tables.KeptTables.of does."""
        return self.tables.of(self.lists, key, make)

    @cached_property
    def hops(self) -> LossyHops:
        """The lossy hops of what GPUs have."""
        return LossyHops(self.of)

    def told(self, lines: list[list[int]], table: Ints) -> list[list[int]]:
        """Returns entries with their lossy hops, of which one that has several becomes as many. table: int64 [GPUs,
        cells]."""
        if not self.hops.encodings or not table.any():
            return lines
        found: list[list[int]] = []
        for line in lines:
            tensor, places = line[0], line[2]
            width = self.layout.shape(tensor)[1]
            sides = [self.lists.rows[which] if which >= 0 else np.zeros(1, np.int64) for which in line[3:5]]
            alike: dict[bytes, tuple[Ints, list[int]]] = {}  # GPUs of which each cell has as many
            if places == AT_HOME:
                home = self.layout.tensors[tensor].home.reshape(-1, width)[np.ix_(*sides)]
                cells = sides[0][:, None] * width + sides[1]
                alike[b""] = table[home, cells], []
            else:
                for gpu in self.lists.rows[places].tolist():
                    mine = table[gpu].reshape(-1, width)[np.ix_(*sides)]
                    alike.setdefault(mine.tobytes(), (mine, []))[1].append(gpu)
            for mine, gpus in alike.values():
                where = self.lists.number(PLACE, gpus) if gpus else AT_HOME
                for hops in np.unique(mine).tolist():
                    for cells_of in self._blocks(line, sides, mine == hops):
                        found.append([*line[:2], where, *cells_of, *line[5:7], hops])
        return found

    def _blocks(self, line: list[int], sides: list[Ints], chosen: Flags) -> Iterator[list[int]]:
        """Yields the lists of chosen cells of an entry, a row of the first axis after another."""
        if chosen.all():
            yield line[3:5]
            return
        axes = self.layout.tensors[line[0]].axes
        for at, part in enumerate(sides[0].tolist()):
            if chosen[at].any():
                yield [self.lists.number(axes[0], [part]), self.lists.number(axes[1], sides[1][chosen[at]])]

    @cached_property
    def _numbers(self) -> dict[tuple[str, int], list[int]]:
        """The lists of cells of slices that were asked for so far, by parameter and slice."""
        return {}

    def _cells(self, weight: str, share: int) -> list[int]:
        key = weight, share
        if key not in self._numbers:
            index, whole = self.of.slices(weight)[0], f"z{weight}"
            cells = [self.lists.number(index, [share]), self.lists.whole(whole)] if share >= 0 else [-1, -1]
            self._numbers[key] = cells
        return self._numbers[key]

    @cached_property
    def _every(self) -> dict[str, list[int]]:
        """The lists of all cells of parameters that were asked for so far."""
        return {}

    @cached_property
    def _places(self) -> dict[tuple[int, int, int], int]:
        """The lists of GPUs that compute with slices, by how many slices there are, which (-1: of what is not cut), and
        how many GPUs, of which pipelines may have a table or not."""
        return {}

    def _place(self, weight: str, share: int, members: Ints) -> int:
        """Returns the list of the GPUs that compute with a slice."""
        key = self.of.slices(weight)[1], share, len(members)
        if key not in self._places:
            self._places[key] = self.lists.number(PLACE, members)
        return self._places[key]

    def collectives(
        self,
        kind: int,
        tensor: str,
        weight: str,
        levels: tuple[int, int] = (WORLD, 1),
        layer: int = 0,
        transfer: str = "",
    ) -> list[list[int]]:
        """Returns gathers of a parameter's cells to GPUs that have them by a degree from those that have them by a
        finer one, or reductions the other way, one for each run of the finer degree and each part of the other.

        levels: the finer degree, and the other, 1 for all cells. transfer: its kind, which may have fewer bits.
        """
        encoding = self.hops.numbers.get(transfer, -1)
        queue = "parameters" if kind == GATHER and tensor == weight else "gradients"
        number, found = self.layout.number[tensor], []
        for every, members, cells in self._meetings(weight, levels):
            found.append(operation_row(kind, number, (every, members), cells, queue, layer))
            found[-1][10] = encoding
        return found

    def _meetings(self, weight: str, levels: tuple[int, int]) -> Iterator[tuple[int, int, list[int]]]:
        """Yields (the runs that have homes of their own, -1: there is one; the list of members, at least two; lists of
        cells) of the collectives between two degrees."""
        if levels == (WORLD, 1):
            for share, members in self.of.members(weight):
                cells = self._cells(weight, share)
                if len(members) > 1:
                    yield -1, self._place(weight, share, members), cells
            return
        outer, inner = (self.of.every(weight, degree) for degree in levels)
        parts = [(part, self._part(weight, part, inner)) for part in range(inner)]
        for first in range(0, self.of.num_gpus, outer):
            for part, cells in parts:
                if cells:
                    every = outer if outer < self.of.num_gpus else -1
                    members = np.arange(first + part, first + outer, inner)
                    if len(members) > 1:
                        yield every, self.lists.number(PLACE, members), cells

    def _part(self, weight: str, part: int, every: int) -> list[int]:
        """Returns the lists of the cells that GPU `part` of each run of `every` has of a parameter, [] if none."""
        count, home = self.of.slices(weight)[1], self.of.home(weight)
        if weight in WHOLE:
            return [-1, -1] if every == 1 or home[0] % every == part else []
        if every == count:
            return self._cells(weight, part)
        shards = np.flatnonzero(home.reshape(count, -1)[part % count] % every == part)
        index = self.of.slices(weight)[0]
        return (
            [self.lists.number(index, [part % count]), self.lists.number(f"z{weight}", shards)] if len(shards) else []
        )

    def held(
        self, tensor: str, weight: str, degree: int, layer: int = 0, version: int = 0, count: int = 0
    ) -> list[list[int]]:
        """Returns the entries of a parameter that every run of `degree` groups has all of, in equal parts."""
        if tensor == weight and self.hops.encodings:
            return self.told(self._held(tensor, weight, degree, (layer, version, count)), self._hops(weight, degree))
        return self._held(tensor, weight, degree, (layer, version, count))

    def _hops(self, weight: str, degree: int) -> Ints:
        """Returns the lossy hops of a parameter that is held by a degree: as it rests, in a step, or between its
        forward and its backward."""
        degrees = self.of.degrees
        if degree == degrees.weights or degree == degrees.optimizer:
            return self.hops.held(weight)
        return self.hops.forward(weight)

    def _held(self, tensor: str, weight: str, degree: int, about: tuple[int, int, int]) -> list[list[int]]:
        layer, version, count = about
        if degree == WORLD:
            return self.at_home(tensor, weight, layer, version, count)
        if degree == 1:
            return self._entries(tensor, weight, layer, version, [count] * self.of.slices(weight)[1])
        number, every, found = self.layout.number[tensor], self.of.every(weight, degree), []
        for part in range(every):
            if cells := self._part(weight, part, every):
                places = self.lists.number(PLACE, np.arange(part, self.of.num_gpus, every))
                found.append([number, layer, places, *cells, count, version, 0])
        return found

    def everywhere(
        self, tensor: str, weight: str, layer: int = 0, version: int = 0, backward: bool = False
    ) -> list[list[int]]:
        """Returns the entries of a parameter that is on all GPUs that compute with it. backward: in a backward, which
        may have gathered it otherwise than a forward."""
        found = self._entries(tensor, weight, layer, version, [0] * self.of.slices(weight)[1])
        if tensor != weight or not self.hops.encodings:
            return found
        return self.told(found, (self.hops.backward if backward else self.hops.forward)(weight))

    def _entries(self, tensor: str, weight: str, layer: int, version: int, counts: list[int]) -> list[list[int]]:
        """Returns the entries of slices of a parameter on all GPUs that compute with them, with a count for each."""
        number = self.layout.number[tensor]
        return [
            [number, layer, self._place(weight, share, members), *self._cells(weight, share), count, version, 0]
            for (share, members), count in zip(self.of.members(weight), counts, strict=True)
        ]

    def at_home(self, tensor: str, weight: str, layer: int = 0, version: int = 0, count: int = 0) -> list[list[int]]:
        """Returns the entries of a parameter of which every cell is at its home alone."""
        if weight not in self._every:
            self._every[weight] = [*(self.lists.whole(axis) for axis in self.of.axes(weight)), -1, -1][:2]
        return [[self.layout.number[tensor], layer, AT_HOME, *self._every[weight], count, version, 0]]

    def resting(self, weight: str, version: int = 0, layer: int = 0) -> list[list[int]]:
        """Returns the entries of a parameter between steps."""
        return self.held(weight, weight, self.of.degrees.optimizer, layer, version)

    def gathers(self, weights: tuple[str, ...], degree: int, layer: int = 0, backward: bool = False) -> list[list[int]]:
        """Returns gathers of parameters that are held by a degree, to all GPUs that compute with them. backward: for a
        backward."""
        kind = "secondary" if backward else "weights" if self.of.gathered else "updates"
        return self._gathers(weights, (degree, 1), layer, kind)

    def refreshes(self, weights: tuple[str, ...], layer: int = 0) -> list[list[int]]:
        """Returns gathers of parameters that were updated, from where they rest to where they are held in a step; []
        where that is the same, or every GPU has all."""
        degrees, found = self.of.degrees, []
        levels = [degrees.optimizer, *self.of.passed_on, degrees.weights]
        for finer, other in pairwise(levels):
            found += self._gathers(weights, (finer, other), layer, "updates") if finer != other else []
        return found

    def _gathers(self, weights: tuple[str, ...], levels: tuple[int, int], layer: int, transfer: str) -> list[list[int]]:
        return [
            line for weight in weights for line in self.collectives(GATHER, weight, weight, levels, layer, transfer)
        ]


def moved_entries(entries: list[list[int]], layout: StepLayout, lists: ListTable, place: int | Ints) -> list[list[int]]:
    """Returns entries with their places counted from another place on; what is at home is told by its places. place:
    of all, or by how much each place is another one, int64 [places]."""
    found, shift = list[list[int]](), np.broadcast_to(place, lists.sizes[PLACE])
    for tensor, layer, places, list0, list1, *rest in entries:
        if places != AT_HOME:
            moved = lists.number(PLACE, lists.rows[places] + shift[lists.rows[places]])
            found.append([tensor, layer, moved, list0, list1, *rest])
            continue
        home, axes = layout.tensors[tensor].home.reshape(layout.shape(tensor)), layout.tensors[tensor].axes
        sides = [
            lists.rows[which] if which >= 0 else np.arange(size)
            for which, size in zip((list0, list1), home.shape, strict=True)
        ]
        for row in sides[0].tolist():
            homes = home[row, sides[1]]
            for one in np.unique(homes).tolist():
                cells = [lists.number(axes[0], [row])] if axes else [-1]
                cells.append(lists.number(axes[1], sides[1][homes == one]) if len(axes) > 1 else -1)
                found.append([tensor, layer, lists.number(PLACE, [one + int(shift[one])]), *cells, *rest])
    return found
