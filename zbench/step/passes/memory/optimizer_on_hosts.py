"""Optimizer state in host memory, where a node's CPUs update parameters (ZeRO-Offload, arXiv 2101.06840).

A pass over a built step whose optimizer state is cut over all GPUs. The state of what has its home on a GPU is in its
node's host memory, and so is each such parameter once more, as GPUs have it: copies go from there. As soon as a layer's
gradients are complete, in the last micro-batch's backward, they are sent to the host; its CPUs update the layer, and
its parameters are sent back to their home. So a layer's transfers and its update are beside the backward of the layers
before it. Nothing is used before it is there: an update is the same, and no step late.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import SEND, Operations, operation_row
from zbench.step.template import AT_HOME, Instance, Items, Step, Template

_UPDATES, _ENDS, _HEAD = "optimizer", "optimizer_ends", "optimizer_head"  # templates; the last one is made here
_OF_HEAD = ("gl", "wh")  # parameters whose gradients are there before those of any layer
_LAST_OF_LAYERS, _LAST_OF_HEAD = ("backward", "kept_backward", "reduce"), ("head", "reduce_head")
_Rows = list[list[int]]


def with_optimizer_on_hosts(step: Step, gpus_per_node: int) -> Step:
    """Returns a step whose optimizer state is in host memory, and is updated there.

    Raises:
        ValueError: layers are in stages, or parameters are updated on several GPUs.
    """
    if step.is_staged or len(step.pipelines) > 1:
        raise ValueError("memory.offload has optimizer and layers are in stages of a pipeline; with these it takes none")
    num_hosts = -(-step.num_gpus // gpus_per_node)
    layouts, templates = list(step.layouts), list(step.templates)
    begins, ends = step.begins, step.ends
    for number, layout in enumerate(step.layouts):
        sizes = {one.name: len(one) for one in layout.indices}
        lists = ListTable.of(layout.lists, sizes, step.num_gpus + num_hosts)
        of = _OnHosts(layout, lists, step.num_gpus, gpus_per_node)
        for at, template in enumerate(templates):
            if template.layout == number:
                templates[at] = of.changed(template)
        if number == 0:
            begins, ends = of.entries(begins), of.entries(ends)
            updates = next(at for at, one in enumerate(templates) if one.name == _UPDATES)
            rest = next(at for at, one in enumerate(templates) if one.name == _ENDS)
            early, templates[rest] = of.divided(templates[rest])
        layouts[number] = replace(layout, lists=lists.lists())
    order = _ordered(step, templates, updates)
    if early is not None:
        last = max(at for at, one in enumerate(order) if _base(templates[one.template]) in _LAST_OF_HEAD)
        order.insert(last + 1, Instance(len(templates), 0))
        templates.append(early)
    return replace(
        step,
        num_hosts=num_hosts,
        layouts=tuple(layouts),
        templates=tuple(templates),
        order=tuple(order),
        begins=begins,
        ends=ends,
    )


def _base(template: Template) -> str:
    """Returns the name of a template, whichever micro-batch it is of."""
    return template.name.split(".")[0]


def _ordered(step: Step, templates: Sequence[Template], updates: int) -> list[Instance]:
    """Returns a step's order with the updates of layers where their gradients are complete. updates: the template."""
    last: dict[int, int] = {}  # by layer: the entry with which its gradients are complete
    for entry, one in enumerate(step.order):
        if _base(templates[one.template]) in _LAST_OF_LAYERS:
            last |= dict.fromkeys(one.layers, entry)
    found = []
    for entry, one in enumerate(step.order):
        if one.template == updates:
            continue
        done = [layer for layer in one.layers if last.get(layer) == entry]
        if _base(templates[one.template]) == "reduce" or not done:  # a bucket's reductions are one after another
            found += [one, *([replace(one, template=updates)] if done else [])]
            continue
        assert len(done) == one.repeats, "a backward's layers are all complete with it, or none is"
        for layer in one.layers:
            found += [replace(one, layer=layer, repeats=1), Instance(updates, layer)]
    return found


class _Update(NamedTuple):
    """An update of cells of a parameter on a GPU. row: of the operation; weight: the parameter's tensor; host: a
    place."""

    row: list[int]
    weight: int
    host: int


