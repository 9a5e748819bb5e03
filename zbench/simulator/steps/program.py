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
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.dataflow.layout_arrays import LayoutArrays
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.host_order import edges_across
from zbench.simulator.steps.instances import Likeness, PlayedInstances, StepOrder
from zbench.simulator.steps.lower import ClusterPorts, all_queues, gpu_queues, ports_of
from zbench.simulator.steps.played_template import PlayedTemplate, played_templates, timed_templates
from zbench.simulator.steps.same_step import is_same
from zbench.simulator.steps.trains.columns import AssembledHops, Narrow, ProgramHops
from zbench.simulator.steps.variant import AskedVariant, PlayedInstance, Variant, variants_of
from zbench.simulator.steps.waiting import WaitTables, edges_between, wait_tables
from zbench.step.template import ITEM_COLUMNS, Step


@dataclass(frozen=True)
class StepProgram:
    """Hops of instances one after another.

    of: the instances. begin: int64 [instances + 1], where the hops of each begin. assembled: their columns, what
    follows each, and which are trains, hops that go in pieces (zbench.simulator.steps.trains.clock).
    variants, stacked: those that they are of, and the rows of these; which: int64 [instances], the one of each.
    queues: how many there are; gpu_queues: of a GPU.
    """

    of: PlayedInstances
    begin: Ints
    assembled: AssembledHops
    variants: Sequence[Variant]
    stacked: StackedVariants
    which: Ints
    queues: int
    gpu_queues: int

    @cached_property
    def instances(self) -> tuple[PlayedInstance, ...]:
        """The instances, each with its variant."""
        columns = (column.tolist() for column in (self.of.entry, self.of.template, self.of.layer, self.which))
        return tuple(
            PlayedInstance(entry, template, layer, self.variants[which])
            for entry, template, layer, which in zip(*columns, strict=True)
        )

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

    def run_of(self, number: int) -> list[int]:
        """Returns the instances of an instance's run."""
        return self.of.of_runs[int(self.of.run[number])]

    @cached_property
    def _alike(self) -> dict[int, list[int]]:
        """The results of `alike`."""
        return {}

    def alike(self, number: int) -> list[int]:
        """Returns the instances of an instance's run that are of the variant in its middle."""
        if number not in self._alike:
            mine = self.run_of(number)
            middle = self.which[mine[len(mine) // 2]]
            self._alike[number] = [at for at in mine if self.which[at] == middle]
        return self._alike[number]

    @cached_property
    def apart(self) -> HopByHop:
        """The hops one by one, with the pieces of trains."""
        return HopByHop(self.assembled, self.instances, self.gpu_queues)


_MOST_KEPT = 2**15  # operations of templates of a step that is kept: some 25 MB


class VariantTables(NamedTuple):
    """The tables that programs take from variants, whatever instances there are of them. waiting: who waits for whom.
    stacked: their hops. queues: how many queues these are in."""

    waiting: WaitTables
    stacked: StackedVariants
    queues: int

    def timed(self, variants: Sequence[Variant]) -> "VariantTables":
        """Returns those of variants that differ in the seconds of computes alone."""
        busy = np.concatenate([one.lowered.busy for one in variants])
        return self._replace(stacked=self.stacked._replace(rows=self.stacked.rows._replace(busy=busy)))


@dataclass
class StepParts:
    """The templates of a step as they are played, prepared when they are asked for. lasting: what is known of the step
    whatever its seconds are, by name."""

    step: Step
    plans: Sequence[Plan]
    cost: Cost
    lasting: dict[str, Any] = field(default_factory=dict)
    _before: "StepParts | None" = None  # the same with other seconds
    _arrays: dict[int, LayoutArrays] = field(default_factory=dict)
    _templates: dict[int, PlayedTemplate] = field(default_factory=dict)
    _alike: dict[Likeness, Variant] = field(default_factory=dict)
    _variants: dict[tuple[Any, ...], Variant] = field(default_factory=dict)  # by template, and as `_lowered`
    _lowered: dict[tuple[Any, ...], Variant] = field(default_factory=dict)  # by data flow, what is missing, and place
    _tables: dict[tuple[int, ...], VariantTables] = field(default_factory=dict)

    def on(self, cost: Cost) -> "StepParts":
        """Returns the same step on a machine of these speeds: seconds alone are new, and what depends on them. What is
        the same is prepared here, and stays."""
        return StepParts(self.step, self.plans, cost, self.lasting, self)

    def after(self, before: "StepParts") -> "StepParts":
        """Returns the step with what is prepared of another one on the same machine, where they differ in nothing but
        which tokens attend to which; these parts where they do not, or have something of another one already."""
        if self._before is not None or before.cost != self.cost:
            return self
        if not is_same((self.step, self.plans), (before.step, before.plans)):
            return self
        return StepParts(self.step, self.plans, self.cost, before.lasting, before)

    @cached_property
    def _like(self) -> "StepParts | None":
        """The parts of which hops are the same but for the seconds of computes."""
        return self._before if self._before is not None and self._before.cost == self.cost else None

    @cached_property
    def _ports(self) -> ClusterPorts:
        return ports_of(self.cost)

    def template(self, number: int) -> PlayedTemplate:
        """Returns a template."""
        if number not in self._templates:
            self._prepare(self.step.same_layouts[self.step.templates[number].layout])
        return self._templates[number]

    def arrays(self, layout: int) -> LayoutArrays:
        """Returns a layout as arrays."""
        if layout not in self._arrays:
            self._arrays[layout] = LayoutArrays.of(self.step.layouts[layout])
        return self._arrays[layout]

    @cached_property
    def _numbers(self) -> dict[int, list[int]]:
        """The templates of each layout, of layouts that are the same by the first of them."""
        found: dict[int, list[int]] = {}
        for number, one in enumerate(self.step.templates):
            found.setdefault(self.step.same_layouts[one.layout], []).append(number)
        return found

    def _prepare(self, layout: int) -> None:
        """Prepares all templates of a layout, those of micro-batches that are alike once."""
        plan = self.plans[layout] if layout < len(self.plans) else None
        templates, alike = self.step.templates, dict[tuple[int, ...], list[int]]()
        for number in self._numbers[layout]:
            one = templates[number]
            named = (getattr(items, name) for items in (one.needs, one.leaves) for name in ITEM_COLUMNS[:5])
            key = id(one.operations), *map(id, named)  # counts of sums take no time
            alike.setdefault(key, []).append(number)
        firsts = [numbers[0] for numbers in alike.values()]
        sizes = Sizes(self.step.layouts[layout], [templates[number] for number in firsts], self.arrays(layout))
        if self._before is None:
            found = played_templates(self.step, sizes, plan, self.cost)
        else:
            known = [self._before.template(number) for number in firsts]
            found = timed_templates(self.step, sizes, known, plan, self.cost)
        for numbers, played in zip(alike.values(), found, strict=True):
            self._templates[numbers[0]] = played
            for number in numbers[1:]:
                self._templates[number] = replace(played, template=templates[number])

    @cached_property
    def order(self) -> StepOrder:
        """The step's order."""
        return StepOrder.of(self.step)

    def variants(self, instances: PlayedInstances) -> tuple[list[Variant], Ints]:
        """Returns templates as they are for instances, each once, and the number of each instance's, int64 [instances].
        Those that are new are lowered together."""
        alike = instances.alike(tuple(self.template(number).reach for number in instances.templates))
        exact, asked = dict[Likeness, tuple[Any, ...]](), dict[tuple[Any, ...], AskedVariant]()
        for key in alike.likenesses:
            if key not in self._alike:
                of, place = self.template(key[0]), key[4]
                missing = of.missing(*key[1:4])
                same = exact[key] = id(of.flow), missing, place
                if same not in self._lowered and same not in asked and not self._knows(same, of):
                    asked[same] = AskedVariant(of, missing, place, instances.where[place])
        self._lowered.update(zip(asked, variants_of(list(asked.values()), self._ports), strict=True))
        for key, same in exact.items():
            of, known = self.template(key[0]), self._lowered[same]
            one = known if known.of is of else replace(known, of=of)
            self._alike[key] = self._variants.setdefault((key[0], *same), one)
        found, number = [self._alike[key] for key in alike.likenesses], dict[int, int]()
        numbers = np.array([number.setdefault(id(one), len(number)) for one in found], np.int64)
        return list({id(one): one for one in found}.values()), numbers[alike.which]

    def _knows(self, same: tuple[Any, ...], of: PlayedTemplate) -> bool:
        """Returns whether a variant, by its key in `_lowered`, is one that is known but for its seconds, which it has
        from then on."""
        known = None if self._like is None else self._like._lowered.get(same)
        found = None if known is None else known.timed(of)
        if found is not None:
            self._lowered[same] = found
        return found is not None

    @cached_property
    def of_step(self) -> tuple[list[Variant], Ints]:
        """The variants of the step, all layers, and the number of each instance's, int64 [instances]."""
        return self.variants(self.order.all_instances)

    def tables(self, variants: Sequence[Variant]) -> VariantTables:
        """Returns what programs take from some of its variants."""
        key = tuple(id(one) for one in variants)
        if key not in self._tables:
            known = None if self._like is None else self._like._tables.get(tuple(id(one.like) for one in variants))
            self._tables[key] = self._made_tables(variants) if known is None else known.timed(variants)
        return self._tables[key]

    def _made_tables(self, variants: Sequence[Variant]) -> VariantTables:
        cluster = self.cost.cluster
        meetings, queues = _meeting_queues(variants, all_queues(cluster))
        return VariantTables(wait_tables(self.step, variants), stacked_variants(variants, meetings, cluster), queues)


@dataclass(slots=True)
class KeptStep:
    """A step of a run, kept as long as those that follow are the same but for which tokens attend to which.

    It is the first one, or the second where that differs: what the first one learns of lists that no batch changes,
    later ones begin with (zbench.step.passes.parameters.kept_tables).
    """

    _first: StepParts | None = None
    _more: int = 2  # steps that may yet be kept

    def prepared(self, parts: StepParts) -> StepParts:
        """Returns the next step of the run, with what is prepared of the kept one where they are the same."""
        found = parts if self._first is None else parts.after(self._first)
        if found is parts:
            is_small = sum(len(one.operations) for one in parts.step.templates) <= _MOST_KEPT
            self._first = parts if self._more and is_small else None
            self._more = max(self._more - 1, 0)
        return found


def program(parts: StepParts, instances: PlayedInstances) -> StepProgram:
    """Puts instances of a step into a program."""
    step, (variants, which) = parts.step, parts.variants(instances)
    tables = parts.tables(variants)
    begin = np.concatenate([[0], np.cumsum(np.diff(tables.stacked.begin)[which])])
    rows = np.column_stack([which, instances.layer, instances.stage, begin[:-1]])
    between = edges_between(tables.waiting, instances.num_layers, rows)
    if step.num_hosts:
        copies = edges_across(variants, which, begin, step.num_gpus)
        between = np.concatenate([between[0], copies[0]]), np.concatenate([between[1], copies[1]])
    found = assembled_hops(tables.stacked, rows[:, [0, 3]], between, tables.queues)
    queues = gpu_queues(parts.cost.cluster)
    return StepProgram(instances, begin, found, variants, tables.stacked, which, tables.queues, queues)


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
