"""Inputs of layers, or all activations that they keep, wait in host memory from forward to backward.

A pass over a built step. What a layer keeps is what its forward's contract leaves of it, whatever is recomputed.

- **Inputs** x, of layers that keep nothing else (recompute="full"): a forward sends its own x, which is there from the
  start, and the head brings the last layer's back.
- **Activations**, all that a layer keeps: a forward sends those of the layer before while it computes, as they are made
  until that one's last operation. The last layer's stay, as its backward comes next.

A backward brings what the layer before needs while it computes, so that it is there when that one's begins. So a GPU
has two layers' at a time. Copies to hosts are last in a template and copies from hosts first, which is the order that
the clock keeps between them and what a GPU computes (zbench.simulator.steps.dataflow.host_copies).

It may be the first layers alone, which are those whose items wait longest: each that stays on a GPU is gone before any
comes back. Then forwards that send and backwards that bring are templates of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.layers import EVERY_COUNT
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import SEND, Operations, operation_row
from zbench.step.template import AT_HOME, Instance, Items, Step, Template

Rows = list[list[int]]
INPUT = "x"
OFFLOADED = "offloaded"  # before the name of a template, where other layers' is another one
_FORWARD, _BACKWARD, _HEAD = "forward", "backward", "head"


def with_kept_on_hosts(step: Step, gpus_per_node: int, layers: Sequence[int], activations: bool = False) -> Step:
    """Returns a step in which what layers keep waits in host memory. layers: of each layout, how many first layers'.
    activations: all that they keep, of at most all layers but the last; else their inputs.

    Raises:
        ValueError: layers are in stages.
    """
    if step.is_staged or len(step.pipelines) > 1:
        what = "activations" if activations else "inputs"
        raise ValueError(f"memory.offload is {what} and layers are in stages of a pipeline; with these it takes none")
    num_hosts = -(-step.num_gpus // gpus_per_node)
    layouts, templates, order = [], list(step.templates), list(step.order)
    for number, layout in enumerate(step.layouts):
        sizes = {one.name: len(one) for one in layout.indices}
        lists = ListTable.of(layout.lists, sizes, step.num_gpus + num_hosts)
        own = [(at, one.name.split(".")[0]) for at, one in enumerate(step.templates) if one.layout == number]
        mine = {name: at for at, name in own}  # by name, whichever micro-batch it is of
        count = min(layers[number], step.num_layers - activations)
        of = _Waiting.of(step.templates[mine[_FORWARD]], layout, lists, (step.num_gpus, gpus_per_node), activations)
        above = 1 if activations else 0  # the layers above the last one on hosts whose forward sends
        changed = {_FORWARD: above, _BACKWARD: 1} | ({} if activations else {_HEAD: 0})
        for name, beyond in changed.items() if count else ():
            at = mine[name]
            template = of.changed(step.templates[at])
            if count + beyond >= step.num_layers:
                templates[at] = template
            elif name != _HEAD:
                order = _in_two(order, at, count + beyond, len(templates))
                templates.append(replace(template, name=f"{OFFLOADED}_{template.name}"))
        layouts.append(replace(layout, lists=lists.lists()))
    return replace(step, num_hosts=num_hosts, layouts=tuple(layouts), templates=tuple(templates), order=tuple(order))


def _in_two(order: Sequence[Instance], template: int, cut: int, below: int) -> list[Instance]:
    """Returns an order in which a template's instances of layers below a cut are another template's."""
    found = list[Instance]()
    for one in order:
        if one.template == template:
            found += [replace(part, template=below if part.layer < cut else template) for part in one.parts([cut])]
        else:
            found.append(one)
    return found


class _Cells(NamedTuple):
    """Cells of a tensor on a GPU. lists: along its axes, -1 where it has none. complete: the count of a contract's
    entry."""

    tensor: int
    gpu: int
    lists: tuple[int, int]
    complete: int


@dataclass(frozen=True)
class _Waiting:
    """The items of a micro-batch's layers that wait on hosts.

    kept: entries of contracts, of the layer's own; there: the same, GPU by GPU; sent: those of it that go to hosts,
    where two GPUs of a node have the same it is the first one's. num_gpus: places before hosts. behind: how many layers
    behind its own a forward's items to send are.
    """

    lists: ListTable
    kept: Rows
    there: tuple[_Cells, ...]
    sent: tuple[_Cells, ...]
    num_gpus: int
    gpus_per_node: int
    behind: int

    @staticmethod
    def of(
        forward: Template, layout: StepLayout, lists: ListTable, gpus: tuple[int, int], activations: bool
    ) -> "_Waiting":
        """Reads what a forward leaves of its own layer. gpus: all, and of a node."""
        leaves, names = forward.leaves, [one.name for one in layout.tensors]
        of_batch = np.array([layout.of_batch(at) if activations else name == INPUT for at, name in enumerate(names)])
        kept = leaves.take(np.flatnonzero(of_batch[leaves.tensor] & (leaves.layer == 0))).rows()
        there = [one for row in kept for one in _by_gpu(row, layout, lists)]
        # Whoever is sent rows of experts has to have their numbers before.
        there.sort(key=lambda one: (names[one.tensor] not in EVERY_COUNT, one.tensor, one.gpu))
        sent = tuple(_once_a_node(there, layout, lists, gpus[1]))
        return _Waiting(lists, kept, tuple(there), sent, *gpus, int(activations))

    def changed(self, template: Template) -> Template:
        """Returns a template of the micro-batch with what it sends to host memory, or brings from there."""
        needs, leaves, operations = template.needs.rows(), template.leaves.rows(), template.operations.table
        if template.name.split(".")[0] == _FORWARD:
            if self.behind:
                needs = [*needs, *self._on_gpus(-1)]
            else:
                own = {tuple(row) for row in self.kept}
                leaves = [row for row in leaves if tuple(row) not in own]
            tables, leaves = [operations, self._copies(-self.behind)], [*leaves, *self._at_hosts(-self.behind)]
        else:
            needs, leaves = [*needs, *self._at_hosts(-1)], [*leaves, *self._on_gpus(-1)]
            tables = [self._copies(-1, back=True), operations]
        return replace(
            template, operations=Operations.of_tables(tables), needs=Items.of(needs), leaves=Items.of(leaves)
        )

    def _host(self, gpu: int) -> int:
        return self.num_gpus + gpu // self.gpus_per_node

    def _copies(self, layer: int, back: bool = False) -> Ints:
        """Returns the copies from GPUs to host memories, or back, a layer's."""
        rows = []
        for one in self.there if back else self.sent:
            ends = (self._host(one.gpu), one.gpu) if back else (one.gpu, self._host(one.gpu))
            rows.append(operation_row(SEND, one.tensor, ends, one.lists, "host", layer))
        return Operations.of(rows).table

    def _on_gpus(self, layer: int) -> Rows:
        """Returns the entries of a layer's items on GPUs."""
        return [[row[0], layer, *row[2:]] for row in self.kept]

    def _at_hosts(self, layer: int) -> Rows:
        """Returns the entries of a layer's items in host memory."""
        return [
            [one.tensor, layer, self.lists.number(PLACE, [self._host(one.gpu)]), *one.lists, one.complete, 0, 0]
            for one in self.sent
        ]


