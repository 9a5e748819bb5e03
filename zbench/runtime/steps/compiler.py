"""Makes one process's instructions of a step's templates. Pure.

Every process goes through a template's operations in their one order and takes of each what the places it holds have a
part in; what it sends, and tensor parallelism's exchanges, go ahead of computes that have nothing to do with them
(zbench.runtime.steps.early). As an operation uses only what earlier ones made, the earliest message that is not there
can always go on, and nothing deadlocks. A gather is its transfers from the homes of cells to the members, a reduction
those from the members that have contributions to the homes: as many bytes as the collectives of libraries move, and
each counted.

Places are counted from an instance's first one, or from the stages of all pipelines that have its layer: a template is
compiled once for every start that it is played from, and instructions have the places that are meant. A process takes
no part in instances of other stages than its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.links import Lanes
from zbench.runtime.steps.early import with_early_exchanges
from zbench.runtime.steps.instructions import (
    Cell,
    Cells,
    Compute,
    Exchange,
    Forget,
    Instruction,
    Parcel,
    Parts,
    RelayedShare,
    Start,
    TemplateProgram,
)
from zbench.runtime.steps.last_use import with_last_uses
from zbench.runtime.steps.presence import Presence, pairs_of
from zbench.step.form import READ, WHOLE
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, PURPOSE_OF, REDUCE, SEND, homes_among
from zbench.step.template import ACROSS, AT_HOME, Instance, Items, Step, Template


def compile_template(
    step: Step,
    template: Template,
    process: int,
    holder: Sequence[int],
    where: Sequence[int],
    seconds: Floats | None = None,
    lanes: Lanes | None = None,
    apart: bool = False,
) -> TemplateProgram:
    """Returns a template's instructions for a process. holder: the process of every place; where: the place that each
    one is that the template may name, as of zbench.step.template.Step.where. seconds: of its operations, that computes
    take a paced device; None: none is paced. lanes: over which processes spread transfers as operations say; None: all
    go straight from end to end. apart: as of zbench.runtime.steps.early."""
    made = _Compiler(step, template, process, holder, where, lanes)
    needs, leaves = (made.held_items(items) for items in (template.needs, template.leaves))
    if not needs and not leaves and not made.takes_part():
        return TemplateProgram(template.name, template.layout, ())
    table = template.operations.table
    each = [0.0] * len(table) if seconds is None else seconds.tolist()
    rows = enumerate(zip(table.tolist(), each, strict=True))
    found = [one for number, (row, took) in rows for one in made.instructions(number, row, took)]
    ordered = with_early_exchanges(found, apart)
    return TemplateProgram(template.name, template.layout, with_last_uses(ordered, needs, leaves))


@dataclass
class _Compiler:
    """One template, played from one start, for one process."""

    step: Step
    template: Template
    process: int
    holder: Sequence[int]
    where: Sequence[int]
    lanes: Lanes | None = None

    def __post_init__(self) -> None:
        self.layout: StepLayout = self.step.layouts[self.template.layout]
        self.presence = Presence.of(self.step, self.template)

    def _process(self, place: int) -> int:
        """Returns the process that holds a place as the template counts it."""
        return self.holder[self.where[place]]

    def takes_part(self) -> bool:
        """Returns whether the process holds a place that operations name."""
        ops = self.template.operations
        collective = np.isin(ops.kind, (GATHER, REDUCE))
        places = [ops.src[~collective].astype(np.int64), ops.dst[np.isin(ops.kind, (SEND, MOVE))].astype(np.int64)]
        places += [self.layout.lists[members] for members in np.unique(ops.dst[collective]).tolist()]
        for tensor, members, every in np.unique(ops.table[collective][:, [1, 3, 2]], axis=0).tolist():
            places.append(homes_among(self.layout.tensors[tensor].home, self.layout.lists[members], every))
        named = np.unique(np.concatenate(places))
        spread = np.unique(ops.table[ops.via >= 0][:, [2, 3, 11]], axis=0).tolist()
        return any(self._process(place) == self.process for place in named[named >= 0].tolist()) or any(
            self.process in way for src, dst, via in spread for way in self._ways(src, dst, via)
        )

    def _ways(self, src: int, dst: int, via: int) -> list[tuple[int, ...]]:
        """Returns the processes that each share of a transfer passes; one way without processes between its ends where
        it goes straight. via: its list of lanes, -1: none."""
        ends = self.where[src], self.where[dst]
        if self.lanes is None or via < 0 or max(ends) >= self.step.num_gpus:
            return [(self.holder[ends[0]], self.holder[ends[1]])]
        ways = self.lanes.ways(*ends, self.layout.lists[via].tolist())
        return [tuple(self.holder[gpu] for gpu in way) for way in ways]

    def instructions(self, number: int, row: list[int], seconds: float) -> list[Instruction]:
        """Returns the instructions of an operation: one, or none where this process has no part in it. number: of the
        operation; seconds: of a compute on a paced device."""
        kind, what, src = row[:3]
        if kind == COMPUTE:
            writes = tuple(self._references(row, results=True))
            self.presence.follow(row, writes)
            if self._process(src) != self.process:
                return []
            reads = tuple(self._references(row, results=False))
            return [Compute(self.where[src], what, self._slots(row), reads, writes, seconds, number)]
        exchange = self._exchange(number, row)
        self.presence.follow(row, ())
        if kind == DROP:
            if self._process(src) != self.process:
                return []
            layer = 0 if self.layout.tensors[what].layers == "none" else row[7]
            cells = self._pairs(what, pairs_of(self.layout, what, row[4:6]))
            return [Forget(self.where[src], what, layer, tuple(cells))]
        return [exchange] if exchange.sends or exchange.receives or exchange.copies or exchange.relays else []

    def held_items(self, items: Items) -> dict[tuple[int, int, int], set[Cell]]:
        """Returns the cells that a contract names on places of this process, by (place, tensor, offset)."""
        found: dict[tuple[int, int, int], set[Cell]] = {}
        for tensor, layer, places, list0, list1, *_ in items.rows():
            cells = pairs_of(self.layout, tensor, (list0, list1))
            home = self.layout.tensors[tensor].home[cells]
            layer = 0 if self.layout.tensors[tensor].layers == "none" else layer
            of_list = [] if places == AT_HOME else self.layout.lists[places].tolist()
            for place, there in enumerate(self.where):
                if there < len(self.holder) and self.holder[there] == self.process:
                    mine = cells[home == place] if places == AT_HOME else cells if place in of_list else cells[:0]
                    if len(mine):
                        key = (there, tensor, layer)
                        found.setdefault(key, set()).update(self._pairs(tensor, mine))
        return found

    def _pairs(self, tensor: int, cells: Ints) -> list[Cell]:
        width = self.layout.shape(tensor)[1]
        return [(int(cell) // width, int(cell) % width) for cell in cells]

    def _slots(self, row: list[int]) -> tuple[Parts, ...]:
        """Returns the parts of every slot of a compute."""
        formula = self.layout.formulas[row[1]]
        return tuple(tuple(self.layout.lists[which].tolist()) for which in row[4 : 4 + len(formula.slots)])

    def _references(self, row: list[int], results: bool) -> Iterator[Cells]:
        """Yields the cells of the operands of a compute, or of its results."""
        what, bound, slots = row[1], self.layout.bound, self._slots(row)
        for one in bound.rows[bound.offsets[what] : bound.offsets[what + 1]].tolist():
            if (one[0] != READ) == results:
                yield self._named(one, slots, row[7])

    def _named(self, row: list[int], slots: tuple[Parts, ...], layer: int) -> Cells:
        """Returns the cells of a reference, as a row of the layout's bound formulas has it."""
        _, tensor, after, *axes = row
        shape, found = self.layout.shape(tensor), []
        for size, slot, number in zip(shape, axes[::2], axes[1::2], strict=True):
            if slot == WHOLE:
                found.append(tuple(range(size)))
            elif number < 0:
                found.append(slots[slot])
            else:
                found.append(tuple(np.unique(self.layout.maps[number].part[list(slots[slot])]).tolist()))
        offset = 0 if self.layout.tensors[tensor].layers == "none" else layer + after
        amounts = self.layout.tensors[tensor].amounts
        if amounts is None:
            return Cells(tensor, offset, found[0], found[1])
        some = [(a, b) for a in found[0] for b in found[1] if amounts[a * shape[1] + b]]
        return Cells(tensor, offset, found[0], found[1], tuple(some))

    def _exchange(self, number: int, row: list[int]) -> Exchange:
        kind, tensor, *_ = row
        layer = 0 if self.layout.tensors[tensor].layers == "none" else row[7]
        sends: list[Parcel] = []
        receives: list[Parcel] = []
        copies: list[Parcel] = []
        relays: list[RelayedShare] = []
        for src, dst, cells in self._transfers(row) if kind != DROP else ():
            ways = self._ways(src, dst, row[11] if kind in (SEND, MOVE) else -1)
            one, other = ways[0][0], ways[0][-1]
            if not any(self.process in way for way in ways):
                continue
            ends, spread = (self.where[src], self.where[dst]), len(ways) > 1 or len(ways[0]) > 2
            for block in blocks(self._pairs(tensor, cells)):
                whole = Cells(tensor, layer, *block)
                if one == other:
                    copies.append(Parcel(whole, *ends, one))
                elif one == self.process:
                    sends.append(Parcel(whole, *ends, other, tuple(way[1] for way in ways) if spread else ()))
                elif other == self.process:
                    receives.append(Parcel(whole, *ends, one, tuple(way[-2] for way in ways) if spread else ()))
                else:
                    for part, way in enumerate(ways):
                        if self.process in way:
                            at = way.index(self.process)
                            passed = way[at - 1], way[at], way[at + 1]
                            relays.append(RelayedShare(whole, part, len(ways), passed, at == 1))
        takes = kind in (MOVE, REDUCE)
        encoding = self.step.encodings[row[10]] if row[10] >= 0 else None
        purpose = int(PURPOSE_OF[kind, row[8]])
        return Exchange(purpose, encoding, takes, tuple(sends), tuple(receives), tuple(copies), number, tuple(relays))

    def _transfers(self, row: list[int]) -> Iterator[tuple[int, int, Ints]]:
        """Yields (source, destination, numbers of cells) of what an operation moves, in the same order everywhere."""
        kind, tensor, src, dst, list0, list1, _, layer = row[:8]
        cells = pairs_of(self.layout, tensor, (list0, list1))
        if kind in (SEND, MOVE):
            yield src, dst, cells
            return
        homes, held = homes_among(self.layout.tensors[tensor].home[cells], self.layout.lists[dst], src), None
        if kind == REDUCE:
            held = self.presence.of_tensor(tensor, layer)
        for home in np.unique(homes).tolist():
            mine = cells[homes == home]
            for member in self.layout.lists[dst].tolist():
                if member == home:
                    continue
                if held is None:
                    yield home, member, mine
                elif held[member, mine].any():
                    yield member, home, mine[held[member, mine]]


def blocks(cells: Sequence[Cell]) -> list[tuple[Parts, Parts]]:
    """Returns cells as few pairs of lists of which each has all pairs: rows with the same columns are one."""
    rows: dict[int, list[int]] = {}
    for a, b in cells:
        rows.setdefault(a, []).append(b)
    alike: dict[Parts, list[int]] = {}
    for a, columns in rows.items():
        alike.setdefault(tuple(columns), []).append(a)
    return [(tuple(same), columns) for columns, same in alike.items()]


def start_of(step: Step, instance: Instance, layer: int) -> Start:
    """Returns where an instance is played from for a layer: its place; or, across pipelines, ACROSS and by how many
    places the stage that has the layer stands after the first of each."""
    if instance.place != ACROSS:
        return (instance.place,)
    return (ACROSS, *step.shifts[:, min(max(layer, 0), step.num_layers)].tolist())


def starts_of(step: Step) -> dict[tuple[int, Start], list[int]]:
    """Returns, for every template and start that it is played from, the place that each one is that it may name."""
    played = {
        (one.template, start_of(step, one, layer)): (one.place, layer) for one in step.order for layer in one.layers
    }
    return {key: step.where(*one).tolist() for key, one in played.items()}
