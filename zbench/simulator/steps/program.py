"""Puts instances of templates together to one program of hops, with edges between instances.

An instance waits for what others left, item by item where operations touch items and place by place between templates:
what reads a tensor of a layer at a place waits for all that wrote it there. What updates or replaces state waits for
those that read it. State that is brought somewhere and forgotten there takes a buffer, and what brings the same tensor
of another layer to it waits until those that read it are done: so parameters are gathered as far ahead as the contracts
say, and no further. Where what is gathered stays (ZeRO-1), as many are under way: the next one follows when those that
read one are done, as Megatron-LM gathers the next bucket when one is first used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.plans.plan import Plan
from zbench.simulator.steps.assembly import StackedVariants, assembled_hops, stacked_variants
from zbench.simulator.steps.dataflow.layout_arrays import LayoutArrays
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.lower import ClusterPorts, all_queues, gpu_queues
from zbench.simulator.steps.played_template import PlayedTemplate
from zbench.simulator.steps.trains.columns import AssembledHops, Narrow, ProgramHops
from zbench.simulator.steps.variant import PlayedInstance, Variant
from zbench.simulator.steps.waiting import WaitTables, edges_between, wait_tables
from zbench.step.template import ACROSS, ITEM_COLUMNS, Step


@dataclass(frozen=True)
class StepProgram:
    """Hops of instances one after another.

    begin: int64 [instances + 1], where those of each begin. assembled: their columns, what follows each, and which are
    trains, legs of collectives that go in pieces (zbench.simulator.steps.trains.clock). variants, stacked: those that
    they are of, and the rows of these; which: int64 [instances], the number of each one's. queues: how many there are;
    gpu_queues: of a GPU.
    """

    instances: tuple[PlayedInstance, ...]
    begin: Ints
    assembled: AssembledHops
    variants: Sequence[Variant]
    stacked: StackedVariants
    which: Ints
    queues: int
    gpu_queues: int

    @property
    def hops(self) -> ProgramHops:
        """The hops of all instances, one after another."""
        return self.assembled.hops

    @cached_property
    def owner(self) -> Narrow:
        """The instance of each hop."""
        return np.repeat(np.arange(len(self.which), dtype=np.int32), np.diff(self.begin))

    def rows_of(self, number: int) -> slice:
        """Returns where the rows of an instance's hops are."""
        return slice(*self.stacked.begin[self.which[number] : self.which[number] + 2].tolist())

    def is_linkless(self, number: int) -> bool:
        """Returns whether no hop of an instance takes a link, as of an optimizer's."""
        return not (self.hops.rows.link_a[self.rows_of(number)] >= 0).any()

    @cached_property
    def of_runs(self) -> dict[int, list[int]]:
        """The instances of each run."""
        found: dict[int, list[int]] = {}
        for number, one in enumerate(self.instances):
            found.setdefault(one.run, []).append(number)
        return found

    @cached_property
    def apart(self) -> HopByHop:
        """The hops one by one, with the pieces of trains."""
        return HopByHop(self.assembled, self.instances, self.gpu_queues)


class VariantTables(NamedTuple):
    """The tables that programs take from variants, whatever instances there are of them. waiting: who waits for whom.
    stacked: their hops. queues: how many queues these are in."""

    waiting: WaitTables
    stacked: StackedVariants
    queues: int


