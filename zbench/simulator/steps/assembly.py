"""Puts the hops of variants, instance after instance, into the columns of one program; compiled.

A program has hundreds of thousands of hops, of a few variants: so all that can be is prepared once a variant, hops name
its rows, and columns are as narrow as what they hold.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import Cluster
from zbench.describe.compiled import ENTERED_IN_PLACE
from zbench.simulator.steps.dataflow.implied import by_row
from zbench.simulator.steps.expand import CLASS, LINK_A, LINK_B, OP, QUEUE_A, QUEUE_B
from zbench.simulator.steps.trains.columns import AssembledHops, Narrow, NarrowFollowers, ProgramHops, VariantHops
from zbench.simulator.steps.variant import Variant
from zbench.step.operations import GATHER, REDUCE


class StackedVariants(NamedTuple):
    """The hops of variants one after another, as rows. begin: int64 [variants + 1], where those of each begin. rows:
    their columns. pair: the number of the two queues with several channels that each
    is between, -1 if none. edge_offsets, followers: edges inside a variant, compressed rows, counted from its first
    hop; waits: edges into each. trains: of variants, int64 [n, 3], (the row, where its pieces begin in `pieces`, how
    many it has); train_offsets: by variant. pieces: seconds."""

    begin: Ints
    rows: VariantHops
    pair: Narrow
    edge_offsets: Ints
    followers: Narrow
    waits: Narrow
    train_offsets: Ints
    trains: Ints
    pieces: Floats


def stacked_variants(variants: Sequence[Variant], meetings: Sequence[int], cluster: Cluster) -> StackedVariants:
    """Stacks variants. meetings: the queue of each one's first meeting."""
    begin = np.cumsum([0, *(len(one.lowered.busy) for one in variants)])
    count, lowered = int(begin[-1]), [one.lowered for one in variants]
    queue_a, queue_b, link_a, link_b = np.empty((4, count), np.int32)
    link_class, channels, slot = np.empty((3, count), np.int8)
    busy, latency = np.concatenate([one.busy for one in lowered]), np.concatenate([one.latency for one in lowered])
    rows = VariantHops(queue_a, queue_b, link_a, link_b, link_class, channels, slot, busy, latency)
    channels_of = np.array([one.channels for one in cluster.links] + [1], np.int8)
    for one, first, meeting in zip(variants, begin.tolist(), meetings, strict=False):
        _put_rows(one.ops, one.lowered.table, channels_of, (first, meeting), rows)
    pair = np.full(count, -1, np.int32)
    several = np.flatnonzero((rows.channels > 1) & (rows.queue_b >= 0))
    if len(several):
        name = rows.queue_a[several].astype(np.int64) * (1 + int(rows.queue_b.max())) + rows.queue_b[several]
        pair[several] = np.unique(name, return_inverse=True)[1]
    edges = [first + one.producer for first, one in zip(begin.tolist(), lowered, strict=False)]
    edge_offsets, places = by_row(np.concatenate(edges), count)
    consumers = np.concatenate([one.consumer for one in lowered])
    waits = [np.bincount(one.consumer, minlength=one.table.shape[1]) for one in lowered]
    trains, pieces = np.concatenate([one.trains for one in lowered]), np.concatenate([one.pieces for one in lowered])
    counts = [len(one.trains) for one in lowered]
    row = trains[:, 0] + np.repeat(begin[:-1], counts)
    return StackedVariants(
        begin,
        rows,
        pair,
        edge_offsets,
        consumers[places].astype(np.int32),
        np.concatenate(waits).astype(np.int32),
        np.cumsum([0, *counts]),
        np.column_stack([row, np.cumsum(trains[:, 1]) - trains[:, 1], trains[:, 1]]),
        pieces,
    )


def assembled_hops(of: StackedVariants, instances: Ints, between: tuple[Ints, Ints], queues: int) -> AssembledHops:
    """Puts the hops of instances one after another. instances: int64 [n, 2], (number of the variant, first hop).
    between: edges between hops of different instances. queues: how many there are."""
    which = instances[:, 0]
    count, edges, trains = (
        int(np.diff(offsets)[which].sum()) for offsets in (of.begin, of.edge_offsets[of.begin], of.train_offsets)
    )
    next_a, next_b, next_pair = (np.empty(count, np.int32) for _ in range(3))
    offsets, followers = np.zeros(count + 1, np.int32), np.empty(edges + len(between[0]), np.int32)
    found = AssembledHops(
        ProgramHops(np.empty(count, np.int32), of.rows),
        NarrowFollowers(next_a, next_b, next_pair, offsets, followers),
        np.empty(count, np.int32),
        np.empty((trains, 4), np.int64),
        of.pieces,
    )
    last = np.full(queues, -1, np.int32), np.full(1 + int(of.pair.max(initial=-1)), -1, np.int32)
    _put_hops(of, instances, (found.hops.row, found.following, found.waits), last)
    _put_edges(of, instances, between, found.following, found.waits, np.empty(count, np.int32))
    _put_trains(of, instances, found.trains)
    return found


