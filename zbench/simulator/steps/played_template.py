"""A template as it is played: its messages, seconds and data flow, whatever layers there are."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.plans.plan import Plan
from zbench.simulator.steps.flow import Flow, template_flow
from zbench.simulator.steps.messages import leaders
from zbench.simulator.steps.seconds import compute_seconds
from zbench.simulator.steps.sizes import Sizes
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.template import AT_HOME, Items, Step, Template

_ATTENTION = QUEUES.index("attention")


@dataclass(frozen=True)
class PlayedTemplate:
    """A template with what the clock needs of it. ops: int64 [n, columns]. size: bytes of every operation, those of a
    message at its first one, -1 at the others. seconds: of computes. flow: between the first ones of messages."""

    step: Step
    template: Template
    layout: StepLayout
    ops: Ints
    size: Ints
    seconds: Floats
    flow: Flow

    @staticmethod
    def of(step: Step, template: Template, plan: Plan | None, cost: Cost) -> "PlayedTemplate":
        """Prepares a template of a step that was proven. plan: of its micro-batch, where it has attention."""
        layout = step.layouts[template.layout]
        ops, sizes = template.operations.rows(), Sizes(layout, template)
        flow = template_flow(layout, template, step.num_places)
        lead = leaders(ops, flow.producer, flow.consumer)
        size = np.bincount(lead, weights=sizes.moved(step.encodings), minlength=len(ops)).astype(np.int64)
        size[lead != np.arange(len(ops))] = -1
        producer, consumer = lead[flow.producer], lead[flow.consumer]
        if plan is not None and plan.serial_legs:
            more = _in_turn(ops, size)
            producer, consumer = np.concatenate([producer, more[0]]), np.concatenate([consumer, more[1]])
        edges = np.unique(producer * len(ops) + consumer) if len(ops) else producer
        edges = edges[edges // max(len(ops), 1) != edges % max(len(ops), 1)]
        rows = flow.rows.copy()
        rows[:, 1] = lead[rows[:, 1]]
        seconds = compute_seconds(sizes, plan, cost)
        flow = replace(flow, producer=edges // max(len(ops), 1), consumer=edges % max(len(ops), 1), rows=rows)
        return PlayedTemplate(step, template, layout, ops, size, seconds, flow)

    @cached_property
    def touched(self) -> Ints:
        """The (tensor, layer offset) pairs that transfers and the contract are of, each once, int64 [n, 2]."""
        both = self.template.needs.table(), self.template.leaves.table()
        rows = [self.ops[self.ops[:, 0] != COMPUTE][:, [1, 7]], *(items[:, :2] for items in both)]
        return np.unique(np.concatenate(rows), axis=0)

    @cached_property
    def held(self) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
        """The numbers of items before and after it, by (tensor, layer offset)."""
        needs, leaves = self.template.needs, self.template.leaves
        return _counted(self.step, needs, self.template.layout), _counted(self.step, leaves, self.template.layout)

    @cached_property
    def replaced(self) -> set[tuple[int, int]]:
        """The (tensor, layer offset) pairs that transfers bring in a later version than there was before: they replace
        what is there, and need no room of their own."""
        versions: dict[tuple[int, int], int] = {}
        for tensor, offset, *_, version, _ in self.template.needs.rows():
            versions[tensor, offset] = max(version, versions.get((tensor, offset), version))
        transfers = self.ops[self.ops[:, 0] != COMPUTE]
        return {
            (tensor, offset)
            for tensor, offset, version in np.unique(transfers[:, [1, 7, 9]], axis=0).tolist()
            if version > versions.get((tensor, offset), version)
        }

    def missing(self, layer: int, step: Step) -> tuple[tuple[int, int], ...]:
        """Returns those of what is touched that are not there for an instance, as the parameters of a layer after the
        last of its stage. step: that is played, maybe with fewer layers."""
        low, high = step.layers_of_stages[min(max(layer, 0), step.num_layers)].tolist()
        found = []
        for tensor, offset in self.touched.tolist():
            kind = self.layout.tensors[tensor].layers
            if kind != "none" and not low <= layer + offset <= high + (kind == "border"):
                found.append((tensor, offset))
        return tuple(found)


def _in_turn(ops: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Returns edges from every routed transfer of attention to the next of its source (zbench.simulator.serial)."""
    routed = np.flatnonzero((ops[:, 11] >= 0) & (ops[:, 8] == _ATTENTION) & (size >= 0))
    routed = routed[np.argsort(ops[routed, 2], kind="stable")]
    same = ops[routed[1:], 2] == ops[routed[:-1], 2]
    return routed[:-1][same], routed[1:][same]


def _counted(step: Step, items: Items, number: int) -> dict[tuple[int, int], int]:
    """Counts the items of a contract of layout `number` by (tensor, layer offset)."""
    found: dict[tuple[int, int], int] = {}
    size = np.diff(step.layouts[number].lists.offsets)
    for tensor, offset, places, list0, list1, *_ in items.rows():
        count = 1 if places == AT_HOME else int(size[places])
        for which in (list0, list1):
            count *= int(size[which]) if which >= 0 else 1
        found[tensor, offset] = found.get((tensor, offset), 0) + count
    return found
