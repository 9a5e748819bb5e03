"""A template for the layers, and from the place, that it is played for: its hops, what it waits for and leaves."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.simulator.steps.dataflow.chains import ARRIVES, READS, USES, WRITES
from zbench.simulator.steps.dataflow.implied import first_of_queues, last_of_queues
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
        here = np.ones(len(template.ops), bool)
        for tensor, offset in missing:
            here &= (template.ops[:, 0] == COMPUTE) | (template.ops[:, 1] != tensor) | (template.ops[:, 7] != offset)
        at = np.cumsum(here) - 1
        edges = here[template.flow.producer] & here[template.flow.consumer]
        rows = template.flow.rows[here[template.flow.rows[:, 1]]].copy()
        rows[:, 1] = at[rows[:, 1]]
        rows[:, 4] = where[rows[:, 4]]
        ops = template.ops[here]
        direct = np.isin(ops[:, 0], (SEND, MOVE))
        named = (ops[:, 2] >= 0) & ~np.isin(ops[:, 0], (GATHER, REDUCE))
        ops[:, 2] = np.where(named, where[np.where(named, ops[:, 2], 0)], ops[:, 2])
        ops[:, 3] = np.where(direct, where[np.where(direct, ops[:, 3], 0)], ops[:, 3])
        lowered = lower(
            template.step,
            (template.layout, where),
            ops,
            (at[template.flow.producer[edges]], at[template.flow.consumer[edges]]),
            template.size[here],
            template.seconds[here],
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
    def waits(self) -> Ints:
        """The groups of its rows that wait for others, int64 [n, 3]: (group, side, code of the pair). side: for who
        wrote it (WRITERS), who read it (READERS), or who used the buffer that it takes (BUFFERS)."""
        kinds, pairs = self.touches.kinds, self.touches.pairs
        of_state = self.of.nature[pairs // OFFSETS] == STATE
        takes = (kinds == ARRIVES) & ~self._named(self.of.replaced)[pairs]
        side = np.where(takes, BUFFERS, np.where((kinds == WRITES) & of_state, READERS, -1))
        side = np.where(kinds == READS, WRITERS, side)
        found = np.flatnonzero(side >= 0)
        return np.stack([found, side[found], pairs[found]], axis=1)

    @cached_property
    def notes(self) -> Ints:
        """The groups of its rows that others may wait for, int64 [n, 3]: (group, WRITERS or READERS, code of the
        pair)."""
        kinds = self.touches.kinds
        found = np.flatnonzero((kinds == WRITES) | (kinds == USES))
        side = np.where(kinds[found] == WRITES, WRITERS, READERS)
        return np.stack([found, side, self.touches.pairs[found]], axis=1)

    @cached_property
    def ends(self) -> Ints:
        """The pairs of which it leaves nothing, gives a buffer back, or has used one while another is gathered, int64
        [n, 4]: (code, whether its buffer is free for the next layer's, whether it is kept and the next that is gathered
        ahead has its turn, whether nothing is left)."""
        kinds, pairs = self.touches.kinds, self.touches.pairs
        arrives, uses = self._named(pairs[kinds == ARRIVES]), self._named(pairs[kinds == USES])
        takes = arrives & ~self._named(self.of.replaced)
        before, after = np.zeros(len(arrives), np.int64), np.zeros(len(arrives), np.int64)
        before[self.of.held[:, 0]], after[self.of.held[:, 0]] = self.of.held[:, 1], self.of.held[:, 2]
        every = self._named(self.of.held[:, 0]) | arrives
        gone = np.array(self.missing, np.int64).reshape(-1, 2)
        every[pair_codes(gone[:, 0], gone[:, 1])] = False
        codes = np.flatnonzero(every)
        before, after, tensor = before[codes], after[codes], codes // OFFSETS
        ahead = np.asarray(takes.reshape(-1, OFFSETS).any(axis=1))[tensor]
        lets = ((before > after) & (after > 0)) | (takes[codes] & (after <= before))
        frees = (self.of.nature[tensor] == STATE) & lets
        own = codes % OFFSETS == OFFSETS // 2  # of the instance's own layer
        turns = ahead & uses[codes] & ((before == after) | (takes[codes] & own)) & ~frees
        found: Ints = np.stack([codes, frees, turns, after == 0], axis=1)[frees | turns | (after == 0)]
        return found

    def _named(self, codes: Ints) -> Flags:
        """Returns which of all pairs are among some."""
        found = np.zeros(len(self.of.nature) * OFFSETS, bool)
        found[codes] = True
        return found

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
def _of_groups(touches, rows, queued, last):  # type: ignore[no-untyped-def]
    """Returns the fields of `HopsOfGroups`. touches: offsets, operations and places of TouchedItems; rows: hops of
    operations, compressed rows."""
    offsets, ops, places = touches
    none = np.full(max(queued.queue_a.max(), queued.queue_b.max()) + 1 if len(queued.busy) else 0, -1, np.int64)
    count = 0
    for op in ops:
        count += rows[0][op + 1] - rows[0][op]
    begin, place, found, used = (
        np.zeros(len(offsets), np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        0,
    )
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
                mine = found[first:used].copy()
                mine = mine[last_of_queues(mine, queued, none) if last else first_of_queues(mine, queued, none)]
                used = first + len(mine)
                found[first:used] = mine
            place[first:used] = where
        begin[group + 1] = used
    return begin, place[:used].copy(), found[:used].copy()


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