@nb.njit(**ENTERED_IN_PLACE)
def _put_rows(ops, table, channels_of, where, rows):  # type: ignore[no-untyped-def]
    """Writes the rows of a variant, but for seconds. where: its first row, and the queue of its first meeting.
    channels_of: of classes of links, and of none."""
    first, meeting = where
    for hop in range(table.shape[1]):
        at, queue, kind = first + hop, table[QUEUE_A, hop], ops[table[OP, hop], 0]
        channels = channels_of[table[CLASS, hop]]
        rows.queue_a[at] = meeting - 2 - queue if queue < -1 else queue
        rows.queue_b[at], rows.link_a[at], rows.link_b[at] = table[QUEUE_B, hop], table[LINK_A, hop], table[LINK_B, hop]
        rows.link_class[at], rows.channels[at] = table[CLASS, hop], channels
        rows.slot[at] = channels - 1 if kind in (GATHER, REDUCE) else 0


@nb.njit(**ENTERED_IN_PLACE)
def _put_hops(of, instances, found, last):  # type: ignore[no-untyped-def]
    """Writes the rows of hops, the next in each queue, and the waits inside instances and for queues. last: of every
    queue and pair of queues the last hop, -1 before there is one."""
    rows, (row_of, following, waits), (last_queue, last_pair) = of.rows, found, last
    next_a, next_b, next_pair = following.next_a, following.next_b, following.next_pair
    for number in range(len(instances)):
        variant = instances[number, 0]
        shift = instances[number, 1] - of.begin[variant]
        for row in range(of.begin[variant], of.begin[variant + 1]):
            hop, pair = row + shift, of.pair[row]
            row_of[hop], next_a[hop], next_b[hop], next_pair[hop] = row, -1, -1, -1
            wait = of.waits[row]
            for side in range(2):
                queue = rows.queue_b[row] if side else rows.queue_a[row]
                if queue >= 0:
                    before = last_queue[queue]
                    last_queue[queue] = 2 * hop + side
                    if before >= 0:
                        wait += 1
                        if before % 2:
                            next_b[before // 2] = hop
                        else:
                            next_a[before // 2] = hop
            if pair >= 0:
                before = last_pair[pair]
                last_pair[pair] = hop
                if before >= 0:
                    wait += 1
                    next_pair[before] = hop
            waits[hop] = wait


@nb.njit(**ENTERED_IN_PLACE)
def _put_edges(of, instances, between, following, waits, fill):  # type: ignore[no-untyped-def]
    """Writes the followers of hops, those of the same instance first, and adds the edges between instances to waits."""
    offsets, followers = following.offsets, following.followers
    producer, consumer = between
    for edge in range(len(producer)):
        offsets[producer[edge] + 1] += 1
        waits[consumer[edge]] += 1
    at = 0
    for number in range(len(instances)):
        variant, first = instances[number, 0], instances[number, 1]
        shift = first - of.begin[variant]
        for row in range(of.begin[variant], of.begin[variant + 1]):
            more = offsets[row + shift + 1]
            for edge in range(of.edge_offsets[row], of.edge_offsets[row + 1]):
                followers[at] = first + of.followers[edge]
                at += 1
            fill[row + shift] = at
            at += more
            offsets[row + shift + 1] = at
    for edge in range(len(producer)):
        followers[fill[producer[edge]]] = consumer[edge]
        fill[producer[edge]] += 1


@nb.njit(**ENTERED_IN_PLACE)
def _put_trains(of, instances, found):  # type: ignore[no-untyped-def]
    """Writes the trains of instances."""
    at, pieces = 0, 0
    for number in range(len(instances)):
        variant, first = instances[number, 0], instances[number, 1]
        for train in range(of.train_offsets[variant], of.train_offsets[variant + 1]):
            found[at, 0] = first + of.trains[train, 0] - of.begin[variant]
            found[at, 1], found[at, 2], found[at, 3] = of.trains[train, 1], of.trains[train, 2], pieces
            pieces += of.trains[train, 2]
            at += 1
