"""A template as it is played: its hops, what it waits for and leaves, of those layers that there are."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Flags, Floats, Ints
from zbench.plans.plan import Plan
from zbench.simulator.steps.chains import ARRIVES, READS, USES, WRITES
from zbench.simulator.steps.expand import AFTER, IS_LAST, OP, START
from zbench.simulator.steps.flow import Flow, template_flow
from zbench.simulator.steps.lower import Lowered, lower
from zbench.simulator.steps.messages import leaders
from zbench.simulator.steps.seconds import compute_seconds
from zbench.simulator.steps.sizes import Sizes
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, MOVE, QUEUES, SEND
from zbench.step.template import AT_HOME, Items, Step, Template
from zbench.step.tensor import NATURES, STATE

Key = tuple[str, int, int]  # tensor, layer, micro-batch (-1: of the step)
WRITERS, READERS, BUFFERS = range(3)  # whom an operation waits for
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

    def variant(self, missing: tuple[tuple[int, int], ...], place: int, cost: Cost) -> "Variant":
        """Returns it without the transfers of what is not there, its places counted from `place` on."""
        here = np.ones(len(self.ops), bool)
        for tensor, offset in missing:
            here &= (self.ops[:, 0] == COMPUTE) | (self.ops[:, 1] != tensor) | (self.ops[:, 7] != offset)
        at = np.cumsum(here) - 1
        edges = here[self.flow.producer] & here[self.flow.consumer]
        rows = self.flow.rows[here[self.flow.rows[:, 1]]].copy()
        rows[:, 1] = at[rows[:, 1]]
        rows[:, 4] += place
        ops = self.ops[here]
        direct = np.isin(ops[:, 0], (SEND, MOVE))
        ops[:, 2] += np.where(ops[:, 2] >= 0, place, 0)
        ops[:, 3] += np.where(direct, place, 0)
        lowered = lower(
            self.step,
            (self.layout, place),
            ops,
            (at[self.flow.producer[edges]], at[self.flow.consumer[edges]]),
            self.size[here],
            self.seconds[here],
            cost,
        )
        return Variant(self, ops, lowered, rows, missing, place)


@dataclass(frozen=True)
class Variant:
    """A template for layers of which the same is there: its operations, their hops, and its rows (Flow.rows).

    missing: the (tensor, layer offset) pairs that are not there. place: from which its places are counted, which
    operations, hops and rows are in already.
    """

    of: PlayedTemplate
    ops: Ints
    lowered: Lowered
    rows: Ints
    missing: tuple[tuple[int, int], ...]
    place: int

    @cached_property
    def attends(self) -> Flags:
        """Whether each operation computes attention, forward or backward."""
        return self._computes(("attend", "attend_d"))

    @cached_property
    def updates(self) -> Flags:
        """Whether each operation is the optimizer's."""
        return self._computes(("adam",))

    def _computes(self, functions: tuple[str, ...]) -> Flags:
        """Returns whether each operation is a compute of a formula that begins with one of some functions."""
        formulas = self.of.layout.formulas
        named = np.array([one.terms[0].function in functions for one in formulas] + [False])
        return named[np.where(self.ops[:, 0] == COMPUTE, self.ops[:, 1], len(formulas))]

    @cached_property
    def waits(self) -> "tuple[Wait, ...]":
        """The groups of its rows that wait for what other instances left, in their order."""
        found, layout = [], self.of.layout
        for group in self.groups:
            kind, tensor, offset = group
            of_state = layout.tensors[tensor].nature == NATURES[STATE]
            if kind == READS:
                side = WRITERS
            elif kind == WRITES and of_state:
                side = READERS
            elif kind == ARRIVES and (tensor, offset) not in self.of.replaced:
                side = BUFFERS
            else:
                continue
            found.append(Wait(group, side, *self._names(tensor, offset)))
        return tuple(found)

    @cached_property
    def notes(self) -> "tuple[Note, ...]":
        """The groups of its rows that others may wait for."""
        return tuple(
            Note((kind, tensor, offset), kind == WRITES, *self._names(tensor, offset))
            for kind, tensor, offset in self.groups
            if kind in (WRITES, USES)
        )

    @cached_property
    def ends(self) -> "tuple[End, ...]":
        """The tensors of which it leaves nothing, or gives a buffer back."""
        had, has = self.of.held
        arrives = {(tensor, offset) for kind, tensor, offset in self.groups if kind == ARRIVES}
        found = []
        for tensor, offset in [one for one in dict.fromkeys([*had, *has, *arrives]) if one not in self.missing]:
            before, after = had.get((tensor, offset), 0), has.get((tensor, offset), 0)
            takes = (tensor, offset) in arrives and (tensor, offset) not in self.of.replaced
            of_state = self.of.layout.tensors[tensor].nature == NATURES[STATE]
            frees = of_state and (before > after > 0 or (takes and after <= before))
            if frees or after == 0:
                found.append(End(frees, after == 0, *self._names(tensor, offset)))
        return tuple(found)

    def _names(self, tensor: int, offset: int) -> tuple[str, int, int, int]:
        """Returns (name, layer offset, 1 if layers have one each, micro-batch or -1) of a tensor."""
        layout = self.of.layout
        one = layout.tensors[tensor]
        batch = self.of.template.layout if layout.of_batch(tensor) else -1
        return one.name, offset, int(one.layers != "none"), batch

    @cached_property
    def last_hops(self) -> tuple[Ints, Ints]:
        """The hops with which every operation is complete, compressed rows."""
        return self._hops(self.lowered.table[IS_LAST] == 1)

    @cached_property
    def first_hops(self) -> tuple[Ints, Ints]:
        """The hops with which every operation begins, compressed rows."""
        return self._hops(self.lowered.table[AFTER] == START)

    def _hops(self, which: Flags) -> tuple[Ints, Ints]:
        hops = np.flatnonzero(which)
        counts = np.bincount(self.lowered.table[OP][hops], minlength=len(self.ops))
        return np.concatenate([[0], np.cumsum(counts)]), hops

    @cached_property
    def groups(self) -> dict[tuple[int, int, int], "TouchedItems"]:
        """The rows by (kind, tensor, layer offset)."""
        rows = self.rows[
            np.lexsort((self.rows[:, 1], self.rows[:, 4], self.rows[:, 3], self.rows[:, 2], self.rows[:, 0]))
        ]
        if not len(rows):
            return {}
        change = (rows[1:][:, [0, 2, 3]] != rows[:-1][:, [0, 2, 3]]).any(axis=1)
        starts = np.concatenate([[0], np.flatnonzero(change) + 1, [len(rows)]]).tolist()
        return {
            (int(rows[a, 0]), int(rows[a, 2]), int(rows[a, 3])): TouchedItems(rows[a:b, 1], rows[a:b, 4])
            for a, b in pairwise(starts)
        }


