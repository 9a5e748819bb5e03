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
from zbench.step.passes.memory.kept_on_hosts import BACKWARDS
from zbench.step.template import AT_HOME, Instance, Items, Step, Template

_UPDATES, _ENDS, _HEAD = "optimizer", "optimizer_ends", "optimizer_head"  # templates, of which the last is made here
_OF_HEAD = ("gl", "wh", "vh")  # parameters whose gradients are there before those of any layer
_LAST_OF_LAYERS = (*BACKWARDS, "reduce", "reduce_rest")
_LAST_OF_HEAD = ("head", "reduce_head")
_Rows = list[list[int]]


def with_optimizer_on_hosts(step: Step, gpus_per_node: int) -> Step:
    """Returns a step whose optimizer state is in host memory, and is updated there.

    Raises:
        ValueError: layers are in stages, or parameters are updated on several GPUs.
    """
    if step.is_staged or len(step.pipelines) > 1:
        raise ValueError(
            "memory.offload has optimizer and layers are in stages of a pipeline; with these it takes none"
        )
    num_hosts = -(-step.num_gpus // gpus_per_node)
    layouts, templates, made = list(step.layouts), list(step.templates), _Updates()
    begins, ends = step.begins, step.ends
    for number, layout in enumerate(step.layouts):
        sizes = {one.name: len(one) for one in layout.indices}
        lists = ListTable.of(layout.lists, sizes, step.num_gpus + num_hosts)
        of = _OnHosts(layout, lists, step.num_gpus, gpus_per_node)
        for at, template in enumerate(templates):
            if template.layout == number:
                templates[at] = replace(template, needs=of.entries(template.needs), leaves=of.entries(template.leaves))
        if number == 0:
            begins, ends = of.entries(begins), of.entries(ends)
            made = of.put_updates(templates)
        layouts[number] = replace(layout, lists=lists.lists())
    return replace(
        step,
        num_hosts=num_hosts,
        layouts=tuple(layouts),
        templates=tuple(templates),
        order=tuple(_ordered(step, templates, made)),
        begins=begins,
        ends=ends,
    )


class _Updates(NamedTuple):
    """The numbers of the templates that update layers, and that bring what was updated back; the same for what is of
    the head alone, -1 where that is updated with the embedding; and of the one for the rest."""

    layers: int = -1
    back: int = -1
    head: int = -1
    head_back: int = -1
    rest: int = -1


def _base(template: Template) -> str:
    """Returns the name of a template, whichever micro-batch it is of."""
    return template.name.split(".")[0]


def _ordered(step: Step, templates: Sequence[Template], made: _Updates) -> list[Instance]:
    """Returns a step's order with the updates of layers where their gradients are complete, and of the head, too.

    What was updated comes back after all else, in the order of updates: in a GPU's queue for copies from its host it
    would else stand before inputs of layers whose backward comes first.
    """
    names = [_base(one) for one in templates]
    last: dict[int, int] = {}  # by layer: the entry with which its gradients are complete
    head = max((at for at, one in enumerate(step.order) if names[one.template] in _LAST_OF_HEAD), default=-1)
    for entry, one in enumerate(step.order):
        if names[one.template] in _LAST_OF_LAYERS:
            last |= dict.fromkeys(one.layers, entry)
    found = list[Instance]()
    for entry, one in enumerate(step.order):
        if one.template == made.layers:
            continue
        if one.template == made.rest:
            found += [Instance(made.head_back, 0)] if made.head >= 0 else []
            found.append(Instance(made.back, step.num_layers - 1, step.num_layers, -1))
        done = [layer for layer in one.layers if last.get(layer) == entry]
        if names[one.template] == "reduce" or not done:  # a bucket's reductions are one after another
            found += [one, *([replace(one, template=made.layers)] if done else [])]
        else:  # a backward that reduces a layer before its own (gradients_between) does not complete all of its layers
            behind = len(done) < one.repeats
            for layer in one.layers:
                found.append(replace(one, layer=layer, repeats=1))
                found += [Instance(made.layers, layer + behind)] if layer + behind in done else []
        found += [Instance(made.head, 0)] if entry == head and made.head >= 0 else []
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

    def put_updates(self, templates: list[Template]) -> _Updates:
        """Puts templates that update parameters in host memory in the place of those that did on GPUs, and more after
        the others; returns which they are."""
        layers, rest = (next(at for at, one in enumerate(templates) if one.name == name) for name in (_UPDATES, _ENDS))
        early, others = self._divided(templates[rest])
        sent, back = self._parted(templates[layers])
        templates[layers], (there, returned) = sent, self._parted(others)
        joined = [there.operations.table, returned.operations.table]
        templates[rest] = replace(others, operations=Operations.of_tables(joined))
        templates.append(back)
        if early is None:
            return _Updates(layers, len(templates) - 1, rest=rest)
        templates += self._parted(early)
        return _Updates(layers, len(templates) - 3, len(templates) - 2, len(templates) - 1, rest)

    def _parted(self, template: Template) -> tuple[Template, Template]:
        """Returns two templates in place of one that updates parameters: gradients go to hosts and parameters are
        updated there, and parameters come back."""
        there, computes, back = list[list[int]](), list[list[int]](), list[list[int]]()
        for row, weight, host in self._updates(template.operations):
            gpu, lists = row[2], [which for which in row[4:6] if which >= 0]
            gradient = self.layout.number[f"d{self.layout.tensors[weight].name}"]
            there.append(operation_row(SEND, gradient, (gpu, host), lists, "host"))
            computes.append([*row[:2], host, *row[3:]])
            back.append(operation_row(SEND, weight, (host, gpu), lists, "host", version=1))
        leaves = template.leaves.rows()
        homes = [row for row in leaves if row[2] == AT_HOME]
        between = Items.of([[*row[:6], 0, *row[7:]] if row[2] == AT_HOME else row for row in leaves])
        hosts = [row for row in leaves if row[2] != AT_HOME and self._is_weight(row[0])]
        needs = Items.of([*([*row[:6], 0, *row[7:]] for row in homes), *hosts])
        sent = replace(template, operations=Operations.of([*there, *computes]), leaves=between)
        returned = Template(
            f"{template.name}_back", template.layout, Operations.of(back), (), needs, Items.of([*homes, *hosts])
        )
        return sent, returned

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

    def _divided(self, template: Template) -> tuple[Template | None, Template]:
        """Returns the updates of what is outside the layers in two templates: what the head alone has, None where it
        has the embedding's table, and the rest."""
        of_head = [name for name in _OF_HEAD if name in self.layout.number]
        if len(of_head) == 1:
            return None, template
        head = [self.layout.number[f"{before}{name}"] for name in of_head for before in ("", "d", "s")]
        numbers = np.array(template.formulas)
        made = [self.layout.number[self.layout.formulas[at].results[0].tensor] in head for at in template.formulas]
        both = []
        for name, wanted in ((_HEAD, True), (template.name, False)):
            formulas = numbers[np.array(made) == wanted]
            mine = np.flatnonzero(np.isin(template.operations.what, formulas))
            needs, leaves = (
                items.take(np.flatnonzero(np.isin(items.tensor, head) == wanted))
                for items in (template.needs, template.leaves)
            )
            operations = template.operations.take(mine)
            both.append(Template(name, template.layout, operations, tuple(formulas.tolist()), needs, leaves))
        return both[0], both[1]

    def _is_weight(self, tensor: int) -> bool:
        """Returns whether a tensor is a parameter: it has optimizer state."""
        return f"s{self.layout.tensors[tensor].name}" in self.layout.number

    def _is_state(self, tensor: int) -> bool:
        """Returns whether a tensor is a parameter's optimizer state."""
        name = self.layout.tensors[tensor].name
        return name[0] == "s" and {name[1:], f"d{name[1:]}"} <= self.layout.number.keys()

    def entries(self, items: Items) -> Items:
        """Returns the entries of a contract with optimizer state in host memory in place of GPUs', and parameters there
        as well."""
        found, seen = _Rows(), set[tuple[int, int]]()
        for row in items.rows():
            tensor, layer = row[0], row[1]
            if not self._is_state(tensor):
                found.append(row)
            if (self._is_state(tensor) or self._is_weight(tensor)) and (tensor, layer) not in seen:
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
                    cells = [self.lists.number(axes[0], parts), self.lists.number(axes[1], mine)] if axes else []
                    found.append([place, *cells, -1, -1][:3])
        return found
