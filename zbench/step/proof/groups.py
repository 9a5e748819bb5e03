"""Groups of a contract: all items of one tensor and layer, numbered, so that equal groups have one number."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED
from zbench.describe.units import with_noun
from zbench.step.layout import StepLayout
from zbench.step.proof.sentences import item_name
from zbench.step.proof.template_rows import ItemRows
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

    def of(self, items: ItemRows, contracts: Ints, pipeline_of: Ints) -> tuple[Ints, Ints]:
        """Returns the groups of contracts, int64 [groups, 6]: pipeline, tensor, layer offset, and an ItemGroup; and
        where those of each contract begin, with one more for the end.

        contracts: int64 [contracts, 3], from which item up to which one each has, and whether its groups are told apart
        by the pipelines of their places; else all are of the instance's, -1. pipeline_of: the pipeline of every place.
        """
        found, ends, starts, table = _heads(items, contracts, pipeline_of)
        whole, width, known = table.tobytes(), 4 * _COLUMNS, self.numbers
        numbers = list[int]()
        for begin, end in pairwise(starts.tolist()):
            key = whole[begin * width : end * width]
            number = known.setdefault(key, len(self.items))
            if number == len(self.items):
                self.items.append(key)
            numbers.append(number)
        found[:, 3] = numbers
        return found, ends

    def group(self, row: Ints) -> ItemGroup | None:
        """Returns the group of (number, version, place); a number of -1 is none."""
        return ItemGroup(*row.tolist()) if row[0] >= 0 else None

    def table(self, group: ItemGroup | None) -> dict[tuple[int, int], list[int]]:
        """Returns the items of a group: by (place, cell) their count, version and hops."""
        return {(row[0], row[1]): row[2:] for row in self._rows(group)}

    def doubled(self, group: ItemGroup | None) -> set[tuple[int, int]]:
        """Returns the items, (place, cell), that a group has more than once."""
        counts = Counter((row[0], row[1]) for row in self._rows(group))
        return {item for item, count in counts.items() if count > 1}

    def _rows(self, group: ItemGroup | None) -> list[list[int]]:
        if group is None:
            return []
        table = np.frombuffer(self.items[group.number], np.int32).reshape(-1, _COLUMNS).astype(np.int64)
        table += [group.place, 0, 0, group.version, 0]
        rows: list[list[int]] = table.tolist()
        return rows


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
    doubled = min(groups.doubled(want) | groups.doubled(have))  # all else is alike, and groups are told apart by it
    what = item_name(step, layout, tensor, 0, *doubled)
    return f"needs {name}: what the step begins or ends with names {what} twice"


def _told(layout: StepLayout, tensor: int, item: list[int] | None) -> str:
    """Returns what is known of an item as words."""
    if item is None:
        return "absent"
    count, version, hops = item
    words = []
    if count:
        words.append("complete" if count == COMPLETE else f"with {with_noun(count, 'contribution')}")
    if layout.tensors[tensor].nature == "state":
        words.append(f"after update {version}")
    if hops:
        words.append(f"after {with_noun(hops, 'lossy hop')}")
    return f"there {', '.join(words)}".rstrip()


@nb.njit(**ENTERED)
def _heads(items, contracts, pipeline_of):  # type: ignore[no-untyped-def]
    """Returns (pipeline, tensor, offset, 0, first version, first place) of the groups of contracts; where those of each
    contract begin; where the items of each group begin in a table; and this, the columns of a group's items, int32."""
    total, count, used = 0, 0, 0
    for begin, end, _ in contracts:
        total += end - begin
    found, ends = np.zeros((total, 6), np.int64), np.zeros(len(contracts) + 1, np.int64)
    starts, table = np.zeros(total + 1, np.int64), np.empty((total, _COLUMNS), np.int32)
    for number in range(len(contracts)):
        begin, stop, apart = contracts[number]
        while begin < stop:
            tensor, layer, end = items.tensor[begin], items.layer[begin], begin + 1
            while end < stop and items.tensor[end] == tensor and items.layer[end] == layer:
                end += 1
            middle = end  # where host memories begin, whose pipelines are those of the GPUs once more
            for row in range(begin + 1, end if apart else begin):
                if pipeline_of[items.place[row]] < pipeline_of[items.place[row - 1]]:
                    middle = row
                    break
            on_gpu, on_host = begin, middle
            while on_gpu < middle or on_host < end:
                row = on_gpu if on_gpu < middle else on_host
                if apart and on_host < end and pipeline_of[items.place[on_host]] < pipeline_of[items.place[row]]:
                    row = on_host
                pipeline = pipeline_of[items.place[row]] if apart else np.int64(-1)
                version, place, first = items.version[row], items.place[row], used
                for side in range(2):
                    row, last = (on_host, end) if side else (on_gpu, middle)
                    while row < last and (not apart or pipeline_of[items.place[row]] == pipeline):
                        version, place = min(version, items.version[row]), min(place, items.place[row])
                        table[used, 0], table[used, 1] = items.place[row], items.cell[row]
                        table[used, 2], table[used, 3] = items.contributions[row], items.version[row]
                        table[used, 4] = items.hops[row]
                        used, row = used + 1, row + 1
                    if side:
                        on_host = row
                    else:
                        on_gpu = row
                table[first:used, 0] -= place
                table[first:used, 3] -= version
                found[count, 0], found[count, 1], found[count, 2] = pipeline, tensor, layer
                found[count, 4], found[count, 5] = version, place
                count += 1
                starts[count] = used
            begin = end
        ends[number + 1] = count
    return found[:count], ends, starts[: count + 1], table
