"""Puts instances of templates together to one program of hops, with edges between instances.

An instance waits for what others left, item by item where operations touch items and place by place between templates:
what reads a tensor of a layer at a place waits for all that wrote it there. What updates or replaces state waits for
those that read it. State that is brought somewhere and forgotten there takes a buffer, and what brings the same tensor
of another layer to it waits until those that read it are done: so parameters are gathered as far ahead as the contracts
say, and no further. Where what is gathered stays (ZeRO-1), as many are under way: the next one follows when those that
read one are done, as Megatron-LM gathers the next bucket when one is first used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.plans.plan import Plan
from zbench.simulator.hop_graph import HopGraph, graph_of
from zbench.simulator.hops import Hops
from zbench.simulator.steps.expand import AFTER, BYTES, CLASS, LINK_A, LINK_B, OP, QUEUE_A, QUEUE_B, RANK
from zbench.simulator.steps.lower import gpu_queues
from zbench.simulator.steps.played_template import PlayedTemplate
from zbench.simulator.steps.variant import BUFFERS, WRITERS, Key, Variant, between
from zbench.step.operations import GATHER, REDUCE
from zbench.step.template import Step

Edges = tuple[Ints, Ints]
Left = tuple[int, tuple[int, int, int]]  # an instance, and a group of its rows


@dataclass(frozen=True)
class PlayedInstance:
    """An instance of a program: its entry in the step's order, its template, the layer and the variant."""

    entry: int
    template: int
    layer: int
    variant: Variant


@dataclass(frozen=True)
class StepProgram:
    """Hops of instances one after another.

    begin: int64 [instances + 1], where those of each begin. table: their rows as in zbench.simulator.steps.expand,
    with queues of meetings numbered. kinds: of their operations.
    """

    instances: tuple[PlayedInstance, ...]
    graph: HopGraph
    begin: Ints
    table: Ints
    kinds: Ints
    queues: int


@dataclass
class StepParts:
    """The templates of a step as they are played, prepared when they are asked for."""

    step: Step
    plans: Sequence[Plan]
    cost: Cost
    _templates: dict[int, PlayedTemplate] = field(default_factory=dict)
    _variants: dict[tuple[int, tuple[tuple[int, int], ...], int], Variant] = field(default_factory=dict)
    _edges: dict[tuple[int, tuple[int, int, int], int, tuple[int, int, int]], Edges] = field(default_factory=dict)

    def template(self, number: int) -> PlayedTemplate:
        """Returns a template."""
        if number not in self._templates:
            template = self.step.templates[number]
            plan = self.plans[template.layout] if len(self.plans) else None
            self._templates[number] = PlayedTemplate.of(self.step, template, plan, self.cost)
        return self._templates[number]

    def variant(self, number: int, layer: int, place: int, step: Step) -> Variant:
        """Returns a template as it is for a layer, from a place on, of a step that may have fewer layers."""
        missing = self.template(number).missing(layer, step)
        if (number, missing, place) not in self._variants:
            self._variants[number, missing, place] = Variant.of_layers(self.template(number), missing, place, self.cost)
        return self._variants[number, missing, place]

    def between(self, before: Variant, one: tuple[int, int, int], after: Variant, other: tuple[int, int, int]) -> Edges:
        """Returns the edges between the groups of two variants."""
        key = (id(before), one, id(after), other)  # variants live as long as this does
        if key not in self._edges:
            self._edges[key] = between(before, before.groups[one], after, after.groups[other])
        return self._edges[key]


