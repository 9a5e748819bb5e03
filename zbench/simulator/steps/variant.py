"""A template for the layers, and from the place, that it is played for: its hops, what it waits for and leaves."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Flags, Ints
from zbench.simulator.steps.chains import ARRIVES, READS, USES, WRITES
from zbench.simulator.steps.expand import AFTER, IS_LAST, OP, START
from zbench.simulator.steps.lower import Lowered, lower
from zbench.simulator.steps.played_template import PlayedTemplate
from zbench.step.operations import COMPUTE, MOVE, SEND
from zbench.step.tensor import NATURES, STATE

Key = tuple[str, int, int]  # tensor, layer, micro-batch (-1: of the step)
WRITERS, READERS, BUFFERS = range(3)  # whom an operation waits for


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

    @staticmethod
    def of_layers(template: PlayedTemplate, missing: tuple[tuple[int, int], ...], place: int, cost: Cost) -> "Variant":
        """Returns a template without the transfers of what is not there, its places counted from `place` on."""
        here = np.ones(len(template.ops), bool)
        for tensor, offset in missing:
            here &= (template.ops[:, 0] == COMPUTE) | (template.ops[:, 1] != tensor) | (template.ops[:, 7] != offset)
        at = np.cumsum(here) - 1
        edges = here[template.flow.producer] & here[template.flow.consumer]
        rows = template.flow.rows[here[template.flow.rows[:, 1]]].copy()
        rows[:, 1] = at[rows[:, 1]]
        rows[:, 4] += place
        ops = template.ops[here]
        direct = np.isin(ops[:, 0], (SEND, MOVE))
        ops[:, 2] += np.where(ops[:, 2] >= 0, place, 0)
        ops[:, 3] += np.where(direct, place, 0)
        lowered = lower(
            template.step,
            (template.layout, place),
            ops,
            (at[template.flow.producer[edges]], at[template.flow.consumer[edges]]),
            template.size[here],
            template.seconds[here],
            cost,
        )
        return Variant(template, ops, lowered, rows, missing, place)

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
        """The tensors of which it leaves nothing, gives a buffer back, or has used one while another is gathered."""
        had, has = self.of.held
        arrives = {(tensor, offset) for kind, tensor, offset in self.groups if kind == ARRIVES}
        ahead, found = {tensor for tensor, _ in arrives - self.of.replaced}, []
        for tensor, offset in [one for one in dict.fromkeys([*had, *has, *arrives]) if one not in self.missing]:
            before, after = had.get((tensor, offset), 0), has.get((tensor, offset), 0)
            takes = (tensor, offset) in arrives and (tensor, offset) not in self.of.replaced
            of_state = self.of.layout.tensors[tensor].nature == NATURES[STATE]
            frees = of_state and (before > after > 0 or (takes and after <= before))
            turns = tensor in ahead and (USES, tensor, offset) in self.groups and before == after
            if frees or turns or after == 0:
                found.append(End(frees, turns, after == 0, *self._names(tensor, offset)))
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
    """A tensor of a layer after an instance: whether its buffer is free for the next layer's, or it is kept and the
    next that is gathered ahead has its turn; and whether nothing is left."""

    frees: bool
    turns: bool
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
