"""Contracts and copies of a layout where optimizer state, or parameters, of some layers rest in host memory.

A layer is of a kind: whether its optimizer state is in host memory, and whether its parameters rest there alone. Where
state is, each parameter is there once more, as CPUs update it; where parameters rest there alone, a GPU brings the
cells that have their home on it before they are gathered, and they are gone from there when the layer's are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import COMPUTE, SEND, Operations, operation_row
from zbench.step.passes.parameters.tied_tables import FIRST, LAST
from zbench.step.template import AT_HOME, COMPLETE, GONE, Items, Template
from zbench.step.tensor import NONE, Tensor

OF_HEAD = ("gl", "wh", "vh")  # parameters whose gradients are there before those of any layer
Rows = list[list[int]]


class OnHosts(NamedTuple):
    """The kind of a layer by what of it rests in host memory: its optimizer state; its parameters, and these nowhere
    else; its gradients, of which a step begins with those of the step before, and is updated then."""

    state: bool
    parameters: bool
    gradients: bool = False


NOTHING = OnHosts(False, False)
KindOf = Callable[[int], OnHosts]  # offset of a layer -> its kind


@dataclass(frozen=True)
class HostLayers:
    """The layers of which something rests in host memory.

    optimizer: of so many last ones it is optimizer state, and that of the head; where it is all layers, of all
    parameters. parameters: of so many first ones it is parameters. carried: of so many of those with optimizer state,
    spread evenly with the lowest among them, it is gradients, too, which are for the next step to update with; so it is
    of the table then. begun: whether a step begins with such gradients; a run's first one does not, and has nothing to
    update with.
    """

    num_layers: int
    optimizer: int
    parameters: int = 0
    carried: int = 0
    begun: bool = True

    def of_layer(self, layer: int) -> OnHosts:
        """Returns what of a layer rests there; of one that there is not, as of the one next to it."""
        near = min(max(layer, 0), self.num_layers - 1)
        at = near - (self.num_layers - self.optimizer)  # among those whose state is there
        return OnHosts(
            at >= 0, near < self.parameters, at >= 0 and self._carried_below(at + 1) > self._carried_below(at)
        )

    def _carried_below(self, at: int) -> int:
        """Returns how many of the first ones with optimizer state are carried."""
        return -(-at * self.carried // self.optimizer) if self.optimizer else 0

    def outside(self, is_head: bool) -> OnHosts:
        """Returns what rests there of parameters of no layer. is_head: of those that the head alone has."""
        if is_head:
            return OnHosts(self.optimizer > 0, False)
        every = self.optimizer == self.num_layers
        return OnHosts(every, False, every and self.carried > 0)

    @property
    def firsts(self) -> list[int]:
        """The layers with which another kind begins."""
        kinds = [self.of_layer(layer) for layer in range(self.num_layers)]
        return [layer for layer in range(self.num_layers) if layer == 0 or kinds[layer] != kinds[layer - 1]]


@dataclass(frozen=True)
class HostItems:
    """The parameters and the optimizer state of a layout, with its lists. num_gpus: places before hosts. leading: how
    many layers, the first ones, are of another kind than others. homes: by the names of tensors, the homes of their
    cells, -1 where another pipeline has them; of those that are not named, the layout's. two_tables: whether the head's
    table is the embedding's once more, and updated with it (zbench.step.passes.parameters.tied_tables)."""

    layout: StepLayout
    lists: ListTable
    num_gpus: int
    gpus_per_node: int
    layers: HostLayers
    leading: int = 0
    homes: Mapping[str, Ints] = field(default_factory=dict)
    two_tables: bool = False

    def host(self, gpu: int) -> int:
        """Returns the place of the host memory of a GPU's node."""
        return self.num_gpus + gpu // self.gpus_per_node

    def is_weight(self, tensor: int) -> bool:
        """Returns whether a tensor is a parameter: it has optimizer state."""
        return f"s{self.layout.tensors[tensor].name}" in self.layout.number

    def is_state(self, tensor: int) -> bool:
        """Returns whether a tensor is a parameter's optimizer state."""
        name = self.layout.tensors[tensor].name
        return name[0] == "s" and {name[1:], f"d{name[1:]}"} <= self.layout.number.keys()

    def offsets(self, template: Template) -> tuple[int, ...]:
        """Returns the offsets of layers of whose parameters, or state, a template's contract says something."""
        found = set[int]()
        for items in (template.needs, template.leaves):
            for tensor, layer in {(row[0], row[1]) for row in items.rows()}:
                if self.is_weight(tensor) or self.is_state(tensor):
                    found |= {layer} if self.layout.tensors[tensor].layers != NONE else set()
        return tuple(sorted(found))

    def changed(self, template: Template, kind_of: KindOf, updates: bool = False) -> Template:
        """Returns a template with what rests in host memory of layers of these kinds: what it is to gather is brought
        first, and what it has updated is sent back last. updates: whether it updates parameters: else those whose
        gradients a step begins with have been updated before."""
        needs, leaves = (self.entries(items, kind_of) for items in (template.needs, template.leaves))
        resting = {key for key in _at_home_alone(template.needs) if self.is_weight(key[0])}
        away = {key for key in resting if self.kind(*key, kind_of).parameters}
        old = {(row[0], row[1]): row[6] for row in template.needs.rows()}
        updated = {(row[0], row[1]) for row in template.leaves.rows() if row[6] != old.get((row[0], row[1]), row[6])}
        before, after = Rows(), Rows()
        for tensor, layer in sorted(away):
            if (tensor, layer) in updated and self.kind(tensor, layer, kind_of).state:
                continue  # it is updated where it is
            before += self._copies(tensor, layer, False, 0)
            after += self._copies(tensor, layer, True, 1) if (tensor, layer) in updated else []
        operations = template.operations
        if before:
            tables = [Operations.of(before).table, operations.table, Operations.of(after).table]
            operations = Operations.of_tables(tables)
        if not updates and self.layers.begun:
            needs, leaves = (self._later(items, kind_of) for items in (needs, leaves))
            operations = self._reading_later(operations, kind_of)
        return replace(template, operations=operations, needs=needs, leaves=leaves)

    def _later(self, items: Items, kind_of: KindOf) -> Items:
        """Returns entries of a contract, parameters that were updated before in the version after that."""
        rows = items.rows()
        for row in rows:
            if self.is_weight(row[0]) and self.kind(row[0], row[1], kind_of).gradients:
                row[6] += 1
        return Items.of(rows)

    def _reading_later(self, operations: Operations, kind_of: KindOf) -> Operations:
        """Returns operations that name such parameters in that version."""
        table, form = operations.table.copy(), self.layout.bound
        for row in table:
            if row[0] == COMPUTE:
                named = form.rows[form.offsets[row[1]] : form.offsets[row[1] + 1], 1:3].tolist()
            else:
                named = [(int(row[1]), int(row[7]))]
            weights = [(tensor, layer) for tensor, layer in named if self.is_weight(tensor)]
            row[9] += any(self.kind(tensor, layer, kind_of).gradients for tensor, layer in weights)
        return Operations.of_tables([table])

    def _copies(self, tensor: int, layer: int, to_host: bool, version: int) -> Rows:
        """Returns the copies of what each GPU has of a parameter at home, from its host or to it."""
        found = Rows()
        for gpu, cells in self.by_place(tensor, self.homes_of(tensor)):
            ends = (gpu, self.host(gpu)) if to_host else (self.host(gpu), gpu)
            found.append(operation_row(SEND, tensor, ends, cells, "host", layer, version=version))
        return found

    def kind(self, tensor: int, layer: int, kind_of: KindOf) -> OnHosts:
        """Returns what rests in host memory of a parameter, or whose state a tensor is."""
        one = self.layout.tensors[tensor]
        if one.layers != NONE:
            return kind_of(layer)
        return self.layers.outside(one.name.removeprefix("s") in OF_HEAD and self.has_own_head)

    @property
    def has_own_head(self) -> bool:
        """Whether the head has more of its own than its norm's gain, which else is updated with the table."""
        return not self.two_tables and sum(name in self.layout.number for name in OF_HEAD) > 1

    def entries(self, items: Items, kind_of: KindOf, rest: bool = False) -> Items:
        """Returns the entries of a contract with optimizer state in host memory in place of GPUs', and parameters there
        as well, or alone. rest: whether they are of what rests between steps, where stages have it: those that name
        places name each cell's one."""
        found, seen, alone = Rows(), set[tuple[int, int]](), _at_home_alone(items)
        for row in items.rows():
            tensor, layer = row[0], row[1]
            is_state, is_weight = self.is_state(tensor), self.is_weight(tensor)
            kind = self.kind(tensor, layer, kind_of) if is_state or is_weight else NOTHING
            if not (is_state and kind.state) and not (is_weight and kind.parameters and (tensor, layer) in alone):
                found.append(row)
            if not (kind.state or (is_weight and kind.parameters)):
                continue
            if rest and row[2] != AT_HOME:
                for place in self.lists.rows[row[2]].tolist():
                    found.append([tensor, layer, self.lists.number(PLACE, [self.host(place)]), *row[3:5], 0, row[6], 0])
            elif (tensor, layer) not in seen:
                seen.add((tensor, layer))
                for host, cells in self.by_place(tensor, self._hosts(tensor)):
                    found.append([tensor, layer, self.lists.number(PLACE, [host]), *cells, 0, row[6], 0])
        return Items.of(found)

    def resting(self, items: Items, hops: Mapping[str, int], begins: bool = False) -> Items:
        """Returns what the step ends, or begins, with, range of layers by range of layers. hops: of gradients, by their
        names, how often they were encoded with loss."""
        found, last, firsts = Rows(), dict[int, Rows](), self.layers.firsts
        has_gradients, updated = self.layers.begun or not begins, self.layers.begun
        for first, after in pairwise([*firsts, self.layers.num_layers]):
            kind_of, mine = of_one_kind(self.layers.of_layer(first)), dict[int, Rows]()
            for row in self.entries(items, kind_of, True).rows():
                is_state = self.is_weight(row[0]) or self.is_state(row[0])
                if not updated and is_state and self.kind(row[0], 0, kind_of).gradients:
                    row[6] = 0  # its first update is the next step's
                mine.setdefault(row[0], []).append(row)
            for tensor in [one for one in mine if has_gradients and self.is_weight(one)]:
                gradient = self.gradient_of(tensor)
                name = self.layout.tensors[gradient].name
                if self.kind(tensor, 0, kind_of).gradients:
                    there = [row for row in mine[tensor] if self.is_at_host(row)]
                    for row in there:
                        cells = self.cells_of_gradient(tensor, row[3:5])
                        mine.setdefault(gradient, []).append(
                            [gradient, *row[1:3], *cells, COMPLETE, 0, hops.get(name, 0)]
                        )
                elif last.get(gradient):
                    mine[gradient] = [[gradient, 0, GONE, -1, -1, 0, 0, 0]]
            for tensor, rows in mine.items():
                low, high = self.layout.tensors[tensor].layers_of(0, self.layers.num_layers - 1, self.leading)
                if first > high or after <= low:
                    continue  # a kind of layers that are all before, or behind
                if last.get(tensor) != rows:
                    found += [[tensor, first, *row[2:]] for row in rows]
                last[tensor] = [] if rows[0][2] == GONE else rows
        return Items.of(found)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the layout as the step has them: a first step reads no gradient that is for the next one."""
        if self.layers.begun:
            return self.layout.tensors
        read, every = self.layers, range(self.layers.num_layers)
        carried = [layer for layer in every if read.of_layer(layer).gradients]
        unread = set[str]()
        for at, one in enumerate(self.layout.tensors):
            if not self.is_weight(at):
                continue
            first, last = one.layers_of(0, len(every) - 1, self.leading)
            is_all = set(range(first, last + 1)) <= set(carried)
            if is_all if one.layers != NONE else self.kind(at, 0, read.of_layer).gradients:
                unread.add(self.layout.tensors[self.gradient_of(at)].name)
        return tuple(replace(one, hops=0) if one.name in unread else one for one in self.layout.tensors)

    def is_at_host(self, row: Sequence[int]) -> bool:
        """Returns whether an entry is of items in host memory."""
        return row[2] >= 0 and int(self.lists.rows[row[2]][0]) >= self.num_gpus

    def gradient_of(self, weight: int) -> int:
        """Returns the tensor by which a parameter is updated: of two tables the first one's gradient, for both."""
        name = self.layout.tensors[weight].name
        return self.layout.number[f"d{FIRST if self.two_tables and name == LAST else name}"]

    def cells_of_gradient(self, weight: int, lists: Sequence[int]) -> list[int]:
        """Returns the lists of a gradient's cells that a parameter's cells are updated by, which are cut alike."""
        axes = self.layout.tensors[self.gradient_of(weight)].axes
        if axes == self.layout.tensors[weight].axes:
            return [*lists]
        return [
            which if which < 0 else self.lists.number(axis, self.lists.rows[which])
            for axis, which in zip(axes, lists, strict=True)
        ]

    def _hosts(self, tensor: int) -> Ints:
        """Returns the host memories of the homes of a tensor's cells, -1 where these are in another pipeline."""
        homes = self.homes_of(tensor)
        return np.where(homes < 0, homes, self.num_gpus + homes // self.gpus_per_node)

    def homes_of(self, tensor: int) -> Ints:
        """Returns the homes of a tensor's cells, [parts of its first axis, of its second], -1 where another pipeline
        has them."""
        one = self.layout.tensors[tensor]
        return self.homes.get(one.name, one.home).reshape(self.layout.shape(tensor))

    def by_place(self, tensor: int, places: Ints) -> list[tuple[int, list[int]]]:
        """Returns the places and the lists of cells of a tensor. places: of its cells, -1 of those that are left."""
        axes, found = self.layout.tensors[tensor].axes, list[tuple[int, list[int]]]()
        for one in np.unique(places[places >= 0]).tolist():
            rows: dict[bytes, tuple[Ints, list[int]]] = {}  # by the cells along the second axis
            for part, there in enumerate(places):
                mine = np.flatnonzero(there == one)
                rows.setdefault(mine.tobytes(), (mine, []))[1].append(part)
            for mine, parts in rows.values():
                if len(mine):
                    cells = [self.lists.number(axes[0], parts), self.lists.number(axes[1], mine)] if axes else []
                    found.append((one, [*cells, -1, -1][:2]))
        return found


def of_one_kind(kind: OnHosts) -> KindOf:
    """Returns that layers at every offset are of a kind."""
    return lambda _: kind


def _at_home_alone(items: Items) -> set[tuple[int, int]]:
    """Returns the tensors, with their layers' offsets, of which entries say that all of it is at home and no more."""
    elsewhere = {(row[0], row[1]) for row in items.rows() if row[2] != AT_HOME}
    return {(row[0], row[1]) for row in items.rows()} - elsewhere
