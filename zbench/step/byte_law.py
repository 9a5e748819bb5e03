"""The byte law of a step: what every GPU sends and receives, by what for, counted from its columns alone.

It shares no code with what runs steps. A gather brings cells from their homes to the other members; a reduction takes
what members have contributed to the homes. Cells are as large as the step says, and encoded
ones as their encoding has them, scales included. What is of a layer that is not there
for an instance, or of another stage, does not happen. Places are counted from an instance's first one, or from the
stages of their pipelines that have its layer.

Of rows that are counted while a step runs the step says how many there are at most. What routers chose says the rest:
with the rows of every layer the law is to the byte again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.links import Lanes, share
from zbench.step.expert_cut import ExpertCut
from zbench.step.formula import Formula, Reference
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, PURPOSE_OF, QUEUES, SEND
from zbench.step.template import ACROSS, AT_HOME, Items, StageStart, Step, Template
from zbench.step.tensor import Tensor

Bytes = dict[str, tuple[int, int]]  # sent, received, by what for, a name of QUEUES
Moved = tuple[int, int, int, int, int]  # tensor, offset of its layer, purpose, source, destination
Chosen = Mapping[tuple[int, int, int], Sequence[int]]  # by layout, layer and part of a: the rows of every expert
Rows = Mapping[tuple[int, int], Ints]  # by layout and layer: rows, int64 [parts of a, experts]
Held = set[tuple[int, int, int, int]]  # tensor, offset of its layer, cell, place


def chosen_rows(told: Iterable[Chosen]) -> Rows:
    """Returns the rows of seats with a token that processes tell, each of the parts at home on it."""
    every = {key: rows for one in told for key, rows in one.items()}
    layers = {key[:2] for key in every}
    return {
        (layout, layer): np.array([every[key] for key in sorted(every) if key[:2] == (layout, layer)], np.int64)
        for layout, layer in layers
    }


def stated_bytes(step: Step, rows: Rows | None = None, lanes: Lanes | None = None) -> list[Bytes]:
    """Returns the bytes of every GPU, host memories counted with the first GPU of their node. rows: of seats with a
    token; None: as many as the step has at most. lanes: over which GPUs spread transfers as operations say, so that
    those between the ends receive and send shares, too; None: all go straight."""
    found: list[dict[str, list[int]]] = [defaultdict(lambda: [0, 0]) for _ in range(step.num_gpus)]
    of_template = [_of_template(step, template, rows is not None) for template in step.templates]
    for instance in step.order:
        number = step.templates[instance.template].layout
        layout, (moved, counted) = step.layouts[number], of_template[instance.template]
        for layer in instance.layers:
            sizes = list(moved.items())
            for key, cells in counted.items():
                assert rows is not None, "they are counted where rows are given"
                if (number, layer + key[1]) in rows:  # else there is no such layer
                    sizes.append((key, int(_counted(layout, key[0], rows[number, layer + key[1]])[cells].sum())))
            for (tensor, offset, purpose, src, dst), size in sizes:
                if not size:
                    continue
                if _is_there(step, layout.tensors[tensor], instance.place, (layer, layer + offset)):
                    found[_gpu(step, _shifted(step, src, instance.place, layer))][QUEUES[purpose]][0] += size
                    found[_gpu(step, _shifted(step, dst, instance.place, layer))][QUEUES[purpose]][1] += size
    if lanes is not None:
        _add_relayed(step, lanes, found)
    return [{name: (sent, received) for name, (sent, received) in one.items()} for one in found]


def _add_relayed(step: Step, lanes: Lanes, found: Sequence[dict[str, list[int]]]) -> None:
    """Adds what GPUs pass on for others, received and sent, of transfers over several NICs."""
    for instance in step.order:
        template = step.templates[instance.template]
        layout, operations = step.layouts[template.layout], template.operations
        for row in operations.table[operations.via >= 0].tolist():
            kind, tensor, src, dst, *lists = row[:6]
            size = int(layout.tensors[tensor].cell_bytes(layout.index)[list(_cells(layout, tensor, lists))].sum())
            over, purpose = layout.lists[row[11]].tolist(), QUEUES[PURPOSE_OF[kind, row[8]]]
            for layer in instance.layers:
                if not _is_there(step, layout.tensors[tensor], instance.place, (layer, layer + row[7])):
                    continue
                one, other = (_shifted(step, place, instance.place, layer) for place in (src, dst))
                ways = lanes.ways(one, other, over)
                for part, way in enumerate(ways):
                    begin, end = share(size, part, len(ways))
                    for gpu in way[1:-1]:
                        found[gpu][purpose][0] += end - begin
                        found[gpu][purpose][1] += end - begin


def sent_by_purpose(each: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, int]:
    """Returns the bytes that all GPUs send together, by what for. each: the bytes of every GPU."""
    found = dict[str, int]()
    for one in each:
        for purpose, (sent, _) in one.items():
            found[purpose] = found.get(purpose, 0) + sent
    return found


def _pipeline(step: Step, place: int) -> list[StageStart]:
    """Returns the stages of the pipeline that a place is in."""
    lead = max(one.place for one in step.stages if one.layer == 0 and one.place <= place)
    number = next(at for at, one in enumerate(step.stages) if (one.layer, one.place) == (0, lead))
    end = next((at for at, one in enumerate(step.stages) if at > number and one.layer == 0), len(step.stages))
    return list(step.stages[number:end])


def _shifted(step: Step, place: int, start: int, layer: int) -> int:
    """Returns the place that one of a template is for an instance played from `start` on, or ACROSS, for a layer."""
    if start != ACROSS:
        return place + start
    stages = _pipeline(step, _gpu(step, place))
    return place + max(one.place for one in stages if one.layer <= layer) - stages[0].place


def _is_there(step: Step, tensor: Tensor, start: int, layers: tuple[int, int]) -> bool:
    """Returns whether there is a tensor of a layer for an instance played from `start` on. layers: the instance's, the
    tensor's."""
    layer, other = layers
    stages = [] if start == ACROSS else _pipeline(step, start)
    begin = max([one.layer for one in stages if one.layer <= layer], default=0)
    end = min([one.layer for one in stages if one.layer > layer], default=step.num_layers)
    if tensor.layers == "leading":
        end = min(end, step.leading)
    if tensor.layers == "following":
        begin = max(begin, step.leading)
    return tensor.layers == "none" or begin <= other < end + (tensor.layers == "border")


