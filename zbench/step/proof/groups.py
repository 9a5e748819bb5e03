"""Groups of a contract: all items of one tensor and layer, numbered, so that equal groups have one number."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.proof.sentences import item_name
from zbench.step.proof.tables import ItemRows
from zbench.step.template import COMPLETE, Step

_COLUMNS = 5  # of a group's items: place, cell, count, version, hops; place and version from the group's first on
Where = tuple[int, int, int]  # a tensor of a layout, its layer, the layout


@dataclass(frozen=True)
class ItemGroup:
    """All there is of a tensor of a layer. number: of its items, among those that are alike but for the first place
    and the first version."""

    number: int
    version: int
    place: int


@dataclass(frozen=True)
class Groups:
    """The groups that were met so far: the number of each by its items, and the items of each as bytes."""

    numbers: dict[bytes, int] = field(default_factory=dict)
    items: list[bytes] = field(default_factory=list)

    def of(self, rows: ItemRows) -> Iterator[tuple[tuple[int, int], ItemGroup]]:
        """Yields ((tensor, layer offset), group) for the items of a contract."""
        starts = np.flatnonzero(np.diff(rows.tensor, prepend=-1) | np.diff(rows.layer, prepend=-99))
        if not len(starts):
            return
        sizes = np.diff(starts, append=len(rows.place))
        place, version = (np.minimum.reduceat(column, starts) for column in (rows.place, rows.version))
        table = np.empty((len(rows.place), _COLUMNS), np.int32)
        table[:, 0] = rows.place - np.repeat(place, sizes)
        table[:, 1], table[:, 2], table[:, 4] = rows.cell, rows.contributions, rows.hops
        table[:, 3] = rows.version - np.repeat(version, sizes)
        whole, width = table.tobytes(), 4 * _COLUMNS
        tensors, layers = rows.tensor[starts].tolist(), rows.layer[starts].tolist()
        for at, (begin, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            key = whole[begin * width : (begin + size) * width]
            number = self.numbers.setdefault(key, len(self.items))
            if number == len(self.items):
                self.items.append(key)
            yield (tensors[at], layers[at]), ItemGroup(number, int(version[at]), int(place[at]))

    def group(self, row: Ints) -> ItemGroup | None:
        """Returns the group of (number, version, place); a number of -1 is none."""
        return ItemGroup(*row.tolist()) if row[0] >= 0 else None

    def table(self, group: ItemGroup | None) -> dict[tuple[int, int], list[int]]:
        """Returns the items of a group: by (place, cell) their count, version and hops."""
        if group is None:
            return {}
        table = np.frombuffer(self.items[group.number], np.int32).reshape(-1, _COLUMNS).astype(np.int64)
        table += [group.place, 0, 0, group.version, 0]
        return {(row[0], row[1]): row[2:] for row in table.tolist()}


def slots_of(step: Step) -> list[tuple[int, ...]]:
    """Returns, for every tensor of every layout, its number among all tensors of the step: those of the step have the
    same in all layouts."""
    shared: dict[str, int] = {}
    count, found = 0, []
    for layout in step.layouts:
        slots = []
        for at, tensor in enumerate(layout.tensors):
            if not layout.of_batch(at) and tensor.name in shared:
                slots.append(shared[tensor.name])
                continue
            if not layout.of_batch(at):
                shared[tensor.name] = count
            slots.append(count)
            count += 1
        found.append(tuple(slots))
    return found


def named(step: Step, where: Where) -> str:
    """Names a tensor with its layer and micro-batch."""
    tensor, layer, number = where
    layout = step.layouts[number]
    batch = f", micro-batch {number}" if layout.of_batch(tensor) else ""
    return f"{layout.tensors[tensor].name} of layer {layer}{batch}"


def difference_word(step: Step, groups: Groups, where: Where, have: ItemGroup | None, want: ItemGroup | None) -> str:
    """Says how what is there of a tensor and layer differs from what is needed."""
    tensor, _, number = where
    layout, name = step.layouts[number], named(step, where)
    if want is None:
        return f"touches {name} and does not need it, but it is there"
    if have is None:
        return f"needs {name}, and nothing of it is there"
    first, second = groups.table(want), groups.table(have)
    for place, cell in sorted(first.keys() | second.keys()):
        a, b = first.get((place, cell)), second.get((place, cell))
        if a != b:
            what = item_name(step, layout, tensor, 0, place, cell)
            return f"needs {name}: {what} has to be {_told(layout, tensor, a)} and is {_told(layout, tensor, b)}"
    raise AssertionError("groups with the same items have the same number")


def _told(layout: StepLayout, tensor: int, item: list[int] | None) -> str:
    """Returns what is known of an item as words."""
    if item is None:
        return "absent"
    count, version, hops = item
    words = ["there"]
    if count:
        words.append("complete" if count == COMPLETE else f"with {count} contributions")
    if layout.tensors[tensor].nature == "state":
        words.append(f"after update {version}")
    if hops:
        words.append(f"after {hops} lossy hops")
    return ", ".join(words)