@dataclass(frozen=True)
class _OnHosts:
    """The parameters and the optimizer state of a layout, with its lists. num_gpus: places before hosts."""

    layout: StepLayout
    lists: ListTable
    num_gpus: int
    gpus_per_node: int

    def changed(self, template: Template) -> Template:
        """Returns a template with what is in host memory."""
        needs, leaves = self.entries(template.needs), self.entries(template.leaves)
        made = replace(template, needs=needs, leaves=leaves)
        if template.name not in (_UPDATES, _ENDS):
            return made
        return replace(made, operations=self._operations(template.operations))

    def _operations(self, operations: Operations) -> Operations:
        """Returns gradients' way to hosts, the updates there, and parameters' way back."""
        there, computes, back = list[list[int]](), list[list[int]](), list[list[int]]()
        for row, weight, host in self._updates(operations):
            gpu, lists = row[2], [which for which in row[4:6] if which >= 0]
            gradient = self.layout.number[f"d{self.layout.tensors[weight].name}"]
            there.append(operation_row(SEND, gradient, (gpu, host), lists, "host"))
            computes.append([*row[:2], host, *row[3:]])
            back.append(operation_row(SEND, weight, (host, gpu), lists, "host", version=1))
        return Operations.of([*there, *computes, *back])

    def _updates(self, operations: Operations) -> Iterator[_Update]:
        for row in operations.table.tolist():
            weight = self.layout.number[self.layout.formulas[row[1]].results[0].tensor]
            home = self.layout.tensors[weight].home.reshape(self.layout.shape(weight))
            sides = [self.lists.rows[which] for which in row[4:6] if which >= 0]
            if sides and not (home[np.ix_(*sides)] == row[2]).all():
                raise ValueError(
                    "memory.offload has optimizer and GPUs update what others do, too; it takes sharding=zero1, zero2 "
                    "or zero3"
                )
            yield _Update(row, weight, self.num_gpus + row[2] // self.gpus_per_node)

    def divided(self, template: Template) -> tuple[Template | None, Template]:
        """Returns the updates of what is outside the layers in two templates: what the head alone has, None where it
        has the embedding's table, and the rest."""
        if "wh" not in self.layout.number:
            return None, template
        head = {self.layout.number[f"{before}{name}"] for name in _OF_HEAD for before in ("", "d", "s")}
        formulas = [self.layout.number[self.layout.formulas[at].results[0].tensor] in head for at in template.formulas]
        both = []
        for wanted in (True, False):
            numbers = [at for at, mine in zip(template.formulas, formulas, strict=True) if mine == wanted]
            ops = template.operations.table
            mine = np.array(
                [
                    (row[1] in numbers) if row[0] != SEND else ((row[1] in head) == wanted)
                    for row in ops.tolist()
                ]
            )
            needs, leaves = (
                items.take(np.flatnonzero(np.isin(items.tensor, list(head)) == wanted))
                for items in (template.needs, template.leaves)
            )
            name = _HEAD if wanted else template.name
            both.append(
                Template(
                    name, template.layout, template.operations.take(mine), tuple(numbers), needs, leaves
                )
            )
        return both[0], both[1]

    def entries(self, items: Items) -> Items:
        """Returns the entries of a contract with optimizer state in host memory in place of GPUs', and parameters there
        as well."""
        found, seen = _Rows(), set[tuple[int, int]]()
        for row in items.rows():
            tensor, layer = row[0], row[1]
            name = self.layout.tensors[tensor].name
            is_state = name[0] == "s" and name[1:] in self.layout.number and f"d{name[1:]}" in self.layout.number
            is_weight = f"s{name}" in self.layout.number and f"d{name}" in self.layout.number
            if not is_state:
                found.append(row)
            if (is_state or is_weight) and (tensor, layer) not in seen:
                seen.add((tensor, layer))
                found += [[tensor, layer, *cells, 0, row[6], 0] for cells in self._at_hosts(tensor)]
        return Items.of(found)

    def _at_hosts(self, tensor: int) -> _Rows:
        """Returns the places and the lists of cells of what is at hosts of a tensor."""
        shape, axes = self.layout.shape(tensor), self.layout.tensors[tensor].axes
        host = self.num_gpus + self.layout.tensors[tensor].home.reshape(shape) // self.gpus_per_node
        found = _Rows()
        for one in np.unique(host).tolist():
            place = self.lists.number(PLACE, [one])
            rows: dict[bytes, tuple[Ints, list[int]]] = {}  # by the cells along the second axis
            for part, hosts in enumerate(host):
                mine = np.flatnonzero(hosts == one)
                rows.setdefault(mine.tobytes(), (mine, []))[1].append(part)
            for mine, parts in rows.values():
                if len(mine):
                    cells = [self.lists.number(axis, side) for axis, side in zip(axes, (parts, mine), strict=False)]
                    found.append([place, *cells, -1, -1][:3])
        return found
