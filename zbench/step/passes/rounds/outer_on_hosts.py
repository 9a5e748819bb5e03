"""The end of a round where workers have optimizer state, or parameters, in host memory.

A pass over a built end (zbench.step.passes.rounds.outer_step). Of a parameter whose state is in host memory the outer
parameter and its momentum are, too, in that of their home's worker, and its CPUs do all that GPUs did:

    d += contribute(s, share)       on the worker's host; d moves to the GPU
    d is reduced                    between GPUs, as ever
    p, m := outer(p, m, d)          on the host, to which d is sent
    c = p                           on the host; c is sent to the GPU, and gathered between GPUs
    w, s := take(w, s, c)           on every worker's host, to which c is sent; w is sent back to the GPU

Every worker has a host memory of its own here: its node's, or, where it is a rank, its part of that; with stages each
of its GPUs has a part of one, as in its own steps. An average that is under way is on GPUs, so that nothing but
messages between workers is waited for where it is used. Where parameters rest in host memory alone and their state does
not, a GPU brings them, takes them and sends them back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import COMPUTE, MOVE, SEND, Operations, operation_row
from zbench.step.passes.memory.at_hosts import HostItems, HostLayers, KindOf, OnHosts, Rows, of_one_kind
from zbench.step.passes.memory.by_layers import by_layers
from zbench.step.passes.memory.kept_on_hosts import gpus_of_a_host
from zbench.step.passes.rounds.outer_step import SHARE
from zbench.step.template import AT_HOME, Items, Step, Template
from zbench.step.tensor import NONE

_OF_PARAMETER = ("", "s", "d", "p", "m", "c")  # before its name: itself, and what there is of it


def outer_on_hosts(
    step: Step, layers: HostLayers, numbers: Sequence[int], worker_gpus: int, two_tables: bool = False
) -> Step:
    """Returns the end of a round of workers of so many GPUs each, with what `layers` says in host memory. numbers:
    those that the step's layers have in the model. two_tables: as of HostItems."""
    each, layout = gpus_of_a_host(step, worker_gpus), step.layouts[0]
    num_hosts = step.num_gpus // each
    sizes = {one.name: len(one) for one in layout.indices}
    lists = ListTable.of(layout.lists, sizes, step.num_gpus + num_hosts)
    of = _OuterItems(HostItems(layout, lists, step.num_gpus, each, layers, two_tables=two_tables))

    def kind_of(layer: int) -> OnHosts:
        return layers.of_layer(numbers[layer])

    def changed(number: int, kinds: dict[int, OnHosts]) -> Template:
        one, kind = step.templates[number], kinds.__getitem__
        needs, leaves = (Items.of(of.entries(items, kind)) for items in (one.needs, one.leaves))
        return replace(one, operations=of.operations(one.operations, kind), needs=needs, leaves=leaves)

    offsets = [(0,) if _is_of_layers(one, layout) else () for one in step.templates]
    templates, order, _ = by_layers(step.templates, step.order, offsets, kind_of, changed)
    kinds = [kind_of(layer) for layer in range(step.num_layers)]
    begins, ends = (of.resting(step, items, kinds) for items in (step.begins, step.ends))
    return replace(
        step,
        num_hosts=num_hosts,
        layouts=(replace(layout, lists=lists.lists()),),
        templates=tuple(templates),
        order=tuple(order),
        begins=begins,
        ends=ends,
    )


def _is_of_layers(template: Template, layout: StepLayout) -> bool:
    """Returns whether a template is of parameters of layers, and not of those outside."""
    needs = [layout.tensors[tensor] for tensor in np.unique(template.needs.tensor).tolist()]
    return any(one.layers != NONE and one.name != SHARE for one in needs)


