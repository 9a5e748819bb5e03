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
from functools import cached_property

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.plans.plan import Plan
from zbench.simulator.hop_graph import HopGraph, graph_of
from zbench.simulator.hops import Hops
from zbench.simulator.steps.dataflow.layout_arrays import LayoutArrays
from zbench.simulator.steps.expand import AFTER, BYTES, CLASS, LINK_A, LINK_B, OP, QUEUE_A, QUEUE_B, RANK
from zbench.simulator.steps.lower import ClusterPorts, gpu_queues
from zbench.simulator.steps.played_template import PlayedTemplate
from zbench.simulator.steps.variant import Variant
from zbench.simulator.steps.waiting import WaitTables, edges_between, wait_tables
from zbench.step.operations import GATHER, REDUCE
from zbench.step.template import ACROSS, Step


@dataclass(frozen=True)
class PlayedInstance:
    """An instance of a program: its entry in the step's order and that one's run, its template, the layer and the
    variant."""

    entry: int
    run: int
    template: int
    layer: int
    variant: Variant


@dataclass(frozen=True)
class StepProgram:
    """Hops of instances one after another.

    begin: int64 [instances + 1], where those of each begin. table: their rows as in zbench.simulator.steps.expand,
    with queues of meetings numbered. kinds: of their operations. trains: of the pieces of collectives, as
    zbench.simulator.steps.trains.clock has them.
    """

    instances: tuple[PlayedInstance, ...]
    graph: HopGraph
    begin: Ints
    table: Ints
    kinds: Ints
    queues: int
    trains: Ints


@dataclass
class StepParts:
    """The templates of a step as they are played, prepared when they are asked for."""

    step: Step
    plans: Sequence[Plan]
    cost: Cost
    _arrays: dict[int, LayoutArrays] = field(default_factory=dict)
    _templates: dict[int, PlayedTemplate] = field(default_factory=dict)
    _runs: dict[bytes, int] = field(default_factory=dict)  # of layers on the same stages of all pipelines
    _alike: dict[tuple[int, int, int, int], Variant] = field(default_factory=dict)
    _variants: dict[tuple[int, tuple[tuple[int, int], ...], int], Variant] = field(default_factory=dict)
    _waiting: dict[tuple[int, ...], WaitTables] = field(default_factory=dict)

    @cached_property
    def _ports(self) -> ClusterPorts:
        return ClusterPorts(self.cost)

    def template(self, number: int) -> PlayedTemplate:
        """Returns a template."""
        if number not in self._templates:
            template = self.step.templates[number]
            plan = self.plans[template.layout] if template.layout < len(self.plans) else None
            if template.layout not in self._arrays:
                self._arrays[template.layout] = LayoutArrays.of(self.step.layouts[template.layout])
            arrays = self._arrays[template.layout]
            self._templates[number] = PlayedTemplate.of(self.step, template, plan, self.cost, arrays)
        return self._templates[number]

    def variant(self, number: int, layer: int, place: int, step: Step) -> Variant:
        """Returns a template as it is for a layer, from a place on, of a step that may have fewer layers."""
        low, high = step.span(layer, place)
        if place == ACROSS:
            shifts = step.shifts[:, min(layer, step.num_layers)].tobytes()
            place = ACROSS - self._runs.setdefault(shifts, len(self._runs))
        reach = self.template(number).reach
        key = (number, min(layer - low, reach), min(high - layer, reach), place)  # what is farther away is not touched
        if key not in self._alike:
            missing = self.template(number).missing(*key[1:3])
            if (number, missing, place) not in self._variants:
                where = step.where(max(place, ACROSS), layer)
                made = Variant.of_layers(self.template(number), missing, (place, where), self._ports)
                self._variants[number, missing, place] = made
            self._alike[key] = self._variants[number, missing, place]
        return self._alike[key]

    def waiting(self, variants: Sequence[Variant]) -> WaitTables:
        """Returns what is known of some of its variants."""
        key = tuple(id(one) for one in variants)
        if key not in self._waiting:
            self._waiting[key] = wait_tables(self.step, variants)
        return self._waiting[key]


def program(parts: StepParts, order: Sequence[tuple[int, int]], step: Step) -> StepProgram:
    """Puts instances, each (entry of the step's order, layer), into a program. step: with the layers that are there,
    maybe fewer than that of the parts."""
    instances, runs = [], parts.step.runs
    for entry, layer in order:
        of = step.order[entry]
        variant = parts.variant(of.template, layer, of.place, step)
        instances.append(PlayedInstance(entry, runs[entry], of.template, layer, variant))
    begin = np.cumsum([0, *(one.variant.lowered.table.shape[1] for one in instances)])
    producer = [one.variant.lowered.producer + first for one, first in zip(instances, begin[:-1], strict=True)]
    consumer = [one.variant.lowered.consumer + first for one, first in zip(instances, begin[:-1], strict=True)]
    between = _between(parts, instances, begin, step.num_layers)
    producer.append(between[0])
    consumer.append(between[1])
    table = np.concatenate([one.variant.lowered.table for one in instances], axis=1)
    every = gpu_queues(parts.cost.cluster) * parts.cost.cluster.num_ranks
    meetings = np.flatnonzero(table[QUEUE_A] < -1)
    first, queues = _meeting_queues(instances, every)
    at = first[np.searchsorted(begin, meetings, side="right") - 1]
    table[QUEUE_A, meetings] = at - 2 - table[QUEUE_A, meetings]
    busy, latency = (
        np.concatenate([getattr(one.variant.lowered, name) for one in instances]) for name in ("busy", "latency")
    )
    kinds = np.concatenate([one.variant.kinds for one in instances])
    hops = _hops(table, kinds, parts.cost)
    graph = graph_of(hops, busy, latency, np.concatenate(producer), np.concatenate(consumer))
    trains = np.concatenate([one.variant.lowered.trains for one in instances])
    trains[:, 0] += np.repeat(begin[:-1], [len(one.variant.lowered.trains) for one in instances])
    return StepProgram(tuple(instances), graph, begin, table, kinds, queues, trains)


def _between(parts: StepParts, instances: Sequence[PlayedInstance], begin: Ints, num_layers: int) -> tuple[Ints, Ints]:
    """Returns the edges between the hops of different instances. begin: the first hop of each."""
    variants = list({id(one.variant): one.variant for one in instances}.values())
    number = {id(one): at for at, one in enumerate(variants)}
    stage = {place: at for at, place in enumerate(dict.fromkeys(one.variant.place for one in instances))}
    rows = [
        [number[id(one.variant)], one.layer, stage[one.variant.place], first]
        for one, first in zip(instances, begin.tolist(), strict=False)
    ]
    return edges_between(parts.waiting(variants), num_layers, np.array(rows, np.int64))


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
