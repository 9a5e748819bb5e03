"""Templates of a step, their contracts, and the order in which a step plays instances of them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.degrees import SCALE_BYTES
from zbench.step.layout import StepLayout
from zbench.step.operations import Column32, Operations, one_table
from zbench.step.tensor import NONE, Tensor

AT_HOME = -1  # in place of a list of places: each cell at its home
GONE = -2  # in place of a list of places of what a step begins or ends with: of these layers there is nothing
COMPLETE = -1  # in place of a count: a sum that is complete, and was read or is a copy of it
USUAL_BYTES = 2  # of a value, where an encoding does not say
ACROSS = -1  # in place of an instance's place: it is of all pipelines, each in the stage that has the layer


@dataclass(frozen=True)
class Items:
    """Items that a contract names, as columns int32 [entries]; each entry has all cells of two lists, on some places.

    tensor; layer: offset to the instance's. places: the number of a list of places, or AT_HOME. list0, list1: lists
    along the tensor's axes, -1 where it has none. count: contributions of a sum so far, or COMPLETE; 0 of others.
    version: of state, counted from the instance's. hops: how often the values were encoded with loss.
    """

    tensor: Column32
    layer: Column32
    places: Column32
    list0: Column32
    list1: Column32
    count: Column32
    version: Column32
    hops: Column32

    def __len__(self) -> int:
        return len(self.tensor)

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> "Items":
        """Makes items of rows, each with all columns in their order."""
        return Items.of_tables([np.array(rows, np.int64).reshape(-1, len(ITEM_COLUMNS))])

    @staticmethod
    def of_tables(tables: Sequence[Ints]) -> "Items":
        """Makes items of tables, [n, columns] each, one below another; what they come to is kept as `table`."""
        whole, columns = one_table(tables, len(ITEM_COLUMNS))
        found = Items(*columns)
        found.__dict__["table"] = whole
        return found

    def __getstate__(self) -> dict[str, Column32]:
        """Returns what goes to other processes: the columns, and not the table, which they can make."""
        return {name: getattr(self, name) for name in ITEM_COLUMNS}

    def take(self, index: Ints) -> "Items":
        """Returns the entries at `index` alone."""
        return Items(*(getattr(self, name)[index] for name in ITEM_COLUMNS))

    @cached_property
    def table(self) -> Ints:
        """The columns side by side, int64 [entries, columns]; whoever changes it makes a copy."""
        return np.stack([getattr(self, name) for name in ITEM_COLUMNS], axis=1).astype(np.int64)

    def rows(self) -> list[list[int]]:
        """Returns the entries as rows."""
        found: list[list[int]] = self.table.tolist()
        return found


ITEM_COLUMNS = tuple(field.name for field in fields(Items))


def entry_table(tensor: int, places: Ints, lists: Sequence[Ints], count: int) -> Ints:
    """Returns entries of a tensor as rows, int64 [len(places), columns of Items]. places: numbers of lists of places;
    lists: along the tensor's axes, a column each; count: of all."""
    table = np.zeros((len(places), len(ITEM_COLUMNS)), np.int64)
    table[:, 0], table[:, 2], table[:, 3:5], table[:, 5] = tensor, places, -1, count
    for at, column in enumerate(lists):
        table[:, 3 + at] = column
    return table


@dataclass(frozen=True)
class Template:
    """Operations that a step repeats, with the contract that they are proven against.

    layout: the number of its layout. formulas: numbers of those that it computes, every part once.
    needs: the items that are there when it begins, all there is of each tensor and layer that is named here or touched.
    leaves: what is there of these afterwards; copies that are not named are gone, sums that are not named are a fault.
    """

    name: str
    layout: int
    operations: Operations
    formulas: tuple[int, ...]
    needs: Items
    leaves: Items


@dataclass(frozen=True)
class Instance:
    """A template played for `repeats` layers, from `layer` on by `stride` (1, or -1 in a backward).

    version: how many updates of its parameters there were before it in the step. place: added to all places that the
    template names, and to its cells' homes: a template serves every stage of a pipeline. ACROSS: places are named as
    they are for the first layer, and each is counted from the stage of its own pipeline that has the instance's layer.
    """

    template: int
    layer: int
    repeats: int = 1
    stride: int = 1
    version: int = 0
    place: int = 0

    @property
    def layers(self) -> range:
        """The layers that it is played for, in order."""
        return range(self.layer, self.layer + self.stride * self.repeats, self.stride)

    def parts(self, cuts: Sequence[int]) -> "list[Instance]":
        """Returns instances for its layers, in order, none of which has layers on both sides of a cut."""
        found, start = list[Instance](), 0
        for end in range(1, self.repeats + 1):
            if end == self.repeats or max(self.layers[end - 1], self.layers[end]) in cuts:
                found.append(replace(self, layer=self.layers[start], repeats=end - start))
                start = end
        return found


@dataclass(frozen=True)
class StageStart:
    """A stage of a pipeline begins with a layer and a place. One that begins with layer 0 begins a pipeline."""

    layer: int
    place: int