@dataclass(frozen=True)
class _OuterItems:
    """The parameters of all workers and what there is of them, as their layout has it."""

    of: HostItems

    @cached_property
    def _parameters(self) -> dict[int, tuple[str, int]]:
        """What stands before a parameter's name in that of a tensor, and the parameter's tensor, by the tensor."""
        number = self.of.layout.number
        weights = [one for one in number if self.of.is_weight(number[one])]
        return {number[f"{before}{one}"]: (before, number[one]) for one in weights for before in _OF_PARAMETER}

    def entries(self, items: Items, kind_of: KindOf) -> Rows:
        """Returns the entries of a contract, with what is in host memory of layers of these kinds."""
        return [entry for row in items.rows() for entry in self._entries(row, kind_of)]

    def _entries(self, row: list[int], kind_of: KindOf) -> Rows:
        if self.of.layout.tensors[row[0]].name == SHARE:
            return [row, self._at_hosts(row)]
        before, weight = self._parameters[row[0]]
        kind = self.of.kind(weight, row[1], kind_of)
        if before in ("p", "m") and kind.state and row[2] == AT_HOME:
            homes = self.of.by_place(row[0], self.of.homes_of(row[0]))
            hosts = [(self.of.lists.number(PLACE, [self.of.host(home)]), cells) for home, cells in homes]
            return [[*row[:2], host, *cells, *row[5:]] for host, cells in hosts]
        if (before in ("s", "p", "m") and kind.state) or (not before and kind.parameters):
            return [self._at_hosts(row)]
        return [row, self._at_hosts(row)] if not before and kind.state else [row]

    def _at_hosts(self, row: list[int]) -> list[int]:
        """Returns an entry of what is in the host memories of the workers whose GPUs it names."""
        hosts = {self.of.host(place) for place in self.of.lists.rows[row[2]].tolist()}
        return [*row[:2], self.of.lists.number(PLACE, sorted(hosts)), *row[3:]]

    def resting(self, step: Step, items: Items, kinds: Sequence[OnHosts]) -> Items:
        """Returns what a step begins or ends with, range of layers by range of layers. kinds: of its layers."""
        found, last = Rows(), dict[int, Rows]()
        firsts = [at for at in range(len(kinds)) if at == 0 or kinds[at] != kinds[at - 1]]
        for first, after in pairwise([*firsts, len(kinds)]):
            mine = dict[int, Rows]()
            for row in self.entries(items, of_one_kind(kinds[first])):
                mine.setdefault(row[0], []).append(row)
            for tensor, rows in mine.items():
                one = self.of.layout.tensors[tensor]
                low, high = one.layers_of(0, len(kinds) - 1, step.leading)
                if (one.layers == NONE and first) or (one.layers != NONE and (first > high or after <= low)):
                    continue  # told before, or a kind of layers that are all before, or behind
                if last.get(tensor) != rows:
                    found += [[tensor, first, *row[2:]] for row in rows]
                last[tensor] = rows
        return Items.of(found)

    def operations(self, operations: Operations, kind_of: KindOf) -> Operations:
        """Returns operations of which those on what is in host memory are done there, with copies around them."""
        found = Rows()
        for row in operations.table.tolist():
            found += self._computed(row, kind_of) if row[0] == COMPUTE else [row]
        return Operations.of(found)

    def _computed(self, row: list[int], kind_of: KindOf) -> Rows:
        """Returns a compute on a GPU as it is done, with copies around it."""
        layout, lists, gpu = self.of.layout, self.of.lists, row[2]
        before, weight = self._parameters[layout.number[layout.formulas[row[1]].results[0].tensor]]
        kind, host, name = self.of.kind(weight, 0, kind_of), self.of.host(gpu), layout.tensors[weight].name
        cells = row[4 : 4 + len(layout.tensors[weight].axes)]
        there, away = (gpu, host), (host, gpu)
        if before == "" and not kind.state:
            copies = [operation_row(SEND, weight, away, cells, "host", version=row[9])] if kind.parameters else []
            back = [operation_row(SEND, weight, there, cells, "host", version=row[9] + 1)] if kind.parameters else []
            return [*copies, row, *back]
        if not kind.state:
            return [row]
        done = [*row[:2], host, *row[3:]]
        average, copy = layout.number[f"d{name}"], layout.number[f"c{name}"]
        if before == "d":
            return [done, operation_row(MOVE, average, away, cells, "host")]
        if before == "p":
            return [operation_row(SEND, average, there, cells, "host"), done]
        if before == "c":
            return [done, operation_row(SEND, copy, away, cells, "host")]
        homes = self.of.homes_of(copy)
        sides = [lists.rows[which] for which in cells]
        elsewhere = np.full(homes.shape, -1)  # what is at home here is on the host already
        mine = np.ix_(*sides, *[[0]] * (2 - len(sides)))
        elsewhere[mine] = np.where(homes[mine] == gpu, -1, 0)
        comes = [operation_row(SEND, copy, there, some, "host") for _, some in self.of.by_place(copy, elsewhere)]
        back = [] if kind.parameters else [operation_row(SEND, weight, away, cells, "host", version=row[9] + 1)]
        return [*comes, done, *back]
