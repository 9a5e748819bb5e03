"""A template for the layers, and from the place, that it is played for: its hops, what it waits for and leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, IN_PLACE
from zbench.simulator.steps.dataflow.implied import LEAST_FELT
from zbench.simulator.steps.dataflow.touched import TouchRelations, relations_of
from zbench.simulator.steps.expand import AFTER, IS_LAST, OP, START
from zbench.simulator.steps.lower import ClusterPorts, Lowered, PlacedOps, lower
from zbench.simulator.steps.played_template import PlayedTemplate, pair_codes
from zbench.step.operations import COMPUTE, GATHER, MOVE, REDUCE, SEND


class AskedVariant(NamedTuple):
    """A variant before it is made; fields as of Variant."""

    of: PlayedTemplate
    missing: tuple[tuple[int, int], ...]
    place: int
    where: Ints


@dataclass(frozen=True)
class Variant:
    """A template for layers of which the same is there: its operations, their hops, and its rows (Flow.rows).

    missing: the (tensor, layer offset) pairs that are not there. place: from which its places are counted, below 0 of
    one that is played across pipelines, a number for each run of layers that are on the same stages. where: the place
    that each of the template's is, int64 [places], in which operations, hops and rows are already. like: a variant that
    differs in the seconds of computes alone.
    """

    of: PlayedTemplate
    ops: Ints
    lowered: Lowered
    rows: Ints
    missing: tuple[tuple[int, int], ...]
    place: int
    where: Ints
    like: "Variant | None" = None

    def timed(self, of: PlayedTemplate) -> "Variant | None":
        """Returns the variant with the seconds of a template that differs in those of computes alone; None where one of
        them takes time and took none, or the other way round, as others may wait for it then."""
        queued = self.lowered.queued
        busy = queued.busy.copy()
        busy[queued.computes] = of.seconds[of.ops[:, 0] == COMPUTE]
        if ((busy > LEAST_FELT) != (queued.busy > LEAST_FELT)).any():
            return None
        lowered = replace(self.lowered, queued=queued._replace(busy=busy))
        return replace(self, of=of, lowered=lowered, like=self.like or self)

    @cached_property
    def kinds(self) -> Ints:
        """The kind of every hop's operation."""
        return np.asarray(self.ops[self.lowered.table[OP], 0])

    @cached_property
    def relations(self) -> TouchRelations:
        """The groups of its rows that wait for others, that others wait for, and that end, with their hops."""
        if self.like is not None:
            return self.like.relations
        of, gone = self.of, np.array(self.missing, np.int64).reshape(-1, 2)
        about = of.nature, of.pairs.replaced, of.pairs.held, pair_codes(gone[:, 0], gone[:, 1])
        shape = len(of.nature), of.step.num_places + 1, len(self.ops)
        table = self.lowered.table
        hops = table[OP], table[AFTER], table[IS_LAST], START
        return relations_of(self.rows, shape, about, hops, self.lowered.queued)


@dataclass(frozen=True)
class PlayedInstance:
    """An instance of a program: its entry in the step's order, its template, the layer and the variant."""

    entry: int
    template: int
    layer: int
    variant: Variant


def variants_of(asked: Sequence[AskedVariant], wires: ClusterPorts) -> list[Variant]:
    """Returns templates of one step without the transfers of what is not there, those of a layout lowered together."""
    found, layouts = dict[int, Variant](), dict[int, list[int]]()
    for number, of in enumerate(one.of for one in asked):
        layouts.setdefault(id(of.layout), []).append(number)
    for numbers in layouts.values():
        placed, rows = [], []
        for number in numbers:
            of, missing, _, where = asked[number]
            gone = np.array(missing, np.int64).reshape(-1, 2)
            size, mine = of.without(missing)
            edges = of.flow.producer, of.flow.consumer
            ops, *amounts, producer, consumer, there = _of_layers(of.ops, (size, of.seconds), edges, mine, gone, where)
            placed.append(PlacedOps(ops, amounts[0], amounts[1], producer, consumer, where))
            rows.append(there)
        first = asked[numbers[0]].of
        lowered = lower(first.step, first.layout, placed, wires)
        for number, one, there, hops in zip(numbers, placed, rows, lowered, strict=True):
            of, missing, place, where = asked[number]
            found[number] = Variant(of, one.ops, hops, there, missing, place, where)
    return [found[number] for number in range(len(asked))]


@nb.njit(**ENTERED)
def _of_layers(ops, amounts, edges, rows, gone, where):  # type: ignore[no-untyped-def]
    """Returns the operations of a template without the transfers of what is gone, at their places, with their size,
    seconds, edges and rows. amounts: size and seconds of all. gone: pairs of tensor and layer offset."""
    at = np.full(len(ops), -1, np.int64)
    _number_there(ops, gone, at)
    mine = np.flatnonzero(at >= 0)
    found, kept = ops[mine], rows[at[rows[:, 1]] >= 0]
    _put_places(found, kept, at, where)
    producer, consumer = at[edges[0]], at[edges[1]]
    both = (producer >= 0) & (consumer >= 0)
    return found, amounts[0][mine], amounts[1][mine], producer[both], consumer[both], kept


@nb.njit(**IN_PLACE)
def _number_there(ops, gone, at):  # type: ignore[no-untyped-def]
    """Numbers the operations that are there."""
    used = 0
    for op in range(len(ops)):
        here = True
        for one in range(len(gone)):
            here &= ops[op, 0] == COMPUTE or ops[op, 1] != gone[one, 0] or ops[op, 7] != gone[one, 1]
        if here:
            at[op] = used
            used += 1


@nb.njit(**IN_PLACE)
def _put_places(ops, rows, at, where):  # type: ignore[no-untyped-def]
    """Moves operations and rows to their places. at: the numbers of the operations of rows."""
    for op in range(len(ops)):
        kind = ops[op, 0]
        if ops[op, 2] >= 0 and kind != GATHER and kind != REDUCE:
            ops[op, 2] = where[ops[op, 2]]
        if kind in (SEND, MOVE):
            ops[op, 3] = where[ops[op, 3]]
    for row in range(len(rows)):
        rows[row, 1], rows[row, 4] = at[rows[row, 1]], where[rows[row, 4]]