def _gpu(step: Step, place: int) -> int:
    """Returns the GPU that a place counts with."""
    return place if place < step.num_gpus else (place - step.num_gpus) * step.num_gpus // step.num_hosts


def _counted(layout: StepLayout, tensor: int, rows: Ints) -> Ints:
    """Returns the bytes of every cell of a tensor of slices, of groups of those with the same experts, or of experts or
    their parts, by the rows of experts."""
    maps = {(one.coarse, one.fine): one.part for one in layout.maps}
    slices, count = maps["k", "e"], len(layout.index["k"])
    experts = ExpertCut.of(layout.index, rows.shape[1]).experts
    if layout.tensors[tensor].axes[1] == "e":  # of activations that wait on hosts
        return np.asarray(layout.tensors[tensor].unit * rows[:, experts].reshape(-1))
    found = np.stack([rows[:, experts[slices == part]].sum(axis=1) for part in range(count)], axis=1)
    if layout.tensors[tensor].axes[1] == "n":
        found = found[:, np.unique(maps["n", "k"], return_index=True)[1]]
    return np.asarray(layout.tensors[tensor].unit * found.reshape(-1))


def _of_template(step: Step, template: Template, counts: bool) -> tuple[dict[Moved, int], dict[Moved, list[int]]]:
    """Returns the bytes that a template's operations move, and of tensors whose rows are counted while the step runs,
    if that `counts`, the cells that they move."""
    layout = step.layouts[template.layout]
    held: Held = set(_named(layout, template.needs))
    moved: dict[Moved, int] = defaultdict(int)
    counted: dict[Moved, list[int]] = defaultdict(list)
    for kind, what, src, dst, *rest in template.operations.table.tolist():
        lists, layer, purpose, encoding = rest[:3], rest[3], int(PURPOSE_OF[kind, rest[4]]), rest[6]
        if kind == COMPUTE:
            held |= set(_contributed(layout, layout.formulas[what], src, lists, layer))
            continue
        size = layout.tensors[what].cell_bytes(layout.index)
        size = step.encodings[encoding].cell_bytes(size) if encoding >= 0 else size
        for cell in _cells(layout, what, lists):
            if kind == DROP:
                held.discard((what, layer, cell, src))
                continue
            home = int(layout.tensors[what].home[cell])
            ends = [(src, dst)] if kind in (SEND, MOVE) else []
            members = layout.lists[dst].tolist() if kind not in (SEND, MOVE) else []
            if members and src > 0:  # each run of so many places has homes of its own
                home = members[0] - members[0] % src + home % src
            for member in members:
                ends.append((home, member) if kind == GATHER else (member, home))
            for a, b in ends:
                if a == b or (kind not in (SEND, MOVE, GATHER) and (what, layer, cell, a) not in held):
                    continue
                if counts and layout.tensors[what].counted_by:
                    counted[what, layer, purpose, a, b].append(cell)
                else:
                    moved[what, layer, purpose, a, b] += int(size[cell])
                held.add((what, layer, cell, b))
                if kind not in (SEND, GATHER):
                    held.discard((what, layer, cell, a))
    return moved, counted


