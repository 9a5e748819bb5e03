"""A template as it is played: its messages, seconds and data flow, whatever layers there are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints, distinct
from zbench.plans.dataflow import Edges
from zbench.plans.plan import WAITS, Plan
from zbench.simulator.rounds import later_computes, round_waits
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.dataflow.flow import Flow, template_flow
from zbench.simulator.steps.dataflow.host_copies import edges_inside
from zbench.simulator.steps.dataflow.messages import leaders
from zbench.simulator.steps.dataflow.touched import OFFSETS, NamedPairs, named_pairs
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.template import Step, Template
from zbench.step.tensor import FOLLOWING, LAYERS, LEADING, NONE

_ATTENTION = QUEUES.index("attention")


@dataclass(frozen=True)
class PlayedTemplate:
    """A template with what the clock needs of it. ops: int64 [n, columns]. moved: bytes of every operation; lead: the
    first one of its message. seconds: of computes. flow: between the first ones of messages. pairs: of a tensor and a
    layer offset that it names."""

    step: Step
    template: Template
    layout: StepLayout
    ops: Ints
    moved: Ints
    lead: Ints
    seconds: Floats
    flow: Flow
    pairs: NamedPairs

    @cached_property
    def size(self) -> Ints:
        """The bytes of every operation, int64 [operations], those of a message at its first one, -1 at the others."""
        return _message_bytes(self.lead, self.moved)

    def without(self, missing: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
        """Returns `size` and the flow's rows without what is not there: of messages that have parameters of both kinds
        of layers, those of one are sent."""
        if not missing or not any(self.layout.kinds):
            return self.size, self.flow.rows
        gone = pair_codes(*np.array(missing, np.int64).T)
        here = (self.ops[:, 0] == COMPUTE) | ~np.isin(pair_codes(self.ops[:, 1], self.ops[:, 7]), gone)
        rows = self.flow.rows[~np.isin(pair_codes(self.flow.rows[:, 2], self.flow.rows[:, 3]), gone)]
        return _message_bytes(self.lead, np.where(here, self.moved, 0)), rows

    @cached_property
    def nature(self) -> Ints:
        """The nature of every tensor, as in zbench.step.tensor, int64 [tensors]."""
        return self.flow.tables.nature

    @cached_property
    def touched(self) -> list[tuple[int, int]]:
        """The (tensor, layer offset) pairs that transfers and the contract are of, each once."""
        return [(code // OFFSETS, code % OFFSETS - OFFSETS // 2) for code in self.pairs.touched.tolist()]

    @cached_property
    def reach(self) -> int:
        """One more than the layers between an instance's and the farthest that is touched."""
        return 1 + max((abs(offset) for _, offset in self.touched), default=0)

    def missing(self, before: int, after: int, leading: int) -> tuple[tuple[int, int], ...]:
        """Returns those of what is touched that are not there for an instance, as the parameters of a layer after the
        last of its stage. before, after: how many layers of its stage stand before and after the instance's. leading:
        how many layers of the first kind stand from the instance's on, below 0: behind how many it stands."""
        spans: dict[str, tuple[int, int]] = {}
        found = []
        for tensor, offset in self.touched:
            one = self.layout.tensors[tensor]
            if one.layers not in spans:
                spans[one.layers] = one.layers_of(-before, after, leading)
            first, last = spans[one.layers]
            if one.layers != NONE and not first <= offset <= last:
                found.append((tensor, offset))
        return tuple(found)


def played_templates(step: Step, sizes: Sizes, plan: Plan | None, cost: Cost) -> list[PlayedTemplate]:
    """Prepares templates of one layout of a step that was proven. plan: of its micro-batch, where it has attention."""
    moved, seconds = sizes.moved(step.encodings), compute_seconds(sizes, plan, cost, step.num_hosts)
    return [
        _played(step, one, plan, sizes, (moved[begin:end], seconds[begin:end]))
        for one, (begin, end) in zip(sizes.templates, pairwise(sizes.begin.tolist()), strict=True)
    ]


def timed_templates(
    step: Step, sizes: Sizes, known: Sequence[PlayedTemplate], plan: Plan | None, cost: Cost
) -> list[PlayedTemplate]:
    """Returns templates as they are known, of a step that is the same, with other seconds. The others as of
    `played_templates`."""
    seconds = np.split(compute_seconds(sizes, plan, cost, step.num_hosts), sizes.begin[1:-1])
    return [
        replace(one, step=step, template=template, layout=sizes.layout, seconds=each)
        for one, template, each in zip(known, sizes.templates, seconds, strict=True)
    ]