def _by_gpu(row: Sequence[int], layout: StepLayout, lists: ListTable) -> Iterator[_Cells]:
    """Yields the cells of a contract's entry, GPU by GPU."""
    tensor, _, places, first, second, count, *_ = row
    if places != AT_HOME:
        for gpu in lists.rows[places].tolist():
            yield _Cells(tensor, gpu, (first, second), count)
        return
    (axis,), home = layout.tensors[tensor].axes, layout.tensors[tensor].home  # what is at home is of tokens alone
    for gpu in np.unique(home).tolist():
        yield _Cells(tensor, gpu, (lists.number(axis, np.flatnonzero(home == gpu)), -1), count)


def _once_a_node(there: Sequence[_Cells], layout: StepLayout, lists: ListTable, gpus_per_node: int) -> Iterator[_Cells]:
    """Yields cells without those that a GPU before on the same node has, too. there: by tensor and GPU in order."""
    at, gone = (-1, -1), np.zeros((0, 0), np.bool_)
    for one in there:
        axes = layout.tensors[one.tensor].axes
        if at != (one.tensor, one.gpu // gpus_per_node):
            at = one.tensor, one.gpu // gpus_per_node
            gone = np.zeros(layout.shape(one.tensor), np.bool_)
        sides = [lists.rows[which] if which >= 0 else np.zeros(1, np.int64) for which in one.lists]
        fresh = ~gone[np.ix_(*sides)]
        gone[np.ix_(*sides)] = True
        if fresh.all():
            yield one
            continue
        for parts, columns in _rectangles(fresh):
            inside = zip(sides, (parts, columns), one.lists, (*axes, ""), strict=False)
            numbers = [lists.number(axis, side[mine]) if which >= 0 else -1 for side, mine, which, axis in inside]
            yield one._replace(lists=(numbers[0], numbers[1]))


def _rectangles(cells: Flags) -> list[tuple[Ints, Ints]]:
    """Returns rows and columns of rectangles that have all cells that are set, each once: rows that are alike go
    together."""
    rows = dict[bytes, list[int]]()
    for number, row in enumerate(cells):
        if row.any():
            rows.setdefault(row.tobytes(), []).append(number)
    return [(np.array(alike), np.flatnonzero(cells[alike[0]])) for alike in rows.values()]
