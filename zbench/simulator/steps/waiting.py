"""Edges between the hops of a program's instances: who waits for whom; compiled.

What instances left is kept by tensor and layer: who wrote it and who read it, and by tensor and stage the readers of
buffers that are free, first come first. Such lists are chains that only grow in front, so whoever holds one holds it as
it was then.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, IN_PLACE
from zbench.simulator.steps.dataflow.touched import BUFFERS, FELT, OFFSETS, HopsOfGroups
from zbench.simulator.steps.variant import Variant
from zbench.step.proof.groups import slots_of
from zbench.step.template import Step

_RECENT = 4096  # rows of `_known`: an instance's edges, as a rule


class _Tables(NamedTuple):
    """Variants one after another. waits, notes, ends: of TouchRelations, with groups counted through, and in place of a
    pair its slot, layer offset and whether layers have one each; offsets by variant. finals, begins: the hops with
    which the operations of groups are complete and begin, as HopsOfGroups has them; offsets by group."""

    wait_offsets: Ints
    waits: Ints
    note_offsets: Ints
    notes: Ints
    end_offsets: Ints
    ends: Ints
    final_offsets: Ints
    finals: Ints
    begin_offsets: Ints
    begins: Ints


class WaitTables(NamedTuple):
    """The tables of variants from which edges between their instances are found. slots: how many tensors there are."""

    tables: _Tables
    slots: int


def wait_tables(step: Step, variants: Sequence[Variant]) -> WaitTables:
    """Puts what is known of variants of a step, however many layers are played, one after another."""
    slots = slots_of(step)
    return WaitTables(_tables(variants, slots), 1 + max(map(max, slots)))


def edges_between(of: WaitTables, num_layers: int, instances: Ints) -> tuple[Ints, Ints]:
    """Returns the edges between hops of different instances, of a step with so many layers.

    instances: int64 [n, 4]: the number of each one's variant, its layer, the number of its stage's first place, its
    first hop.
    """
    producer, consumer = _edges(of.tables, instances, (of.slots, num_layers + 3, 1 + int(instances[:, 2].max())))
    return producer, consumer


def _tables(variants: Sequence[Variant], slots: Sequence[tuple[int, ...]]) -> _Tables:
    """Puts what is known of variants one after another."""
    related = [one.relations for one in variants]
    most = max(map(len, slots))
    slot_of, layered = np.zeros((len(slots), most), np.int64), np.zeros((len(slots), most), np.int64)
    for number, row in enumerate(slots):
        slot_of[number, : len(row)] = row
        layered[number, : len(row)] = variants[0].of.step.layouts[number].layered
    layouts = np.array([one.of.template.layout for one in variants], np.int64)
    groups = np.cumsum([0, *(len(one.finals.offsets) - 1 for one in related)])
    about = layouts, slot_of, layered, groups
    return _Tables(
        *_keyed([one.waits for one in related], 2, about),
        *_keyed([one.notes for one in related], 2, about),
        *_keyed([one.ends for one in related], 0, about),
        *_through([one.finals for one in related]),
        *_through([one.begins for one in related]),
    )


def _joined_rows(tables: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns (offsets by table, their rows one after another)."""
    return np.cumsum([0, *map(len, tables)]), np.concatenate(tables)


def _keyed(tables: Sequence[Ints], code: int, about: tuple[Ints, Ints, Ints, Ints]) -> tuple[Ints, Ints]:
    """Returns (offsets by variant, the rows of TouchRelations one after another as `_Tables` has them).

    code: the column of pairs. about: the layout of each variant, by layout the slot of each tensor and whether layers
    have one each, and the first group of each variant.
    """
    offsets, rows = _joined_rows(tables)
    return offsets, _with_slots(offsets, rows, code, about)


@nb.njit(**ENTERED)
def _with_slots(offsets, rows, code, about):  # type: ignore[no-untyped-def]
    """Returns rows as `_keyed`. offsets: by variant."""
    layouts, slot_of, layered, group = about
    found = np.empty((len(rows), 6 if code == 0 else 5), np.int64)
    for variant in range(len(layouts)):
        of = layouts[variant]
        for at in range(offsets[variant], offsets[variant + 1]):
            tensor, offset = rows[at, code] // OFFSETS, rows[at, code] % OFFSETS
            found[at, 0], found[at, 1], found[at, 2] = slot_of[of, tensor], offset - OFFSETS // 2, layered[of, tensor]
            if code == 0:
                found[at, 3], found[at, 4], found[at, 5] = rows[at, 1], rows[at, 2], rows[at, 3]
            else:
                found[at, 3], found[at, 4] = rows[at, 0] + group[variant], rows[at, 1]
    return found


def _through(groups: Sequence[HopsOfGroups]) -> tuple[Ints, Ints]:
    """Returns the hops of the groups of variants one after another, as `_Tables` has them."""
    begin, rows = _joined_rows([one.rows for one in groups])
    offsets = [one.offsets[:-1] + first for one, first in zip(groups, begin.tolist(), strict=False)]
    return np.append(np.concatenate(offsets), begin[-1]), rows


