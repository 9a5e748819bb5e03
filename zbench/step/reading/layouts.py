"""Reads the lines of a layout: indices, slots, maps, relations, tensors and formulas."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.units import with_noun
from zbench.step.formula import Formula, FormulaError, parse_formula
from zbench.step.index import Index, PartMap, Relation
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, MOST_LANES, PLACE, ListTable
from zbench.step.reading.scanner import MOST_AMOUNT, Scanner, TextFault
from zbench.step.tensor import LAYERS, MERGES, NATURES, Tensor

_MOST_VALUES = 10**12  # of a cell


@dataclass
class PartialLayout:
    """A layout while it is read."""

    places: int
    indices: list[Index] = field(default_factory=list)
    aliases: list[tuple[str, str]] = field(default_factory=list)
    maps: list[PartMap] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    formulas: list[Formula] = field(default_factory=list)
    named: dict[str, TextFault] = field(default_factory=dict)  # tensors of formulas, with the fault if there is none
    made: tuple[StepLayout, ListTable] | None = None

    def finished(self) -> tuple[StepLayout, ListTable]:
        """Returns the layout and its lists, once its lines are read."""
        if self.made is None:
            known = {one.name for one in self.tensors}
            for name, fault in self.named.items():
                if name not in known:
                    raise fault
            sizes = {one.name: len(one) for one in self.indices} | {PLACE: self.places, LANE: MOST_LANES}
            lists = ListTable(sizes)
            self.made = (
                StepLayout(
                    tuple(self.indices),
                    tuple(self.aliases),
                    tuple(self.maps),
                    tuple(self.relations),
                    tuple(self.tensors),
                    tuple(self.formulas),
                    lists.lists(),
                ),
                lists,
            )
        return self.made

    def index(self, scanner: Scanner) -> Index:
        """Takes the name of an index."""
        name = scanner.word("the name of an index")
        for one in self.indices:
            if one.name == name:
                return one
        raise scanner.fault(f"there is no index {name}", scanner.at - len(name))


def _index(part: PartialLayout, scanner: Scanner) -> None:
    name = scanner.word("the name of an index")
    of_batch = scanner.has("of batch")
    scanner.take(":")
    sizes = scanner.placed_numbers()
    for size, at in sizes:
        if size < 1:
            raise scanner.fault(f"index {name} has a part of size {size}; parts have at least 1", at)
    part.indices.append(Index(name, np.array([size for size, _ in sizes], np.int64), of_batch))


def _slot(part: PartialLayout, scanner: Scanner) -> None:
    slot = scanner.word("a slot")
    scanner.take("of")
    part.aliases.append((slot, part.index(scanner).name))


def _map(part: PartialLayout, scanner: Scanner) -> None:
    coarse = part.index(scanner)
    scanner.take("(")
    fine = part.index(scanner)
    scanner.take(")")
    scanner.take(":")
    numbers = _below(scanner, len(fine), len(coarse))
    part.maps.append(PartMap(coarse.name, fine.name, numbers))


def _below(scanner: Scanner, count: int, most: int) -> np.ndarray:
    """Takes numbers, and returns them if they are as many as they have to be, each from 0 on below `most`."""
    numbers = scanner.placed_numbers()
    right = f"{with_noun(count, 'number')} from 0 to {most - 1}"
    for number, at in numbers:
        if not 0 <= number < most:
            raise scanner.fault(f"it has {number} where it takes {right}", at)
    if len(numbers) != count:
        raise scanner.fault(f"it has {with_noun(len(numbers), 'number')} where it takes {right}", numbers[0][1])
    return np.array([number for number, _ in numbers], np.int64)


def _relation(part: PartialLayout, scanner: Scanner) -> None:
    name = scanner.word("the name of a relation")
    scanner.take("(")
    first = part.index(scanner)
    scanner.take(",")
    second = part.index(scanner)
    scanner.take(")")
    scanner.take(",")
    scanner.take("groups")
    one = _below(scanner, len(first), len(first))
    scanner.take("and")
    two = _below(scanner, len(second), len(second))
    scanner.take(":")
    rows = [scanner.spans(int(two.max()) + 1)]
    while scanner.has("|"):
        rows.append(scanner.spans(int(two.max()) + 1))
    if len(rows) != int(one.max()) + 1:
        raise scanner.fault(f"the relation has {len(rows)} rows for {int(one.max()) + 1} groups", scanner.at)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    part.relations.append(Relation(name, first.name, second.name, one, two, offsets, np.concatenate(rows)))


def _tensor(part: PartialLayout, scanner: Scanner) -> None:
    name = scanner.word("the name of a tensor")
    axes = []
    if scanner.has("["):
        axes.append(part.index(scanner))
        while scanner.take(",", "]") == ",":
            axes.append(part.index(scanner))
    if len(axes) > 2:
        raise scanner.fault("a tensor is cut along two indices at most", scanner.at)
    scanner.take(":")
    nature = scanner.take(*NATURES)
    merge = scanner.take(*MERGES[1:]) if nature == "sum" else ""
    scanner.take(",")
    layers = scanner.take(*LAYERS)
    scanner.take(",")
    unit = scanner.integer("a number of bytes", MOST_AMOUNT)
    if unit < 1:
        raise scanner.fault(f"a value has {unit} bytes; it takes at least 1", scanner.at - len(str(unit)))
    scanner.take("bytes")
    scanner.take(",")
    scanner.take("home")
    cells = int(np.prod([len(one) for one in axes]))
    home = np.full(cells, -1, np.int64) if scanner.has("none") else _below(scanner, cells, part.places)
    hops, amounts, counted_by = 0, None, ""
    while scanner.has(","):
        given = scanner.take("hops", "amounts", "counted")
        if given == "hops":
            hops = scanner.integer()
        elif given == "amounts":
            amounts = _below(scanner, cells, _MOST_VALUES)
        else:
            scanner.take("by")
            counted_by = scanner.word("the name of a tensor")
    names = tuple(one.name for one in axes)
    part.tensors.append(Tensor(name, names, nature, merge, layers, unit, home, hops, amounts, counted_by))


def _formula(part: PartialLayout, scanner: Scanner) -> None:
    words, at = scanner.rest()
    try:
        found = parse_formula(words)
    except FormulaError as error:
        raise scanner.fault(f"the formula {error.args[0]}", at + error.column - 1) from error
    known = {one.name for one in part.indices} | {slot for slot, _ in part.aliases}
    for slot in found.slots:
        if slot not in known:
            place = re.search(rf"[\[,(]\s*(?={slot}\s*[\],)])", words)
            raise scanner.fault(f"there is no index or slot {slot}", at + (place.end() if place else 0))
    for name in dict.fromkeys(one.tensor for one in (*found.results, *found.operands)):
        place = re.search(rf"(?<![\w~]){re.escape(name)}(?![\w~(])", words)
        part.named.setdefault(
            name, scanner.fault(f"there is no tensor {name} in this layout", at + (place.start() if place else 0))
        )
    part.formulas.append(found)


LINES: Mapping[str, Callable[[PartialLayout, Scanner], None]] = {
    "index": _index, "slot": _slot, "map": _map, "relation": _relation, "tensor": _tensor, "formula": _formula,
}  # fmt: skip
