"""Inputs of layers that wait in host memory, from a layer's forward to its backward.

A pass over a built step whose layers keep nothing but their input x (recompute="full"). A forward sends x to its node's
host memory while it computes, and the GPU has it until it has read it. A backward brings the x of the layer before
while it computes, so that it is there when that one's begins; the head brings the last layer's.

It may be the first layers alone, which are those that wait longest: each that stays on a GPU is gone before any comes
back. Then forwards that send and backwards that bring are templates of their own.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import SEND, Operations, operation_table
from zbench.step.template import AT_HOME, Instance, Items, Step, Template

Rows = list[list[int]]
INPUT = "x"
OFFLOADED = "offloaded"  # before the name of a template, where other layers' is another one
# Templates that are cut where some layers' inputs stay: by how many layers above the last one that is on hosts.
_CUT = {"forward": 0, "backward": 1}
_LAYER_BEFORE = {"backward": -1, "head": -1}  # whose input a template brings, by its name


def with_inputs_on_hosts(step: Step, gpus_per_node: int, layers: Sequence[int]) -> Step:
    """Returns a step in which the inputs of layers wait in host memory. layers: of each layout, how many first layers'.

    Raises:
        ValueError: layers are in stages.
    """
    if step.is_staged or len(step.pipelines) > 1:
        raise ValueError("memory.offload is inputs and layers are in stages of a pipeline; with these it takes none")
    num_hosts = -(-step.num_gpus // gpus_per_node)
    layouts, templates, order = [], list(step.templates), list(step.order)
    for number, layout in enumerate(step.layouts):
        sizes = {one.name: len(one) for one in layout.indices}
        of = _Waiting(
            layout, ListTable.of(layout.lists, sizes, step.num_gpus + num_hosts), step.num_gpus, gpus_per_node
        )
        count = layers[number]
        some = 0 < count < step.num_layers
        for at, template in enumerate(step.templates):
            name = template.name.split(".")[0]
            if template.layout != number or count == 0:
                continue
            if not some:
                templates[at] = of.changed(template)
            elif name in _CUT:
                here = replace(of.changed(template), name=f"{OFFLOADED}_{template.name}")
                order = _in_two(order, at, count + _CUT[name], len(templates))
                templates.append(here)
        layouts.append(replace(layout, lists=of.lists.lists()))
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


class _Waiting:
    """The inputs of a micro-batch's layers."""

    def __init__(self, layout: StepLayout, lists: ListTable, num_gpus: int, gpus_per_node: int) -> None:
        self.layout, self.lists, self.tensor = layout, lists, layout.number[INPUT]
        home = layout.tensors[self.tensor].home
        self.gpus = np.unique(home)  # that have tokens
        self.tokens = np.array([lists.number("t", np.flatnonzero(home == gpu)) for gpu in self.gpus], np.int64)
        self.hosts = num_gpus + self.gpus // gpus_per_node

    def changed(self, template: Template) -> Template:
        """Returns a template of the micro-batch with what it sends to host memory, or brings from there."""
        name = template.name.split(".")[0]
        if name == "forward":
            leaves = template.leaves
            kept = (leaves.tensor == self.tensor) & (leaves.layer == 0)
            rest = leaves.take(np.flatnonzero(~kept)).rows()
            return self._with(template, self._copies(self.gpus, self.hosts, 0), [], [*rest, *self._at_hosts(0)])
        if name in _LAYER_BEFORE:
            layer = _LAYER_BEFORE[name]
            home = [self.tensor, layer, AT_HOME, self.lists.whole("t"), -1, 0, 0, 0]
            brought = self._copies(self.hosts, self.gpus, layer)
            return self._with(template, brought, self._at_hosts(layer), [*template.leaves.rows(), home])
        return template

    def _with(self, template: Template, copies: Ints, needs: Rows, leaves: Rows) -> Template:
        """Returns a template with copies before all else, more needs, and what it leaves."""
        operations = Operations.of_tables([copies, template.operations.table])
        return replace(
            template,
            operations=operations,
            needs=Items.of([*template.needs.rows(), *needs]),
            leaves=Items.of(leaves),
        )

    def _copies(self, src: Ints, dst: Ints, layer: int) -> Ints:
        """Returns the copies between GPUs and host memories, a message for each GPU."""
        table = operation_table(SEND, self.tensor, src, [self.tokens], "host")
        table[:, 3], table[:, 7] = dst, layer
        return table

    def _at_hosts(self, layer: int) -> Rows:
        """Returns the entries of all inputs of a layer in host memory."""
        each = zip(self.hosts.tolist(), self.tokens.tolist(), strict=True)
        return [[self.tensor, layer, self.lists.number(PLACE, [host]), tokens, -1, 0, 0, 0] for host, tokens in each]
