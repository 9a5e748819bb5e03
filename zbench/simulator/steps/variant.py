"""A template for the layers, and from the place, that it is played for: its hops, what it waits for and leaves."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import IN_PLACE
from zbench.simulator.steps.dataflow.chains import ARRIVES, READS, USES, WRITES
from zbench.simulator.steps.dataflow.implied import keep_first, keep_last
from zbench.simulator.steps.expand import AFTER, IS_LAST, OP, START
from zbench.simulator.steps.lower import ClusterPorts, Lowered, lower
from zbench.simulator.steps.played_template import OFFSETS, PlayedTemplate, pair_codes
from zbench.step.operations import COMPUTE, GATHER, MOVE, REDUCE, SEND
from zbench.step.tensor import STATE

WRITERS, READERS, BUFFERS = range(3)  # whom an operation waits for


@dataclass(frozen=True)
class Variant:
    """A template for layers of which the same is there: its operations, their hops, and its rows (Flow.rows).

    missing: the (tensor, layer offset) pairs that are not there. place: from which its places are counted, below 0 of
    one that is played across pipelines, a number for each run of layers that are on the same stages. where: the place
    that each of the template's is, int64 [places], in which operations, hops and rows are already.
    """

    of: PlayedTemplate
    ops: Ints
    lowered: Lowered
    rows: Ints
    missing: tuple[tuple[int, int], ...]
    place: int
    where: Ints

    @staticmethod
    def of_layers(
        template: PlayedTemplate, missing: tuple[tuple[int, int], ...], start: tuple[int, Ints], wires: ClusterPorts
    ) -> "Variant":
        """Returns a template without the transfers of what is not there. start: its place, and where its places are."""
        place, where = start
        gone, of = np.array(missing, np.int64).reshape(-1, 2), template.flow
        ops, size, seconds, producer, consumer, rows = _of_layers(
            template.ops, (template.size, template.seconds), (of.producer, of.consumer), of.rows, gone, where
        )
        lowered = lower(
            template.step,
            (template.layout, where),
            ops,
            (producer, consumer),
            size,
            seconds,
            wires,
        )
        return Variant(template, ops, lowered, rows, missing, place, where)

    @cached_property
    def kinds(self) -> Ints:
        """The kind of every hop's operation."""
        return np.asarray(self.ops[self.lowered.table[OP], 0])

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
    def touches(self) -> "TouchedItems":
        """The rows in groups."""
        tensors, places = len(self.of.nature), self.of.step.num_places + 1
        kind, op, tensor, offset, place = self.rows.T
        group = (kind * tensors) * OFFSETS + pair_codes(tensor, offset)
        keys = np.sort((group * places + place) * len(self.ops) + op)
        both, op = np.divmod(keys, len(self.ops))
        group, place = np.divmod(both, places)
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        kinds, pairs = np.divmod(group[starts], tensors * OFFSETS)
        return TouchedItems(kinds, pairs, np.append(starts, len(keys)), op, place)

    @cached_property
    def relations(self) -> "TouchRelations":
        """The groups of its rows that wait for others, that others wait for, and that end."""
        of, touches = self.of, self.touches
        replaced = np.zeros(len(of.nature) * OFFSETS, np.bool_)
        replaced[of.replaced] = True
        gone = np.array(self.missing, np.int64).reshape(-1, 2)
        codes = pair_codes(gone[:, 0], gone[:, 1])
        return TouchRelations(*_related(touches.kinds, touches.pairs, of.nature, replaced, of.held, codes))

    @cached_property
    def begins(self) -> "HopsOfGroups":
        """The hops with which the operations of each group of rows begin, as many as others have to wait for."""
        return self._hops(self.lowered.table[AFTER] == START, False)

    @cached_property
    def finals(self) -> "HopsOfGroups":
        """The hops with which the operations of each group of rows are complete, as many as others have to wait for."""
        return self._hops(self.lowered.table[IS_LAST] == 1, True)

    def _hops(self, which: Flags, last: bool) -> "HopsOfGroups":
        """Returns some hops of the operations of each group of rows. last: whether others wait for them."""
        hops, touches, queued = np.flatnonzero(which), self.touches, self.lowered.queued
        counts = np.bincount(self.lowered.table[OP][hops], minlength=len(self.ops))
        rows = np.concatenate([[0], np.cumsum(counts)]), hops
        return HopsOfGroups(*_of_groups((touches.offsets, touches.ops, touches.places), rows, queued, last))


@nb.njit(cache=True)
def _of_layers(ops, amounts, edges, rows, gone, where):  # type: ignore[no-untyped-def]
    """Returns the operations of a template without the transfers of what is gone, at their places, with their size,
    seconds, edges and rows. amounts: size and seconds of all. gone: pairs of tensor and layer offset."""
    at, used = np.full(len(ops), -1, np.int64), 0
    for op in range(len(ops)):
        here = True
        for one in range(len(gone)):
            here &= ops[op, 0] == COMPUTE or ops[op, 1] != gone[one, 0] or ops[op, 7] != gone[one, 1]
        if here:
            at[op] = used
            used += 1
    mine = np.flatnonzero(at >= 0)
    found = ops[mine]
    for op in found:
        if op[2] >= 0 and op[0] != GATHER and op[0] != REDUCE:
            op[2] = where[op[2]]
        if op[0] == SEND or op[0] == MOVE:
            op[3] = where[op[3]]
    producer, consumer = at[edges[0]], at[edges[1]]
    both = (producer >= 0) & (consumer >= 0)
    kept = rows[at[rows[:, 1]] >= 0]
    for row in kept:
        row[1], row[4] = at[row[1]], where[row[4]]
    return found, amounts[0][mine], amounts[1][mine], producer[both], consumer[both], kept