@dataclass
class StepParts:
    """The templates of a step as they are played, prepared when they are asked for. lasting: what is known of the step
    whatever the machine's speeds are, by name."""

    step: Step
    plans: Sequence[Plan]
    cost: Cost
    lasting: dict[str, Any] = field(default_factory=dict)
    _before: "StepParts | None" = None  # the same on a machine of other speeds
    _arrays: dict[int, LayoutArrays] = field(default_factory=dict)
    _templates: dict[int, PlayedTemplate] = field(default_factory=dict)
    _same: dict[tuple[int, ...], PlayedTemplate] = field(default_factory=dict)  # of micro-batches that are alike
    _runs: dict[bytes, int] = field(default_factory=dict)  # of layers on the same stages of all pipelines
    _alike: dict[tuple[int, int, int, int, int], Variant] = field(default_factory=dict)
    _reaches: dict[int, int] = field(default_factory=dict)  # PlayedTemplate.reach
    _variants: dict[tuple[int, tuple[tuple[int, int], ...], int], Variant] = field(default_factory=dict)
    _lowered: dict[tuple[int, tuple[tuple[int, int], ...], int], Variant] = field(default_factory=dict)
    _tables: dict[tuple[int, ...], VariantTables] = field(default_factory=dict)

    def on(self, cost: Cost) -> "StepParts":
        """Returns the same step on a machine of these speeds: seconds alone are new, and what depends on them. What is
        the same is prepared here, and stays."""
        return StepParts(self.step, self.plans, cost, self.lasting, self)

    @cached_property
    def _ports(self) -> ClusterPorts:
        return ClusterPorts(self.cost)

    def template(self, number: int) -> PlayedTemplate:
        """Returns a template."""
        if number not in self._templates:
            template = self.step.templates[number]
            first = self.step.same_layouts[template.layout]
            named = (getattr(one, name) for one in (template.needs, template.leaves) for name in ITEM_COLUMNS[:5])
            key = first, id(template.operations), *map(id, named)  # counts of sums take no time
            plan, before = self.plans[first] if first < len(self.plans) else None, self._before
            if key not in self._same and before is not None:
                known = before.template(number)
                self._same[key] = known if before.cost == self.cost else known.timed(plan, self.cost)
            elif key not in self._same:
                if first not in self._arrays:
                    self._arrays[first] = LayoutArrays.of(self.step.layouts[first])
                self._same[key] = PlayedTemplate.of(self.step, template, plan, self.cost, self._arrays[first])
            self._templates[number] = replace(self._same[key], template=template)
        return self._templates[number]

    def variant(self, number: int, layer: int, place: int, step: Step) -> Variant:
        """Returns a template as it is for a layer, from a place on, of a step that may have fewer layers."""
        low, high = step.span(layer, place)
        if place == ACROSS:
            shifts = step.shifts[:, min(layer, step.num_layers)].tobytes()
            place = ACROSS - self._runs.setdefault(shifts, len(self._runs))
        reach = self._reaches.get(number)
        if reach is None:
            reach = self._reaches[number] = self.template(number).reach
        # What is farther away is not touched.
        leading = min(max(step.leading - layer, -reach), reach) if step.leading else 0
        key = (number, min(layer - low, reach), min(high - layer, reach), leading, place)
        if key not in self._alike:
            missing = self.template(number).missing(*key[1:4])
            if (number, missing, place) not in self._variants:
                of = self.template(number)
                same = id(of.flow), missing, place
                if same not in self._lowered:
                    where = step.where(max(place, ACROSS), layer)
                    self._lowered[same] = Variant.of_layers(of, missing, (place, where), self._ports)
                self._variants[number, missing, place] = replace(self._lowered[same], of=of)
            self._alike[key] = self._variants[number, missing, place]
        return self._alike[key]

    @cached_property
    def of_step(self) -> tuple[list[Variant], Ints]:
        """The variants of the step, all layers, and the number of each instance's, int64 [instances]."""
        number, which = dict[int, int](), []
        variants: list[Variant] = []
        for one in self.step.order:
            for layer in one.layers:
                variant = self.variant(one.template, layer, one.place, self.step)
                if id(variant) not in number:
                    number[id(variant)] = len(variants)
                    variants.append(variant)
                which.append(number[id(variant)])
        return variants, np.array(which, np.int64)

    def tables(self, variants: Sequence[Variant]) -> VariantTables:
        """Returns what programs take from some of its variants."""
        key = tuple(id(one) for one in variants)
        if key not in self._tables:
            cluster = self.cost.cluster
            meetings, queues = _meeting_queues(variants, all_queues(cluster))
            stacked = stacked_variants(variants, meetings, cluster)
            self._tables[key] = VariantTables(wait_tables(self.step, variants), stacked, queues)
        return self._tables[key]


def program(parts: StepParts, order: Sequence[tuple[int, int]], step: Step) -> StepProgram:
    """Puts instances, each (entry of the step's order, layer), into a program. step: with the layers that are there,
    maybe fewer than that of the parts."""
    instances, runs = [], parts.step.runs
    for entry, layer in order:
        of = step.order[entry]
        variant = parts.variant(of.template, layer, of.place, step)
        instances.append(PlayedInstance(entry, runs[entry], of.template, layer, variant))
    variants = list({id(one.variant): one.variant for one in instances}.values())
    number = {id(one): at for at, one in enumerate(variants)}
    which = np.array([number[id(one.variant)] for one in instances], np.int64)
    tables = parts.tables(variants)
    begin = np.concatenate([[0], np.cumsum(np.diff(tables.stacked.begin)[which])])
    stage = {place: at for at, place in enumerate(dict.fromkeys(one.variant.place for one in instances))}
    layers = np.array([(one.layer, stage[one.variant.place]) for one in instances], np.int64)
    rows = np.column_stack([which, layers, begin[:-1]])
    between = edges_between(tables.waiting, step.num_layers, rows)
    found = assembled_hops(tables.stacked, rows[:, [0, 3]], between, tables.queues)
    queues = gpu_queues(parts.cost.cluster)
    return StepProgram(tuple(instances), begin, found, variants, tables.stacked, which, tables.queues, queues)


def _meeting_queues(variants: Sequence[Variant], every: int) -> tuple[list[int], int]:
    """Returns the queue of each variant's first meeting, and how many queues there are, `every` without meetings:
    variants of a template on the same places share theirs, as their collectives follow one another."""
    most: dict[tuple[int, int], int] = {}
    which = [(id(one.of), one.place) for one in variants]
    for key, one in zip(which, variants, strict=True):
        most[key] = max(most.get(key, 0), one.lowered.meetings)
    ends = np.cumsum([every, *most.values()]).tolist()
    first = dict(zip(most, ends, strict=False))
    return [first[key] for key in which], ends[-1]