class Wait(NamedTuple):
    """A group of an instance's rows that waits for others: for who wrote it (WRITERS), who read it (READERS), or who
    used the buffer that it takes (BUFFERS). The rest is its tensor's, as in `tensor_key`."""

    group: tuple[int, int, int]
    side: int
    tensor: str
    offset: int
    layered: int
    batch: int


class Note(NamedTuple):
    """A group of an instance's rows that others may wait for: whether it writes its tensor, or reads it."""

    group: tuple[int, int, int]
    writes: bool
    tensor: str
    offset: int
    layered: int
    batch: int


class End(NamedTuple):
    """A tensor of a layer after an instance: whether its buffer is free for the next, and whether nothing is left."""

    frees: bool
    gone: bool
    tensor: str
    offset: int
    layered: int
    batch: int


@dataclass(frozen=True)
class TouchedItems:
    """Operations that touch a tensor of a layer, and where, sorted by place; int64 [rows] each."""

    ops: Ints
    places: Ints


def tensor_key(variant: Variant, layer: int, tensor: int, offset: int) -> Key:
    """Returns what a tensor is that a template names, played for a layer."""
    layout = variant.of.layout
    of = layout.tensors[tensor]
    batch = variant.of.template.layout if layout.of_batch(tensor) else -1
    return of.name, 0 if of.layers == "none" else layer + offset, batch


def between(before: Variant, one: TouchedItems, after: Variant, other: TouchedItems) -> tuple[Ints, Ints]:
    """Returns the edges between hops of two templates: from operations of `one` to those of `other` at the same place.
    Computes of one place are left out, as their queue has them in order."""
    found: tuple[Ints, Ints] = _joined(
        (one.ops, one.places, before.ops[one.ops, 0] == COMPUTE),
        before.last_hops,
        (other.ops, other.places, after.ops[other.ops, 0] == COMPUTE),
        after.first_hops,
    )
    return found


@nb.njit(cache=True)
def _joined(before, last, after, first):  # type: ignore[no-untyped-def]
    """Returns (producers, consumers): rows of both sides, (operations, places, whether they compute), sorted by place,
    and hops by operation, compressed rows. Edges that are there twice follow one another or not at all."""
    ops, places, computes = before
    count = 0
    for fill in range(2):
        if fill:
            sources, targets = np.empty(count, np.int64), np.empty(count, np.int64)
            count = 0
        begin, source, target = 0, -1, -1
        for at in range(len(after[0])):
            while begin < len(ops) and places[begin] < after[1][at]:
                begin += 1
            row = begin
            while row < len(ops) and places[row] == after[1][at]:
                if not (computes[row] and after[2][at]) and not (ops[row] == source and after[0][at] == target):
                    source, target = ops[row], after[0][at]
                    for a in range(last[0][source], last[0][source + 1]):
                        for b in range(first[0][target], first[0][target + 1]):
                            if fill:
                                sources[count], targets[count] = last[1][a], first[1][b]
                            count += 1
                row += 1
    return sources, targets


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