@nb.njit(**IN_PLACE)
def _joined(t, ends, begins, edges, recent, used):  # type: ignore[no-untyped-def]
    """Adds the edges from one group to another: from hops to those at the same place. Computes of one place are left
    out, as their queue has them in order. ends: both groups; begins: the first hops of their instances. recent: as
    `_known`. Returns how many edges there are, maybe more than there is room for."""
    row, stop = t.final_offsets[ends[0]], t.final_offsets[ends[0] + 1]
    before = -1, -1
    for at in range(t.begin_offsets[ends[1]], t.begin_offsets[ends[1] + 1]):
        place = t.begins[at, 0]
        while row < stop and t.finals[row, 0] < place:
            row += 1
        other = row
        while other < stop and t.finals[other, 0] == place:
            pair = begins[0] + t.finals[other, 1], begins[1] + t.begins[at, 1]
            kinds = t.finals[other, 2], t.begins[at, 2]
            if pair != before and not (kinds[0] and kinds[1]):
                before = pair
                if FELT not in kinds or not _known(pair, place, kinds[1] == FELT, begins, edges, recent, used):
                    if used < edges.shape[1]:
                        edges[0, used], edges[1, used] = pair
                    used += 1
            other += 1
    return used


@nb.njit(**IN_PLACE)
def _known(pair, place, waits, begins, edges, recent, used):  # type: ignore[no-untyped-def]
    """Returns whether there is an edge already between a hop and a compute of the same instance and place as this
    edge's, which is changed to be of the compute that counts (zbench.simulator.steps.dataflow.implied): who waits for
    several computes of a queue waits for the last of them, and of several that wait for one hop the first does.

    waits: whether the compute does. recent: of edges that were added lately the other hop and whether it is waited for,
    the place, the first hop of the compute's instance, and the edge. Two that have one row between them are only
    forgotten: then an edge is added that is not needed.
    """
    hop, of = 2 * (pair[0] if waits else pair[1]) + waits, begins[1] if waits else begins[0]
    row = recent[(64 * hop + place) % len(recent)]
    if row[0] != hop or row[1] != place or row[2] != of:
        row[0], row[1], row[2], row[3] = hop, place, of, used
        return False
    if row[3] < edges.shape[1]:
        side = 1 if waits else 0
        edges[side, row[3]] = min(edges[1, row[3]], pair[1]) if waits else max(edges[0, row[3]], pair[0])
    return True


@nb.njit(**ENTERED)
def _edges(t, instances, shape):  # type: ignore[no-untyped-def]
    """Returns the edges as `edges_between`. shape: slots, layers and stages."""
    slots, layers, stages = shape
    nodes, buffers, room = 1, 1, 1 << 16
    for number in range(len(instances)):
        of = instances[number, 0]
        nodes += t.note_offsets[of + 1] - t.note_offsets[of]
        buffers += 2 * (t.end_offsets[of + 1] - t.end_offsets[of])
    node, queue = np.empty((nodes, 3), np.int64), np.empty((buffers, 2), np.int64)
    while True:
        chains = np.full((2, slots * layers), -1, np.int64)
        front, back = np.full(slots * stages, -1, np.int64), np.full(slots * stages, -1, np.int64)
        edges, recent = np.empty((2, room), np.int64), np.full((_RECENT, 4), -1, np.int64)
        used = _follow(t, instances, (layers, stages), (node, chains), (queue, front, back), (edges, recent))
        if used <= room:
            return edges[0, :used].copy(), edges[1, :used].copy()
        room = used


@nb.njit(**IN_PLACE)
def _follow(t, instances, shape, noted, buffers, edges):  # type: ignore[no-untyped-def]
    """Follows instances in order, as `_edges`; returns how many edges there are, maybe more than there is room for.

    noted: nodes (an instance, a group, the node that follows), and the chains of writers and of readers. buffers: a
    queue (a chain, the buffer that is free next), and its front and back by slot and stage. edges: and as `_known`."""
    (layers, stages), (node, chains), (queue, front, back), (edges, recent) = shape, noted, buffers, edges
    used, count, queued = 0, 0, 0
    for number in range(len(instances)):
        of, layer, stage = instances[number, 0], instances[number, 1], instances[number, 2]
        for at in range(t.wait_offsets[of], t.wait_offsets[of + 1]):
            slot, offset, layered, group, side = t.waits[at]
            chain = -1
            if side == BUFFERS:
                free = front[slot * stages + stage]
                if free >= 0:
                    chain, front[slot * stages + stage] = queue[free, 0], queue[free, 1]
            else:
                chain = chains[side, slot * layers + (layer + offset) * layered + 1]
            while chain >= 0:
                begins = (instances[node[chain, 0], 3], instances[number, 3])
                used = _joined(t, (node[chain, 1], group), begins, edges, recent, used)
                chain = node[chain, 2]
        for at in range(t.note_offsets[of], t.note_offsets[of + 1]):
            slot, offset, layered, group, side = t.notes[at]
            key = slot * layers + (layer + offset) * layered + 1
            node[count, 0], node[count, 1], node[count, 2] = number, group, chains[side, key]
            chains[side, key] = count
            count += 1
        for at in range(t.end_offsets[of], t.end_offsets[of + 1]):
            slot, offset, layered, frees, turns, gone = t.ends[at]
            key, where = slot * layers + (layer + offset) * layered + 1, slot * stages + stage
            for lets in (turns, frees):
                if lets:
                    queue[queued, 0], queue[queued, 1] = chains[1, key], -1
                    if front[where] < 0:
                        front[where] = queued
                    else:
                        queue[back[where], 1] = queued
                    back[where] = queued
                    queued += 1
            if frees or gone:
                chains[1, key] = -1
            if gone:
                chains[0, key] = -1
    return used
