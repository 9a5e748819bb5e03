"""A dynamic programme over layers and memory: which strategy each layer of a stage has, for the least seconds that fit.

    C(l, e, s) = seconds(l, s) + min over s' of [ C(l - 1, e - bytes(l, s), s') + change(s', s) ]

(Wang et al. 2023, arXiv 2307.02031, section 4). What is counted of a layer's bytes is what it needs beyond the
strategy that needs least, so that rounding to units costs nothing where nothing is to choose; it is rounded up, so what
is found does fit. What a layer needs beside while it is at work is there once for all, so strategies are allowed by how
much that is, from little to much, and the best of what was found is taken: no layer's bytes are a maximum over others.
"""

from dataclasses import dataclass, field
from math import inf

import numpy as np

from zbench.describe.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The strategies of one layer, all layers being alike. seconds: of a micro-batch. bytes: that stay for the step or
    until the backward. working: while the layer is at work; at_loss: while the loss is. layout: the number of how its
    tokens lie; a change between two of them takes `change` seconds."""

    seconds: Floats
    bytes: Ints
    working: Ints
    layout: Ints
    change: float
    at_loss: Ints

    def moment(self, chosen: Ints, loss: int) -> int:
        """Returns the bytes of layers with these strategies at their fullest moment beside those that stay. loss: what
        the loss needs, 0 on a stage that has none."""
        beside = int(self.at_loss[chosen].max()) if loss else 0
        return max(int(self.working[chosen].max()), loss + beside)


@dataclass
class LayerProgramme:
    """The programme for a table of strategies and `room` bytes. unit: bytes of a step of memory."""

    table: LayerTable
    room: int
    unit: int
    _kept: dict[tuple[int, int], "_Allowed"] = field(default_factory=dict, init=False, repr=False)

    def best(self, layers: int, taken: int = 0, loss: int = 0) -> tuple[float, tuple[int, ...]]:
        """Returns the least seconds of so many layers, at least one, where `taken` bytes are not theirs and the loss
        needs `loss`, and the strategy of each, (inf, ()) if none fit."""
        table, found = self.table, (inf, tuple[int, ...]())
        for working, at_loss in self._limits(loss):
            allowed = np.flatnonzero((table.working <= working) & (table.at_loss <= at_loss))
            if not len(allowed):
                continue
            moment = table.moment(allowed, loss)
            left = self.room - taken - moment - layers * int(table.bytes[allowed].min())
            if left < 0 or layers * float(table.seconds[allowed].min()) >= found[0]:
                continue
            if (working, at_loss) not in self._kept:
                most = self.room - int(table.working[allowed].max()) - int(table.bytes[allowed].min())
                self._kept[working, at_loss] = _Allowed(table, _undominated(table, allowed), self.unit, most)
            seconds, chosen = self._kept[working, at_loss].best(layers, left)
            if seconds < found[0]:
                found = seconds, chosen
        return found

    def _limits(self, loss: int) -> list[tuple[int, int]]:
        """Returns the most that allowed strategies need at work and at the loss, from most to least."""
        of, most = self.table, int(self.table.at_loss.max())
        limits = np.unique(of.at_loss)[::-1].tolist() if loss else [most]
        return [(working, one) for working in np.unique(of.working)[::-1].tolist() for one in limits]


def _undominated(table: LayerTable, allowed: Ints) -> Ints:
    """Returns the strategies that are neither slower nor larger than another of their layout."""
    kept: list[int] = []
    least: dict[int, int] = {}  # by layout: the bytes of the smallest of those that are no slower
    for one in allowed[np.lexsort((table.bytes[allowed], table.seconds[allowed]))].tolist():
        layout, size = int(table.layout[one]), int(table.bytes[one])
        if size < least.get(layout, size + 1):
            kept.append(one)
            least[layout] = size
    return np.array(sorted(kept), np.int64)


class _Allowed:
    """The programme over some of the strategies; its rows are made as far as they are asked for."""

    def __init__(self, table: LayerTable, allowed: Ints, unit: int, most: int) -> None:
        self.seconds, self.allowed, self.change = table.seconds[allowed], allowed, table.change
        least = int(table.bytes[allowed].min())
        self.units = -(-(table.bytes[allowed] - least) // unit)
        self.unit = unit
        self.layouts = [np.flatnonzero(table.layout[allowed] == one) for one in np.unique(table.layout[allowed])]
        steps = max(most, 0) // unit + 1
        self.total = [np.zeros((steps, len(allowed)))]
        self.before = [np.zeros((steps, len(allowed)), np.int16)]

    def best(self, layers: int, left: int) -> tuple[float, tuple[int, ...]]:
        """Returns the least seconds and the strategies of so many layers with `left` bytes beyond the least."""
        while len(self.total) <= layers:
            self._next()
        at = min(left // self.unit, len(self.total[0]) - 1)
        one = int(np.argmin(self.total[layers][at]))
        seconds = float(self.total[layers][at, one])
        if seconds == inf:
            return inf, ()
        found = []
        for layer in range(layers, 0, -1):
            found.append(int(self.allowed[one]))
            at, one = at - int(self.units[one]), int(self.before[layer][at, one])
        return seconds, tuple(found[::-1])

    def _next(self) -> None:
        """Adds a layer: the total of every memory and strategy, and the strategy of the layer before it."""
        last, rows = self.total[-1], np.arange(len(self.total[0]))
        change = self.change if len(self.total) > 1 else 0.0
        any_of = last.argmin(axis=1)
        least = last[rows, any_of] + change
        total, before = np.full(last.shape, inf), np.zeros(last.shape, np.int16)
        for mine in self.layouts:
            same = mine[last[:, mine].argmin(axis=1)]
            stays = last[rows, same] <= least
            value, which = np.where(stays, last[rows, same], least), np.where(stays, same, any_of)
            for one in mine.tolist():
                needs = int(self.units[one])
                if needs < len(rows):
                    total[needs:, one] = self.seconds[one] + value[: len(rows) - needs]
                    before[needs:, one] = which[: len(rows) - needs]
        self.total.append(total)
        self.before.append(before)