@dataclass
class _Links:
    """What instances left so far: by tensor and layer who wrote it and who read it, as (instance, group), and by tensor
    and first place the readers of buffers that are free, first come first."""

    parts: StepParts
    instances: list[PlayedInstance]
    writers: dict[Key, list[Left]] = field(default_factory=dict)
    readers: dict[Key, list[Left]] = field(default_factory=dict)
    free: dict[tuple[str, int], list[list[Left]]] = field(default_factory=dict)

    def follow(self, number: int) -> list[tuple[int, Edges]]:
        """Returns the edges into an instance, (instance that they come from, edges), and notes what it leaves."""
        one, found = self.instances[number], []
        variant, layer = one.variant, one.layer
        for group, side, tensor, offset, layered, batch in variant.waits:
            if side == BUFFERS:
                buffers = self.free.get((tensor, variant.place))
                others = buffers.pop(0) if buffers else ()
            else:
                before = self.writers if side == WRITERS else self.readers
                others = before.get((tensor, (layer + offset) * layered, batch), ())
            for other, theirs in others:
                edges = self.parts.between(self.instances[other].variant, theirs, variant, group)
                if len(edges[0]):
                    found.append((other, edges))
        for group, writes, tensor, offset, layered, batch in variant.notes:
            after = self.writers if writes else self.readers
            after.setdefault((tensor, (layer + offset) * layered, batch), []).append((number, group))
        for frees, turns, gone, tensor, offset, layered, batch in variant.ends:
            key = (tensor, (layer + offset) * layered, batch)
            if turns:
                self.free.setdefault((tensor, variant.place), []).append(list(self.readers.get(key, [])))
            if frees:
                self.free.setdefault((tensor, variant.place), []).append(self.readers.pop(key, []))
            if gone:
                self.writers.pop(key, None)
                self.readers.pop(key, None)
        return found


def program(parts: StepParts, order: Sequence[tuple[int, int]], step: Step) -> StepProgram:
    """Puts instances, each (entry of the step's order, layer), into a program. step: with the layers that are there,
    maybe fewer than that of the parts."""
    instances = []
    for entry, layer in order:
        of = step.order[entry]
        variant = parts.variant(of.template, layer, of.place, step)
        instances.append(PlayedInstance(entry, of.template, layer, variant))
    links = _Links(parts, instances)
    begin = np.cumsum([0, *(one.variant.lowered.table.shape[1] for one in instances)])
    producer, consumer = [], []
    for number, one in enumerate(instances):
        producer.append(one.variant.lowered.producer + begin[number])
        consumer.append(one.variant.lowered.consumer + begin[number])
        for source, (a, b) in links.follow(number):
            producer.append(a + begin[source])
            consumer.append(b + begin[number])
    table = np.concatenate([one.variant.lowered.table for one in instances], axis=1)
    every = gpu_queues(parts.cost.cluster) * parts.cost.cluster.num_ranks
    meetings = table[QUEUE_A] < -1
    first, queues = _meeting_queues(instances, every)
    at = np.repeat(first, np.diff(begin))
    table[QUEUE_A, meetings] = at[meetings] - 2 - table[QUEUE_A, meetings]
    busy, latency = (
        np.concatenate([getattr(one.variant.lowered, name) for one in instances]) for name in ("busy", "latency")
    )
    kinds = np.concatenate([one.variant.ops[one.variant.lowered.table[OP], 0] for one in instances])
    hops = _hops(table, kinds, parts.cost)
    graph = graph_of(hops, busy, latency, np.concatenate(producer), np.concatenate(consumer))
    return StepProgram(tuple(instances), graph, begin, table, kinds, queues)


def _meeting_queues(instances: Sequence[PlayedInstance], every: int) -> tuple[Ints, int]:
    """Returns the first queue of each instance's meetings, and how many queues there are: instances of a template on
    the same places share theirs, as their collectives follow one another."""
    first: dict[tuple[int, int], int] = {}
    most: dict[tuple[int, int], int] = {}
    which = [(one.template, one.variant.place) for one in instances]
    for key, one in zip(which, instances, strict=True):
        most[key] = max(most.get(key, 0), one.variant.lowered.meetings)
    for key, count in most.items():
        first[key] = every
        every += count
    return np.array([first[key] for key in which], np.int64), every


def _hops(table: Ints, kinds: Ints, cost: Cost) -> Hops:
    """Returns the hops of a table; kinds: of their operations."""
    channels = np.array([one.channels for one in cost.cluster.links] + [1], np.int64)[table[CLASS]]
    whole = (kinds == GATHER) | (kinds == REDUCE) | (channels == 1)
    none = np.zeros(0, np.int64)
    return Hops(
        table[OP],
        table[RANK],
        table[QUEUE_A],
        table[QUEUE_B],
        table[LINK_A],
        table[LINK_B],
        table[CLASS],
        table[BYTES],
        channels,
        whole,
        table[AFTER],
        none,
        none.astype(bool),
        gpu_queues(cost.cluster),
    )