def _played(
    step: Step, template: Template, plan: Plan | None, sizes: Sizes, amounts: tuple[Ints, Floats]
) -> PlayedTemplate:
    """Prepares a template. amounts: bytes and seconds of its operations."""
    layout, ops, (moved, seconds) = sizes.layout, template.operations.table, amounts
    flow = template_flow(layout, template, step.num_places, sizes.arrays)
    lead = _of_one_kind(layout, ops, leaders(ops, flow.producer, flow.consumer))
    producer, consumer = lead[flow.producer], lead[flow.consumer]
    if plan is not None and any(getattr(plan, name) for name in WAITS):
        more = _planned_waits(plan, layout, ops, _message_bytes(lead, moved), Edges(producer, consumer))
        producer, consumer = (np.concatenate(side) for side in zip((producer, consumer), *more, strict=True))
    if step.num_hosts:
        more = [edges_inside(layout, ops, step.num_gpus)]
        producer, consumer = (np.concatenate(side) for side in zip((producer, consumer), *more, strict=True))
        producer, consumer = lead[producer], lead[consumer]
    apart = producer != consumer
    producer, consumer = np.divmod(distinct(producer[apart] * len(ops) + consumer[apart]), max(len(ops), 1))
    rows = flow.rows.copy()
    rows[:, 1] = lead[rows[:, 1]]
    flow = replace(flow, producer=producer, consumer=consumer, rows=rows)
    contract = template.needs.table, template.leaves.table
    pairs = NamedPairs(*named_pairs(ops, *contract, layout.lists.offsets, len(layout.tensors)))
    return PlayedTemplate(step, template, layout, ops, moved, lead, seconds, flow, pairs)


def _message_bytes(lead: Ints, moved: Ints) -> Ints:
    """Returns the bytes of messages at their first operations, -1 at the others."""
    size = np.bincount(lead, weights=moved, minlength=len(lead)).astype(np.int64)
    size[lead != np.arange(len(lead))] = -1
    return size


def _of_one_kind(layout: StepLayout, ops: Ints, lead: Ints) -> Ints:
    """Returns the leaders of messages in which no leader is of one kind of layers alone where another operation is of
    the other: whatever is there of a message, its leader is."""
    if not (layout.form.layers == LAYERS.index(LEADING)).any():
        return lead
    kinds = np.array([LAYERS.index(one.layers) for one in layout.tensors], np.int64)
    kind = np.where(ops[:, 0] == COMPUTE, -1, kinds[np.where(ops[:, 0] == COMPUTE, 0, ops[:, 1])])
    of_one = np.isin(kind, [LAYERS.index(LEADING), LAYERS.index(FOLLOWING)])
    found = lead.copy()
    for first in np.unique(lead[of_one & of_one[lead]]).tolist():
        apart = np.flatnonzero((lead == first) & (kind != kind[first]))
        found[apart] = apart[0] if len(apart) else first
    return found


def pair_codes(tensor: NDArray[Any], offset: NDArray[Any]) -> Ints:
    """Returns the numbers of pairs of a tensor and a layer offset."""
    return np.asarray(tensor.astype(np.int64) * OFFSETS + offset + OFFSETS // 2, np.int64)


def _planned_waits(plan: Plan, layout: StepLayout, ops: Ints, size: Ints, found: Edges) -> list[tuple[Ints, Ints]]:
    """Returns the edges of what a plan has attention wait for besides its data (zbench.plans.plan.WAITS). found: the
    data edges."""
    visible = [one.relation is not None and one.relation[0] == "visible" for one in layout.formulas]
    compute, message = ops[:, 0] == COMPUTE, (ops[:, 8] == _ATTENTION) & (size >= 0)
    attend = compute & np.array([*visible, False])[np.where(compute, ops[:, 1], -1)]
    edges = [_in_turn(ops, size)] if plan.serial_legs else []
    if plan.in_rounds:
        index = np.flatnonzero(attend | message)
        place = np.full(len(ops), -1, np.int64)
        place[index] = np.arange(len(index))
        inside = (place[found.producer] >= 0) & (place[found.consumer] >= 0)
        inner = Edges(place[found.producer[inside]], place[found.consumer[inside]])
        part = np.cumsum(compute & ~attend)[index]  # another pass of attention has other computes before it
        producer, consumer = round_waits(attend[index], (ops[index, 2], ops[index, 3]), part, inner)
        edges.append((index[producer], index[consumer]))
    if plan.until_sent:
        sent, later = np.flatnonzero(message), np.flatnonzero(compute & ~attend)
        edges.append(later_computes((sent, ops[sent, 2]), (later, ops[later, 2])))
    return edges


def _in_turn(ops: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Returns edges from every routed transfer of attention to the next of its source (zbench.simulator.serial)."""
    routed = np.flatnonzero((ops[:, 11] >= 0) & (ops[:, 8] == _ATTENTION) & (size >= 0))
    routed = routed[np.argsort(ops[routed, 2], kind="stable")]
    same = ops[routed[1:], 2] == ops[routed[:-1], 2]
    return routed[:-1][same], routed[1:][same]
