"""Templates that update parameters in host memory, in place of those that do on GPUs, and where a step plays them.

An update has three parts: gradients are sent to hosts, CPUs update, and parameters come back to their home. When CPUs
begin is a choice:

- **as gradients come**: a layer's as soon as its gradients are there, in the last micro-batch's backward, while that of
  the layers before is under way. All comes back after all else, in the order of updates: in a GPU's queue for copies
  from its host it would else stand before inputs of layers whose backward comes first.
- **after the backward**: gradients are sent as they come, and CPUs update when the last one of a node has come, as
  ZeRO-Offload's do (arXiv 2101.06840); the lowest layers go first, whose gradients come last, and come back while the
  others are updated.
- **across steps**: of some layers gradients are sent as they come, and the next step begins with them: its forward of
  a layer waits for that one's update alone, and those of the others are beside it, the lowest layers first (AutoHete,
  arXiv 2503.01890). All other layers are updated as their gradients come. A run's first step has none to begin with,
  and what its last one leaves is updated by itself (zbench.step.passes.memory.last_update).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from zbench.describe.layers.on_hosts import AFTER_BACKWARD
from zbench.step.lists import PLACE
from zbench.step.operations import SEND, Operations, operation_row
from zbench.step.passes.memory.at_hosts import OF_HEAD, HostItems, OnHosts, Rows
from zbench.step.passes.memory.kept_on_hosts import BACKWARDS
from zbench.step.passes.parameters.tied_tables import TABLES_UPDATE
from zbench.step.template import COMPLETE, Instance, Items, Template

# Templates that update: of layers, also dense ones before others; of what is outside them, or of the table alone; of
# the head, which is made here but where that is on a stage of its own.
UPDATES, HEAD = ("optimizer", "optimizer_dense"), "optimizer_head"
ENDS = ("optimizer_ends", "optimizer_embedding", TABLES_UPDATE)
FIRST = "_first"  # how the names of templates end that update with gradients which a step begins with
_LAST_OF_LAYERS = (*BACKWARDS, "reduce", "reduce_rest")
_LAST_OF_HEAD = ("head", "reduce_head")


class _Parts(NamedTuple):
    """An update in parts. sent: gradients go to hosts. updated: CPUs update. back: parameters come back."""

    sent: Template
    updated: Template
    back: Template


class _Numbers(NamedTuple):
    """The templates of an update: that which is played when gradients are complete; that which is played after all
    else, or before it where the step begins with gradients (`first`), -1 where there is none."""

    soon: int
    late: int
    first: bool = False


_NONE = _Numbers(-1, -1)


@dataclass
class HostUpdates:
    """The updates of a step in host memory. every: items of its layouts. layout: the number of the one that what is
    outside the layers is updated in. when: zbench.describe.layers.on_hosts.

    layers: by the number of the template that updated them on GPUs. head: of what the head alone has, None where that
    is updated with the table, or on GPUs. rest: of what is left, on hosts or on GPUs.
    """

    every: Sequence[HostItems]
    layout: int
    when: str
    layers: dict[int, _Numbers] = field(default_factory=dict)
    head: _Numbers | None = None
    rest: _Numbers = _NONE

    @property
    def items(self) -> HostItems:
        """The items of the layout that what is outside the layers is updated in."""
        return self.every[self.layout]

    def put(self, templates: list[Template], numbers: Mapping[int, OnHosts], rest: int, head: int = -1) -> None:
        """Puts templates that update in host memory in the place of those that did on GPUs, and more after the others.
        numbers: of templates whose layers' state is there, with what else is; rest: of what is outside the layers, or,
        where the head has a template of its own (head, else -1), of the table."""
        for number, kind in numbers.items():
            self.layers[number] = self._put(templates, number, templates[number], kind.gradients)
        early, others = self._divided(templates[rest]) if head < 0 else (templates[head], templates[rest])
        self.rest, kind = _Numbers(rest, -1), self.items.layers.outside(False)
        templates[rest] = others
        if kind.gradients:
            self.rest = self._put(templates, rest, others, True)
        elif kind.state:
            joined = [one.operations.table for one in self._parted(others)]
            templates[rest] = replace(others, operations=Operations.of_tables(joined))
        if early is not None and self.items.layers.outside(True).state:
            templates += [early] if head < 0 else []
            self.head = self._put(templates, len(templates) - 1 if head < 0 else head, early, False)

    def _put(self, templates: list[Template], number: int, template: Template, first: bool) -> _Numbers:
        """Puts the templates of an update in the place of one, and behind the others. first: whether a step begins with
        its gradients."""
        parts = self._parted(template, first)
        if first and not self.items.layers.begun:
            templates[number] = parts.sent
            return _Numbers(number, -1, True)
        if first or self.when == AFTER_BACKWARD:
            soon = parts.sent
            late = _one_after_another(parts.updated, parts.back, f"{template.name}{FIRST if first else '_late'}")
        else:
            soon, late = _one_after_another(parts.sent, parts.updated, template.name), parts.back
        templates[number] = soon
        if not len(late.operations):
            return _Numbers(number, -1, first)
        templates.append(late)
        return _Numbers(number, len(templates) - 1, first)

    def _parted(self, template: Template, first: bool = False) -> _Parts:
        """Returns an update in parts. first: whether it is before all else, where parameters are as a step begins with
        them; then what of them is elsewhere after the backward is gone where gradients are sent."""
        of = self.every[template.layout]
        lists = of.lists
        sent, computes, back, at_hosts = Rows(), Rows(), Rows(), Rows()
        needs, leaves = template.needs.rows(), template.leaves.rows()
        gradients = [row for row in needs if not of.is_weight(row[0]) and not of.is_state(row[0])]
        hops = {row[0]: row[7] for row in gradients}
        homes = [row for row in leaves if of.is_weight(row[0]) and not of.is_at_host(row)]
        come_back = {row[0] for row in homes}
        for row, weight, host in self._updates(template.operations, of):
            gpu, cells = row[2], [which for which in row[4:6] if which >= 0]
            gradient, summed = of.gradient_of(weight), of.cells_of_gradient(weight, cells)
            sent.append(operation_row(SEND, gradient, (gpu, host), summed, "host"))
            where = [lists.number(PLACE, [host]), *summed, -1, -1][:3]
            at_hosts.append([gradient, 0, *where, COMPLETE, 0, hops.get(gradient, 0)])
            computes.append([*row[:2], host, *row[3:]])
            if weight in come_back:
                back.append(operation_row(SEND, weight, (host, gpu), cells, "host", version=1))
        old_homes = [[*row[:6], 0, *row[7:]] for row in homes]
        on_hosts = [row for row in leaves if of.is_weight(row[0]) and of.is_at_host(row)]
        name, before, gone, stays = template.name, [row for row in needs if row not in gradients], Rows(), Rows()
        if first:
            version = int(of.layers.begun)  # how often the step has updated them then
            gone = [[*row[:6], version, *row[7:]] for row in before if of.is_weight(row[0])]
            stays = [[*row[:6], version, *row[7:]] for row in leaves if of.is_weight(row[0])]
            before = [row for row in before if of.is_state(row[0])] + [[*row[:6], 0, *row[7:]] for row in stays]
        there, after = Items.of([*gradients, *gone]), Items.of([*at_hosts, *stays])
        return _Parts(
            Template(f"{name}_sent", template.layout, Operations.of(sent), (), there, after),
            Template(
                name,
                template.layout,
                Operations.of(computes),
                template.formulas,
                Items.of([*before, *at_hosts]),
                Items.of([[*row[:6], 0, *row[7:]] if row in homes else row for row in leaves]),
            ),
            Template(
                f"{name}_back",
                template.layout,
                Operations.of(back),
                (),
                Items.of([*old_homes, *on_hosts]),
                Items.of([*homes, *on_hosts]),
            ),
        )

    def _updates(self, operations: Operations, of: HostItems) -> Iterator[tuple[list[int], int, int]]:
        """Yields the row of each update on a GPU, its parameter's tensor, and its host's place. of: of the operations'
        layout."""
        for row in operations.table.tolist():
            weight = of.layout.number[of.layout.formulas[row[1]].results[0].tensor]
            home = of.homes_of(weight)
            sides = [of.lists.rows[which] for which in row[4:6] if which >= 0]
            if sides and not (home[np.ix_(*sides)] == row[2]).all():
                raise ValueError(
                    "memory.offload has optimizer and GPUs update what others do, too; it takes sharding=zero1, zero2 "
                    "or zero3"
                )
            yield row, weight, of.host(row[2])

    def _divided(self, template: Template) -> tuple[Template | None, Template]:
        """Returns the updates of what is outside the layers in two templates: what the head alone has, None where it
        has the embedding's table, and the rest."""
        layout = self.items.layout
        if not self.items.has_own_head:
            return None, template
        names = [name for name in OF_HEAD if name in layout.number]
        head = [layout.number[f"{before}{name}"] for name in names for before in ("", "d", "s")]
        numbers = np.array(template.formulas)
        made = [layout.number[layout.formulas[at].results[0].tensor] in head for at in template.formulas]
        both = []
        for name, wanted in ((HEAD, True), (template.name, False)):
            formulas = numbers[np.array(made) == wanted]
            mine = np.flatnonzero(np.isin(template.operations.what, formulas))
            needs, leaves = (
                items.take(np.flatnonzero(np.isin(items.tensor, head) == wanted))
                for items in (template.needs, template.leaves)
            )
            operations = template.operations.take(mine)
            both.append(Template(name, template.layout, operations, tuple(formulas.tolist()), needs, leaves))
        return both[0], both[1]

    def ordered(self, order: Sequence[Instance], templates: Sequence[Template], names: Sequence[str]) -> list[Instance]:
        """Returns a step's order with the updates of layers where their gradients are complete, and of the head, too,
        and all that comes later before what is updated with the embedding. templates: of the order; names: theirs, but
        for the micro-batch that they are of."""
        last: dict[int, int] = {}  # by layer: the entry with which its gradients are complete
        head = max((at for at, one in enumerate(order) if names[one.template] in _LAST_OF_HEAD), default=-1)
        of_layer, place = dict[int, _Numbers](), dict[int, int]()
        rest = next(one for one in order if one.template == self.rest.soon)
        of_head = Instance(-1, 0)
        for one in order:
            if one.template in self.layers:
                of_layer |= dict.fromkeys(one.layers, self.layers[one.template])
                place |= dict.fromkeys(one.layers, one.place)
            if self.head is not None and one.template == self.head.soon:
                of_head = one
        behind = [name in BACKWARDS and self._reduces_behind(templates[at]) for at, name in enumerate(names)]

        def reduced(one: Instance) -> list[int]:
            """Returns, by the layers of an instance, those whose gradients it completes, -1 where that is none: the
            layer behind a stage's last is another stage's, which reduces it itself."""
            if not behind[one.template]:
                return list(one.layers)
            return [layer + 1 if place.get(layer + 1) == one.place else -1 for layer in one.layers]

        for entry, one in enumerate(order):
            if names[one.template] in _LAST_OF_LAYERS:
                last |= dict.fromkeys(reduced(one), entry)
        first = [replace(rest, template=self.rest.late)] if self.rest.first else []
        first += [
            Instance(of_layer[layer].late, layer, place=place[layer])
            for layer in sorted(of_layer)
            if of_layer[layer].first
        ]
        found = _together([one for one in first if one.template >= 0])
        for entry, one in enumerate(order):
            if one.template in self.layers or one in (rest, of_head):
                continue
            complete = reduced(one)
            done = [layer for layer in complete if last.get(layer) == entry and layer in of_layer]
            if names[one.template] == "reduce" or not done:  # a bucket's reductions are one after another
                found += [one, *_together([Instance(of_layer[layer].soon, layer, place=one.place) for layer in done])]
            else:
                start = 0
                for end, layer in enumerate(complete, start=1):
                    if layer in done or end == one.repeats:
                        found.append(replace(one, layer=one.layers[start], repeats=end - start))
                        found += [Instance(of_layer[layer].soon, layer, place=one.place)] if layer in done else []
                        start = end
            if entry == head and self.head is not None:
                found.append(replace(of_head, template=self.head.soon))
        return found + self._late(rest, of_head, of_layer, place)

    def _reduces_behind(self, backward: Template) -> bool:
        """Returns whether a layer's backward reduces the gradients of the layer behind it, whose backward was before
        (zbench.step.passes.overlap.gradients_between), and not its own."""
        of, leaves = self.every[backward.layout], backward.leaves
        gradients = [of.gradient_of(at) for at in range(len(of.layout.tensors)) if of.is_weight(at)]
        return bool((np.isin(leaves.tensor, gradients) & (leaves.layer == 1)).any())

    def _late(
        self, rest: Instance, head: Instance, of_layer: Mapping[int, _Numbers], place: Mapping[int, int]
    ) -> list[Instance]:
        """Returns what is played after all else. rest, head: the instances that update what is outside the layers, and
        what the head alone has; place: by layer, from which its stage is played on."""
        layers = [layer for layer in sorted(of_layer) if not of_layer[layer].first]
        first, up = [rest] if self.when == AFTER_BACKWARD else [], self.when == AFTER_BACKWARD
        of_head = [replace(head, template=self.head.late)] if self.head is not None else []
        turns = layers if up else layers[::-1]
        of_layers = [Instance(of_layer[layer].late, layer, place=place[layer]) for layer in turns]
        found = [*first, *of_layers, *of_head] if up else [*of_head, *of_layers, rest]
        return _together([one for one in found if one.template >= 0])


def _one_after_another(one: Template, other: Template, name: str) -> Template:
    """Returns two templates as one: what the second needs the first has left, or it was there before."""
    left, needed = one.leaves.rows(), other.needs.rows()
    before = [row for row in needed if row not in left]
    stays = [row for row in left if row not in needed]
    return Template(
        name,
        one.layout,
        Operations.of_tables([one.operations.table, other.operations.table]),
        (*one.formulas, *other.formulas),
        Items.of([*one.needs.rows(), *before]),
        Items.of([*other.leaves.rows(), *stays]),
    )


def _together(order: Sequence[Instance]) -> list[Instance]:
    """Returns instances of one layer each with those that follow one another, of one template, as one."""
    found = list[Instance]()
    for one in order:
        before = found[-1] if found else None
        if before is not None and (before.template, before.place) == (one.template, one.place):
            stride = one.layer - before.layers[-1]
            if abs(stride) == 1 and (before.repeats == 1 or before.stride == stride):
                found[-1] = replace(before, repeats=before.repeats + 1, stride=stride)
                continue
        found.append(one)
    return found