# Sums of values that came encoded often lie halfway between two codes or scales (float32), where the order of the
# sum would decide. So all are first taken away from zero by this much, far more than the order of a sum changes.
AWAY_FROM_TIES = 1 + 2**-40


@dataclass(frozen=True)
class Encoding:
    """A way for a transfer to carry its values in fewer bits, cell by cell. lossy: whether they come back changed. of:
    bytes of a value as it is computed with. block: values of a cell that share a scale, 0: there are no scales."""

    name: str
    bits: int
    lossy: bool
    of: int = USUAL_BYTES
    block: int = 0

    def cell_bytes(self, plain: Ints) -> Ints:
        """Returns the bytes of encoded cells. plain: of the same cells as they are computed with."""
        values = plain // self.of
        scales = -(-values // self.block) if self.block else 0 * values
        return np.asarray(-(-values * self.bits // 8) + SCALE_BYTES * scales, np.int64)

    @property
    def ratio(self) -> float:
        """The bytes of a value as it is computed with over those that it has encoded, its share of a scale included."""
        return self.of / (self.bits / 8 + (SCALE_BYTES / self.block if self.block else 0.0))


@dataclass(frozen=True)
class Step:
    """A training step: instances of templates in one order.

    num_gpus, num_hosts: places are the GPUs' memories and after them host memories: the nodes', or, where layers are in
    stages, each GPU's part of its node's, which stands as far from a stage's first as the GPU. layouts: one a
    micro-batch, and maybe one of what is of all pipelines. begins, ends: what is there of the step's own tensors before
    and after it, told with the lists and tensors of layouts[0]: an entry's layer is the first one that it is of, and
    it is of those that follow, up to the next first one that the tensor has entries of (`layers_of_entries`); places of
    what is of a layer are told as they are for the first one, and counted from the stage of their pipeline that has the
    layer.
    stages: of every pipeline, one after another, by their first layers, ascending; layers of another stage than its own
    are not there for an instance, but for the border to it. Pipelines stand side by side, by their first places: each
    has all layers, and the places up to the next one.
    leading: how many layers, the first ones, are of another kind than those that follow: some tensors are of one kind's
    layers alone (zbench.step.tensor.LAYERS).
    """

    num_gpus: int
    num_hosts: int
    num_layers: int
    encodings: tuple[Encoding, ...]
    layouts: tuple[StepLayout, ...]
    templates: tuple[Template, ...]
    order: tuple[Instance, ...]
    begins: Items
    ends: Items
    stages: tuple[StageStart, ...] = (StageStart(0, 0),)
    leading: int = 0

    @cached_property
    def same_layouts(self) -> tuple[int, ...]:
        """The number of the first layout that is the very one that each is: micro-batches that are alike have one."""
        first = dict[int, int]()
        return tuple(first.setdefault(id(one), number) for number, one in enumerate(self.layouts))

    @cached_property
    def pipelines(self) -> tuple[tuple[StageStart, ...], ...]:
        """The stages of every pipeline."""
        begin = [at for at, one in enumerate(self.stages) if one.layer == 0]
        return tuple(self.stages[a:b] for a, b in pairwise([*begin, len(self.stages)]))

    @cached_property
    def pipeline_of(self) -> Ints:
        """The pipeline of every place, int64 [places]: of a host memory that of its first GPU."""
        leads, hosts = [one[0].place for one in self.pipelines], np.arange(self.num_hosts)
        gpus = np.concatenate([np.arange(self.num_gpus), hosts * self.num_gpus // max(self.num_hosts, 1)])
        return np.asarray(np.searchsorted(leads, gpus, side="right") - 1, np.int64)

    @cached_property
    def layers_of_stages(self) -> Ints:
        """The first and the last layer of the stage of each layer and of what is after the last, int64 [pipelines,
        layers + 1, 2]."""
        found = np.zeros((len(self.pipelines), self.num_layers + 1, 2), np.int64)
        for number, stages in enumerate(self.pipelines):
            firsts = [one.layer for one in stages]
            last = [*(first - 1 for first in firsts[1:]), self.num_layers - 1]
            which = [max(bisect_right(firsts, layer) - 1, 0) for layer in range(self.num_layers + 1)]
            found[number] = [[firsts[at], last[at]] for at in which]
        return found

    @cached_property
    def shifts(self) -> Ints:
        """The places by which the stage of each layer, and of what is after the last, stands after the first of its
        pipeline, int64 [pipelines, layers + 1]."""
        found = np.zeros((len(self.pipelines), self.num_layers + 1), np.int64)
        for number, stages in enumerate(self.pipelines):
            for one in stages:
                found[number, one.layer :] = one.place - stages[0].place
        return found

    def layers_of_entries(self, items: Items) -> Ints:
        """Returns the first and the last layer that each entry of what the step begins or ends with is of, int64
        [entries, 2]; the last is before the first where there is none, both are 0 of what is of no layer."""
        spans = [one.layers_of(0, self.num_layers - 1, self.leading) for one in self.layouts[0].tensors]
        of_tensors = np.array(spans, np.int64).reshape(-1, 2)
        found = of_tensors[items.tensor]
        for tensor in np.unique(items.tensor[items.layer != 0]).tolist():
            mine = np.flatnonzero(items.tensor == tensor)
            firsts, which = np.unique(items.layer[mine], return_inverse=True)
            found[mine, 0] = np.maximum(found[mine, 0], firsts[which])
            found[mine, 1] = np.minimum(found[mine, 1], np.append(firsts[1:] - 1, of_tensors[tensor, 1])[which])
        return found

    def resting(self, items: Items) -> Iterator[tuple[list[int], int, int]]:
        """Yields (entry, first layer, last layer) of what the step begins or ends with."""
        for row, (first, last) in zip(items.rows(), self.layers_of_entries(items).tolist(), strict=True):
            if row[2] != GONE:
                yield row, first, last

    def where(self, place: int, layer: int) -> Ints:
        """Returns, for every place that a template may name, the one that it is for an instance played from `place` on,
        or ACROSS, for a layer, int64 [places]."""
        every = np.arange(self.num_places)
        if place != ACROSS:
            return every + place
        return np.asarray(every + self.shifts[self.pipeline_of, min(max(layer, 0), self.num_layers)], np.int64)

    def layer_exists(self, tensor: Tensor, layer: int, other: int, place: int = 0) -> bool:
        """Returns whether there is a tensor of layer `other` for an instance that is played for `layer`, from a place
        on: of layers of another stage there are the borders between both alone, and some tensors are of one kind of
        layers."""
        if tensor.layers == NONE:
            return True
        first, last = tensor.layers_of(*self.span(layer, place), self.leading)
        return first <= other <= last

    def span(self, layer: int, place: int = 0) -> tuple[int, int]:
        """Returns the first and the last layer of the stage that an instance is of which is played for a layer, from a
        place on; of one that is of all pipelines, all layers."""
        if place == ACROSS:
            return 0, self.num_layers - 1
        return self._spans[int(self.pipeline_of[place])][min(max(layer, 0), self.num_layers)]

    @cached_property
    def _spans(self) -> list[list[tuple[int, int]]]:
        found: list[list[list[int]]] = self.layers_of_stages.tolist()
        return [[(first, last) for first, last in one] for one in found]

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """The first layers of stages of any pipeline, and of layers that play other templates, or are of another kind,
        than those before."""
        stages = {one.layer for one in self.stages} | ({self.leading} if self.leading else set())
        numbers, found = self._runs(sorted(stages)), set(stages)
        layers: dict[int, set[int]] = {}
        for run, one in zip(numbers, self.order, strict=True):
            layers.setdefault(run, set()).update(one.layers)
        for mine in layers.values():
            found |= {min(mine), max(mine) + 1} if len(mine) > 1 else set()
        return tuple(sorted(one for one in found if one in stages or 0 < one < self.num_layers))

    @cached_property
    def runs(self) -> tuple[int, ...]:
        """The number of the run of each entry of the order: entries that play a template from one place on, in one
        version, each for layers of its own, are a run though others stand between them, as a backward is whose
        gradients are reduced several layers together. Layers on both sides of a cut are different runs."""
        return self._runs(self.cuts)

    def _runs(self, cuts: Sequence[int]) -> tuple[int, ...]:
        numbers: dict[tuple[int, int, int, int], int] = {}
        layers: list[set[int]] = []
        found = []
        for one in self.order:
            mine = set(one.layers)
            key = (one.template, one.place, one.version, bisect_right(cuts, min(mine)))
            if key not in numbers or layers[numbers[key]] & mine:
                numbers[key] = len(layers)
                layers.append(set())
            layers[numbers[key]] |= mine
            found.append(numbers[key])
        return tuple(found)

    @cached_property
    def turn_layers(self) -> int:
        """The most layers that an entry of a run of several entries has: after so many of a run's layers what is
        played repeats. 1 where every run is one entry."""
        of_run: dict[int, list[int]] = {}
        for run, one in zip(self.runs, self.order, strict=True):
            of_run.setdefault(run, []).append(one.repeats)
        return max([max(counts) for counts in of_run.values() if len(counts) > 1], default=1)

    @property
    def is_staged(self) -> bool:
        """Whether layers are in stages of a pipeline, each on places of its own."""
        return len(self.stages) > 1 or any(one.place for one in self.order)

    @property
    def num_places(self) -> int:
        """The number of memories that items may be in."""
        return self.num_gpus + self.num_hosts

    def place(self, number: int) -> str:
        """Returns what a place is called."""
        if number < self.num_gpus:
            return f"GPU {number}"
        return f"host memory {number - self.num_gpus}"

    @cached_property
    def num_operations(self) -> int:
        """The number of operations that all instances together have."""
        return sum(len(self.templates[one.template].operations) * one.repeats for one in self.order)