def _cells(layout: StepLayout, tensor: int, lists: Sequence[int]) -> Iterator[int]:
    """Yields the numbers of the cells that two lists have."""
    width = layout.shape(tensor)[1]
    sides = [layout.lists[which].tolist() if which >= 0 else [0] for which in lists[:2]]
    yield from (a * width + b for a, b in product(*sides))


def _named(layout: StepLayout, items: Items) -> Iterator[tuple[int, int, int, int]]:
    """Yields (tensor, layer, cell, place) of a contract's items."""
    for tensor, layer, places, list0, list1, *_ in items.rows():
        for cell in _cells(layout, tensor, (list0, list1)):
            home = int(layout.tensors[tensor].home[cell])
            for place in [home] if places == AT_HOME else layout.lists[places].tolist():
                yield tensor, layer, cell, place


def _contributed(
    layout: StepLayout, formula: Formula, place: int, lists: Sequence[int], layer: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields (tensor, layer, cell, place) of the sums that a compute adds to."""
    if formula.action != "+=":
        return
    parts = dict(zip(formula.slots, (layout.lists[which].tolist() for which in lists if which >= 0), strict=True))
    for one in formula.results:
        tensor = layout.number[one.tensor]
        sides = [_side(layout, one, axis, parts) for axis in range(2)]
        width = layout.shape(tensor)[1]
        for a, b in product(*sides):
            yield tensor, layer + one.after, a * width + b, place


def _side(layout: StepLayout, one: Reference, axis: int, parts: dict[str, list[int]]) -> list[int]:
    """Returns the parts of a tensor along one axis that a result names."""
    tensor = layout.number[one.tensor]
    if axis >= len(one.axes) or one.axes[axis].slot == "*":
        return list(range(layout.shape(tensor)[axis]))
    slot = one.axes[axis].slot
    wanted, index = layout.tensors[tensor].axes[axis], layout.index_of(slot)
    if wanted == index:
        return parts[slot]
    of = next(found.part for found in layout.maps if (found.coarse, found.fine) == (wanted, index))
    return sorted({int(of[part]) for part in parts[slot]})
