"""Inputs of layers, or all activations that they keep, wait in host memory from forward to backward.

A pass over a built step. What a layer keeps is what its forward's contract leaves of it, whatever is recomputed.

- **Inputs** x: a forward sends its own x, which is there from the start; the last layer's of a stage is brought back by
  the head, or by what receives dx of the stage behind.
- **Activations**, all that a layer keeps: a forward sends those of the layer before while it computes, as they are made
  until that one's last operation. The last layer's of a stage stay, as its backward comes next, or, of a stage before
  others, behind forwards of other micro-batches.

A backward brings what the layer before needs while it computes, so that it is there when that one's begins. So a GPU
has two layers' at a time, and the last one's of other micro-batches that are under way. Copies to hosts are last in a
template and copies from hosts first, which is the order that the clock keeps between them and what a GPU computes
(zbench.simulator.steps.dataflow.host_copies), of one micro-batch after another.

It may be the first layers of every stage alone, which are those whose items wait longest: each that stays on a GPU is
gone before any comes back. Forwards that send and backwards that bring are templates of their own beside those that do
not, and so they are where the layer before is of another kind, which keeps other items: dense before layers with
experts, or recomputed before layers that are not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.alike_templates import with_columns_of
from zbench.step.layers import EVERY_COUNT
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import SEND, Operations, operation_row
from zbench.step.passes.memory.host_cells import KeptCells, by_gpu, by_tokens, once_a_host
from zbench.step.template import Instance, Items, Step, Template

Rows = list[list[int]]
INPUT = "x"
OFFLOADED = "offloaded"  # before the name of a template, where other layers' is another one
# Forwards by the backwards of the same layers, by kinds of layers.
_FORWARDS: Mapping[str, str] = MappingProxyType(
    {f"{kind}backward": f"{kind}forward" for kind in ("", "kept_", "dense_")}
)
_FIRST = f"{OFFLOADED}_first"  # the same, behind a layer of another kind
# The templates of layers' backwards, whether they bring something or not.
BACKWARDS = tuple(f"{before}{name}" for name in _FORWARDS for before in ("", f"{OFFLOADED}_", f"{_FIRST}_"))
_HEAD, _RECEIVES = "head", "send_dx"  # that are before the backward of a stage's last layer


def gpus_of_a_host(step: Step, gpus_per_node: int) -> int:
    """Returns how many GPUs share each of the host memories that a step is given: those of a node, or, where layers are
    in stages, one."""
    return 1 if step.is_staged or len(step.pipelines) > 1 else gpus_per_node


def plain_name(template: Template) -> str:
    """Returns the name of a template, whichever micro-batch it is of."""
    return template.name.split(".")[0]


def with_kept_on_hosts(
    step: Step, gpus_per_node: int, layers: Sequence[int], activations: bool = False, sent: Sequence[Flags] = ()
) -> Step:
    """Returns a step in which what layers keep waits in host memory. layers: of each micro-batch's layout, of how many
    first layers of every stage. activations: all that they keep, of at most all layers of a stage but its last; else
    their inputs. sent: of each layout the parts of t of which it does, bool [parts]; (): of all."""
    each = gpus_of_a_host(step, gpus_per_node)
    num_hosts = -(-step.num_gpus // each)
    places = step.num_gpus + num_hosts
    lists = {
        id(one): ListTable.of(one.lists, {index.name: len(index) for index in one.indices}, places)
        for one in step.layouts
    }
    if sent:  # where no part is sent, nothing of a layer is
        layers = [count * bool(some.any()) for count, some in zip(layers, sent, strict=True)]
    of = _Offloading(step, tuple(layers), activations, each, lists, tuple(sent))
    parts = [part for one in step.order for part in of.parts(one)]
    templates, number = of.templates(parts)
    order = tuple(replace(one, template=number[one.template, key]) for one, key in parts)
    layouts = {id(one): replace(one, lists=lists[id(one)].lists()) for one in step.layouts}
    made = tuple(layouts[id(one)] for one in step.layouts)
    return replace(step, num_hosts=num_hosts, layouts=made, templates=tuple(templates), order=order)


@dataclass(frozen=True)
class _Offloading:
    """Which instances of a step send what layers keep to host memory, and which bring it back.

    layers: of each micro-batch's layout, of how many first layers of a stage something waits there. activations: all
    that they keep; else their inputs. each: GPUs of a host memory. lists: of parts, by layout. sent: as of
    with_kept_on_hosts. waiting: by the forwards that keep it, what waits. changed: templates, by the layout, the
    operations and the forward that they are made of, the first of those that are alike.
    """

    step: Step
    layers: tuple[int, ...]
    activations: bool
    each: int
    lists: Mapping[int, ListTable]
    sent: tuple[Flags, ...] = ()
    waiting: dict[int, "_Waiting"] = field(default_factory=dict)
    changed: dict[tuple[int, int, str], Template] = field(default_factory=dict)

    @cached_property
    def kept(self) -> dict[tuple[int, int, int], int]:
        """The forward that is played for every layer, by (layout, place, layer)."""
        found, templates = dict[tuple[int, int, int], int](), self.step.templates
        for one in self.step.order:
            if plain_name(templates[one.template]) in _FORWARDS.values():
                layout = templates[one.template].layout
                found |= {(layout, one.place, layer): one.template for layer in one.layers}
        return found

    def parts(self, one: Instance) -> Iterator[tuple[Instance, int]]:
        """Yields an instance cut where it moves other items, each part with the forward that keeps what it moves, -1
        where it moves nothing."""
        keys = [self._moved(one, layer) for layer in one.layers]
        begin = 0
        for end in range(1, len(keys) + 1):
            if end == len(keys) or keys[end] != keys[begin]:
                yield replace(one, layer=one.layers[begin], repeats=end - begin), keys[begin]
                begin = end

    def _moved(self, one: Instance, layer: int) -> int:
        """Returns the forward that keeps what an instance moves for a layer, -1 where it moves nothing."""
        template = self.step.templates[one.template]
        name, layout = plain_name(template), template.layout
        count = self.layers[layout] if layout < len(self.layers) else 0
        if name not in (*_FORWARDS, *_FORWARDS.values(), _HEAD, _RECEIVES) or not count:
            return -1
        low, high = self.step.span(layer, one.place)
        if name in (_HEAD, _RECEIVES):
            of = -1 if self.activations else high
        elif name in _FORWARDS or self.activations:
            of = max(layer - 1, low)  # a stage's first layer has none before it, and is as the next one
        else:
            of = layer
        there = low <= of < low + min(count, high - low + 1 - self.activations)
        return self.kept[layout, one.place, of] if there else -1

    def templates(self, parts: Sequence[tuple[Instance, int]]) -> tuple[list[Template], dict[tuple[int, int], int]]:
        """Returns the step's templates with those that move something, and the number of each, by that of the one that
        it is made of and the forward that keeps what it moves. One of these stands in the place of a template that is
        played no more."""
        keys = list(dict.fromkeys((one.template, key) for one, key in parts))
        found, number = list(self.step.templates), {key: key[0] for key in keys if key[1] < 0}
        # First those that are of the most layers: of a layer behind another of its kind.
        for at, forward in sorted(
            (key for key in keys if key[1] >= 0), key=lambda key: (key[0], not self._alike(*key))
        ):
            template = self._made(at, forward)
            if at not in {taken for (of, _), taken in number.items() if of == at}:
                found[at], number[at, forward] = template, at
                continue
            before = OFFLOADED if self._alike(at, forward) else _FIRST
            number[at, forward] = len(found)
            found.append(replace(template, name=f"{before}_{template.name}"))
        return found, number

    def _alike(self, at: int, forward: int) -> bool:
        """Returns whether a template is of layers of the kind that keeps what it moves, or of none."""
        name = plain_name(self.step.templates[at])
        return name in (_HEAD, _RECEIVES) or _FORWARDS.get(name, name) == plain_name(self.step.templates[forward])

    def _made(self, at: int, forward: int) -> Template:
        """Returns a template with what it moves of what a forward keeps. Those of micro-batches that are alike have the
        same operations."""
        template = self.step.templates[at]
        layout = self.step.layouts[template.layout]
        if forward not in self.waiting:
            places = self.step.num_gpus, self.each
            sent = self.sent[template.layout] if self.sent else None
            self.waiting[forward] = _Waiting.of(
                self.step.templates[forward], layout, self.lists[id(layout)], places, self.activations, sent
            )
        made = self.waiting[forward].changed(template)
        like = id(layout), id(template.operations), plain_name(self.step.templates[forward])
        return with_columns_of(made, self.changed.setdefault(like, made))


@dataclass(frozen=True)
class _Waiting:
    """The items of a micro-batch's layers that wait on hosts.

    kept: entries of contracts, of the layer's own; there, stays: the same, GPU by GPU, of tokens that wait on hosts,
    and of others; sent: those of it that go to hosts, where two GPUs of a host have the same it is the first one's.
    num_gpus: places before hosts. behind: how many layers behind its own a forward's items to send are.
    """

    lists: ListTable
    kept: Rows
    there: tuple[KeptCells, ...]
    stays: tuple[KeptCells, ...]
    sent: tuple[KeptCells, ...]
    num_gpus: int
    gpus_per_host: int
    behind: int

    @staticmethod
    def of(
        forward: Template,
        layout: StepLayout,
        lists: ListTable,
        gpus: tuple[int, int],
        activations: bool,
        tokens: Flags | None,
    ) -> "_Waiting":
        """Reads what a forward leaves of its own layer. gpus: all, and of a host memory. tokens: the parts of t of
        which something waits there, None: all."""
        leaves, names = forward.leaves, [one.name for one in layout.tensors]
        of_batch = np.array([layout.of_batch(at) if activations else name == INPUT for at, name in enumerate(names)])
        kept = leaves.take(np.flatnonzero(of_batch[leaves.tensor] & (leaves.layer == 0))).rows()
        every = [one for row in kept for one in by_gpu(row, layout, lists)]
        there, stays = (every, []) if tokens is None else by_tokens(every, tokens, layout, lists)
        # Whoever is sent rows of experts has to have their numbers before.
        there.sort(key=lambda one: (names[one.tensor] not in EVERY_COUNT, one.tensor, one.gpu))
        sent = tuple(once_a_host(there, layout, lists, gpus[1]))
        return _Waiting(lists, kept, tuple(there), tuple(stays), sent, *gpus, int(activations))

    def changed(self, template: Template) -> Template:
        """Returns a template of the micro-batch with what it sends to host memory, or brings from there."""
        needs, leaves, operations = template.needs.rows(), template.leaves.rows(), template.operations.table
        name = plain_name(template)
        if name in _FORWARDS.values():
            if self.behind:
                needs = [*needs, *self._on_gpus(-1)]
            else:
                own = {tuple(row) for row in self.kept}
                leaves = [row for row in leaves if tuple(row) not in own]
            tables, leaves = [operations, self._copies(-self.behind)], [*leaves, *self._apart(-self.behind)]
        else:
            layer = 0 if name == _RECEIVES else -1  # that is played for the layer whose backward is next
            needs, leaves = [*needs, *self._apart(layer)], [*leaves, *self._on_gpus(layer)]
            tables = [self._copies(layer, back=True), operations]
        return replace(
            template, operations=Operations.of_tables(tables), needs=Items.of(needs), leaves=Items.of(leaves)
        )

    def _host(self, gpu: int) -> int:
        return self.num_gpus + gpu // self.gpus_per_host

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

    def _apart(self, layer: int) -> Rows:
        """Returns the entries of a layer's items in host memory, and of those that stay on GPUs."""
        places = [(one, self._host(one.gpu)) for one in self.sent] + [(one, one.gpu) for one in self.stays]
        return [
            [one.tensor, layer, self.lists.number(PLACE, [place]), *one.lists, one.complete, 0, 0]
            for one, place in places
        ]