@nb.njit(cache=True)
def _related(kinds, pairs, nature, replaced, held, gone):  # type: ignore[no-untyped-def]
    """Returns the fields of `TouchRelations`. nature: of tensors; replaced: of codes of pairs, whether what arrives
    takes no room of its own; held: PlayedTemplate.held; gone: the codes of what is not there."""
    takes, uses, arrives = np.zeros(len(replaced), np.bool_), np.zeros(len(replaced), np.bool_), replaced & False
    waits, notes, used, noted = np.empty((len(kinds), 3), np.int64), np.empty((len(kinds), 3), np.int64), 0, 0
    ahead = np.zeros(len(nature), np.bool_)
    for group in range(len(kinds)):
        kind, pair, side = kinds[group], pairs[group], -1
        if kind == ARRIVES:
            arrives[pair] = True
            if not replaced[pair]:
                side, takes[pair], ahead[pair // OFFSETS] = BUFFERS, True, True
        elif kind == READS:
            side = WRITERS
        elif kind == WRITES and nature[pair // OFFSETS] == STATE:
            side = READERS
        if side >= 0:
            waits[used, 0], waits[used, 1], waits[used, 2] = group, side, pair
            used += 1
        if kind in (WRITES, USES):
            notes[noted, 0], notes[noted, 1], notes[noted, 2] = group, WRITERS if kind == WRITES else READERS, pair
            noted += 1
        uses[pair] |= kind == USES
    before, after = np.zeros(len(replaced), np.int64), np.zeros(len(replaced), np.int64)
    for row in range(len(held)):
        before[held[row, 0]], after[held[row, 0]], arrives[held[row, 0]] = held[row, 1], held[row, 2], True
    arrives[gone] = False
    ends, ended = np.empty((np.sum(arrives), 4), np.int64), 0
    for pair in np.flatnonzero(arrives):
        had, has, tensor = before[pair], after[pair], pair // OFFSETS
        lets = (had > has and has > 0) or (takes[pair] and has <= had)
        frees = nature[tensor] == STATE and lets
        own = pair % OFFSETS == OFFSETS // 2  # of the instance's own layer
        turns = ahead[tensor] and uses[pair] and (had == has or (takes[pair] and own)) and not frees
        if frees or turns or has == 0:
            ends[ended, 0], ends[ended, 1], ends[ended, 2], ends[ended, 3] = pair, frees, turns, has == 0
            ended += 1
    return waits[:used].copy(), notes[:noted].copy(), ends[:ended].copy()


@nb.njit(cache=True)
def _of_groups(touches, rows, queued, last):  # type: ignore[no-untyped-def]
    """Returns the fields of `HopsOfGroups`. touches: offsets, operations and places of TouchedItems; rows: hops of
    operations, compressed rows."""
    offsets, ops, _ = touches
    none = np.full(max(queued.queue_a.max(), queued.queue_b.max()) + 1 if len(queued.busy) else 0, -1, np.int64)
    count = 0
    for op in ops:
        count += rows[0][op + 1] - rows[0][op]
    begin, place, found = np.zeros(len(offsets), np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    used = _put_groups(
        touches, rows, queued, last, (none, np.arange(count), np.ones(count, np.bool_)), (begin, place, found)
    )
    return begin, place[:used].copy(), found[:used].copy()


@nb.njit(**IN_PLACE)
def _put_groups(touches, rows, queued, last, work, out):  # type: ignore[no-untyped-def]
    """Writes what `_of_groups` returns, and returns how many hops there are. work: of every queue -1, the numbers of
    hops that there may be, and whether each is needed, which is so of all."""
    (offsets, ops, places), (none, every, needed), (begin, place, found) = touches, work, out
    used = 0
    for group in range(len(offsets) - 1):
        at = offsets[group]
        while at < offsets[group + 1]:
            first, where = used, places[at]
            while at < offsets[group + 1] and places[at] == where:
                for hop in range(rows[0][ops[at]], rows[0][ops[at] + 1]):
                    found[used] = rows[1][hop]
                    used += 1
                at += 1
            if used > first + 1:
                if last:
                    keep_last(every, (first, used), found, queued, none, needed)
                else:
                    keep_first(every, (first, used), found, queued, none, needed)
                end, used = used, first
                for hop in range(first, end):
                    if needed[hop]:
                        found[used] = found[hop]
                        used += 1
                    needed[hop] = True
            for hop in range(first, used):
                place[hop] = where
        begin[group + 1] = used
    return used


class TouchRelations(NamedTuple):
    """Groups of rows that wait for those of other instances, that others wait for, and that end.

    waits: those that wait for others, int64 [n, 3]: (group, side, code of the pair). side: for who wrote it (WRITERS),
    who read it (READERS), or who used the buffer that it takes (BUFFERS). notes: those that others may wait for, alike,
    with WRITERS or READERS. ends: the pairs of which it leaves nothing, gives a buffer back, or has used one while
    another is gathered, int64 [n, 4]: (code, whether its buffer is free for the next layer's, whether it is kept and
    the next that is gathered ahead has its turn, whether nothing is left).
    """

    waits: Ints
    notes: Ints
    ends: Ints


class HopsOfGroups(NamedTuple):
    """Hops of the operations of groups of rows: offsets of groups, and by hop, sorted by place in each, its place and
    its number."""

    offsets: Ints
    places: Ints
    hops: Ints


class TouchedItems(NamedTuple):
    """Rows in groups of a kind and a pair of tensor and layer offset, sorted by place in each: kinds, pairs (codes),
    offsets of groups, and by row the operation and the place."""

    kinds: Ints
    pairs: Ints
    offsets: Ints
    ops: Ints
    places: Ints
