"""Rows of seats that have a token, counted while a step runs: how many there are, and what is done with them.

A home counts them when its router has chosen, and sends the numbers ahead of the rows; whoever is sent rows knows then
how large messages are, and which rows are of which expert (zbench.step.layers). What goes back goes along the same
numbers. At home it is the seats that say which of them have a token.

Numbers are of blocks: of a cell of slices and of parts of a, one for each expert of the slice, in the order of rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Ints
from zbench.runtime.handlers.experts import ROUTED_FUNCTIONS
from zbench.runtime.handlers.formats import Fields, Format
from zbench.runtime.handlers.seats import SEAT_FUNCTIONS
from zbench.runtime.steps.instructions import Cells, Parcel
from zbench.runtime.steps.seats import SeatParts
from zbench.step.layers import SHARES
from zbench.step.layout import StepLayout


@dataclass
class CountedRows:
    """The numbers of rows that a process knows of a micro-batch, by layer, and the formats of tensors with so many.
    formats: of the layout's tensors, with the most rows that there may be."""

    layout: StepLayout
    seats: SeatParts
    formats: Sequence[Format]
    # By axis (e, k or n) and layer, int64 [parts of a, parts of the axis], -1: not known.
    _rows: dict[tuple[str, int], Ints] = field(default_factory=dict)
    _made: dict[tuple[int, int], Format] = field(default_factory=dict)

    def counts(self, tensor: int) -> int:
        """Returns the number of the tensor that says how many rows one has."""
        return self.layout.number[self.layout.tensors[tensor].counted_by]

    def format(self, tensor: int, layer: int) -> Format:
        """Returns the format of a tensor of a layer; cells whose rows are not known yet may not be asked about."""
        if (tensor, layer) not in self._made:
            amounts = self._table(self.layout.tensors[tensor].axes[1], layer)
            self._made[tensor, layer] = replace(self.formats[tensor], amounts=amounts, counted=True)
        return self._made[tensor, layer]

    def know(self, parcels: Iterable[Parcel], layer: int) -> bool:
        """Returns whether it is known how many rows all messages have. layer: of the instance."""
        return all(self.know_of(one.cells, layer) for one in parcels)

    def know_of(self, cells: Cells, layer: int) -> bool:
        """Returns whether it is known how many rows cells have."""
        if not self.layout.tensors[cells.tensor].counted_by:
            return True
        found = self._rows.get((self.layout.tensors[cells.tensor].axes[1], layer + cells.layer))
        return found is not None and bool((found[np.ix_(cells.first, cells.second)] >= 0).all())

    def note(self, layer: int, cells: Cells, numbers: Tensor) -> None:
        """Notes the numbers of cells of a layer."""
        axis = self.layout.tensors[cells.tensor].axes[1]
        rows, of_experts = self._table(axis, layer), self._table("e", layer)
        told, at, each = numbers.cpu().numpy(), 0, self.seats.per_slice
        for part in cells.second:
            for group in cells.first:
                own = told[at : at + each]
                rows[group, part] = own.sum()
                if axis == "k":
                    of_experts[group, self.seats.parts_of((part,))] = own
                at += each

    def _table(self, axis: str, layer: int) -> Ints:
        """Returns the rows of a layer along an axis, as far as they are known."""
        if (axis, layer) not in self._rows:
            shape = len(self.seats.room), len(self.layout.index[axis])
            self._rows[axis, layer] = np.full(shape, -1, np.int64)
        return self._rows[axis, layer]


def _count(at: Any, to: Fields) -> Tensor:
    """Returns how many seats have a token, of every block."""
    found, begin = [], 0
    for gpu, first, last in at.seats.pieces:
        room = at.seats.spans[gpu][2]
        rows = to[0][begin : begin + (last - first) * room].view(last - first, room)
        found.append((rows >= 0).sum(1))
        begin += rows.numel()
    return torch.cat(found)


def _at_home(name: str, at: Any, *operands: Fields) -> Any:
    """Returns what a function of seats makes of those with a token. operands: the last one says who has which seat."""
    to, seats = operands[-1][0], at.seats
    taken = to >= 0
    place = taken.cumsum(0) - 1
    own = replace(
        seats,
        expert=seats.expert[taken],
        first=seats.first[taken],
        of_expert=tuple(place[rows[taken[rows]]] for rows in seats.of_expert),
    )
    return SEAT_FUNCTIONS[name](replace(at, seats=own), *operands[:-1], (to[taken],))


def _at_experts(name: str, at: Any, *operands: Fields) -> Any:
    """Returns what a function of routed rows makes of as many as were counted. operands: the last one has the numbers
    of blocks; the context has which blocks are of which expert."""
    numbers = operands[-1][0]
    begins, experts = numbers.cumsum(0) - numbers, []
    for blocks, _ in at.routed.experts:
        mine = numbers[blocks]
        shift = begins[blocks] - (mine.cumsum(0) - mine)
        rows = torch.repeat_interleave(shift, mine) + torch.arange(int(mine.sum()), device=mine.device)
        experts.append((rows, torch.zeros_like(rows)))
    routed = replace(at.routed, experts=tuple(experts), num_sent=int(numbers.sum()))
    return ROUTED_FUNCTIONS[name](replace(at, routed=routed), *operands[:-1])


COUNTED_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "count": _count,
    **{f"{name}_counted{back}": partial(_at_home, f"{name}{back}")
       for name in ("seat", "unseat", *(f"{one}_of_seats" for one in SHARES.values())) for back in ("", "_d0")},
    **{f"{name}_counted{back}": partial(_at_experts, f"{name}{back}")
       for name, most in (("enter", 2), ("leave", 3)) for back in ("", *(f"_d{at}" for at in range(most)))},
})  # fmt: skip
