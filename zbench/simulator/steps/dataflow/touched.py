"""Groups the items that a variant of a template touches, which wait for those of other instances; compiled."""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import ENTERED, ENTERED_IN_PLACE, IN_PLACE, INNER
from zbench.simulator.steps.dataflow.chains import ARRIVES, READS, USES, WRITES
from zbench.simulator.steps.dataflow.implied import LEAST_FELT, QueuedHops, keep_first, keep_last
from zbench.step.operations import COMPUTE
from zbench.step.tensor import STATE

WRITERS, READERS, BUFFERS = range(3)  # whom an operation waits for
OFFSETS = 128  # more than there are layer offsets, half of them below 0
NO_VERSION = -(2**31)
FELT = 2  # of computes that take longer than rounding


class HopsOfGroups(NamedTuple):
    """Hops of the operations of groups of rows: offsets of groups, and rows of hops, sorted by place in each, int64
    [n, 3]: the place, the hop, and 0 unless it computes, FELT where that takes longer than rounding."""

    offsets: Ints
    rows: Ints


class TouchRelations(NamedTuple):
    """Groups of rows that wait for those of other instances, that others wait for, and that end.

    waits: those that wait for others, int64 [n, 3]: (group, side, code of the pair). side: for who wrote it (WRITERS),
    who read it (READERS), or who used the buffer that it takes (BUFFERS). notes: those that others may wait for, alike,
    with WRITERS or READERS. ends: the pairs of which it leaves nothing, gives a buffer back, or has used one while
    another is gathered, int64 [n, 4]: (code, whether its buffer is free for the next layer's, whether it is kept and
    the next that is gathered ahead has its turn, whether nothing is left). finals, begins: the hops with which the
    operations of each group are complete, and begin, as many as others have to wait for, or have to wait.
    """

    waits: Ints
    notes: Ints
    ends: Ints
    finals: HopsOfGroups
    begins: HopsOfGroups


class TouchedItems(NamedTuple):
    """Rows in groups of a kind and a pair of tensor and layer offset, sorted by place in each: kinds, pairs (codes),
    offsets of groups, and by row the operation and the place."""

    kinds: Ints
    pairs: Ints
    offsets: Ints
    ops: Ints
    places: Ints


class NamedPairs(NamedTuple):
    """The pairs of a tensor and a layer offset that a template names.

    touched: of transfers and the contract, codes. held: that its contract names, int64 [n, 3]: (code, items before,
    items after it). replaced: by code, whether transfers bring it in a later version than there was before: they
    replace what is there, and need no room of their own.
    """

    touched: Ints
    held: Ints
    replaced: Flags


@nb.njit(**ENTERED)
def named_pairs(ops, needs, leaves, offsets, tensors):  # type: ignore[no-untyped-def]
    """Returns the fields of `NamedPairs`. needs, leaves: tables of Items. offsets: of the layout's lists. tensors: how
    many it has."""
    codes = tensors * OFFSETS
    touched, held, replaced = np.zeros(codes, np.bool_), np.zeros(codes, np.bool_), np.zeros(codes, np.bool_)
    before, items = np.full(codes, NO_VERSION, np.int64), np.zeros((2, codes), np.int64)
    for side, table in enumerate((needs, leaves)):
        for row in table:
            code, count = row[0] * OFFSETS + row[1] + OFFSETS // 2, np.int64(1)
            for which in (row[2], row[3], row[4]):  # -1: none, or at home, one
                count *= offsets[which + 1] - offsets[which] if which >= 0 else 1
            touched[code] = held[code] = True
            items[side, code] += count
            if side == 0:
                before[code] = max(before[code], row[6])
    for op in ops:
        if op[0] != COMPUTE:
            code = op[1] * OFFSETS + op[7] + OFFSETS // 2
            touched[code] = True
            replaced[code] |= before[code] > NO_VERSION and op[9] > before[code]
    named = np.flatnonzero(held)
    found = np.empty((len(named), 3), np.int64)
    for at in range(len(named)):
        found[at, 0], found[at, 1], found[at, 2] = named[at], items[0, named[at]], items[1, named[at]]
    return np.flatnonzero(touched), found, replaced


def touched_items(rows: Ints, shape: tuple[int, int, int]) -> TouchedItems:
    """Returns rows of Flow in groups. shape: tensors, places and operations."""
    return TouchedItems(*_touch_groups(_sorted_keys(rows, shape), shape))


def relations_of(
    rows: Ints,
    shape: tuple[int, int, int],
    about: tuple[Ints, Flags, Ints, Ints],
    hops: tuple[Ints, Ints, Ints, int],
    queued: QueuedHops,
) -> TouchRelations:
    """Returns the relations of rows of Flow.

    shape: tensors, places and operations. about: the nature of tensors, of codes of pairs whether what arrives takes no
    room of its own, NamedPairs.held, and the codes of what is not there. hops: of each its operation, what it waits
    for, and whether it is its operation's last; and what the first ones wait for.
    """
    waits, notes, ends, finals, begins = _relations(_sorted_keys(rows, shape), shape, about, hops, queued)
    return TouchRelations(waits, notes, ends, HopsOfGroups(*finals), HopsOfGroups(*begins))


def _sorted_keys(rows: Ints, shape: tuple[int, int, int]) -> Ints:
    """Returns a number for every row, in the order of kinds, pairs, places and operations."""
    keys = np.empty(len(rows), np.int64)
    _put_keys(rows, shape, keys)
    keys.sort()  # numpy's takes a fifth of numba's
    return keys


@nb.njit(**ENTERED)
def _relations(keys, shape, about, hops, queued):  # type: ignore[no-untyped-def]
    """Returns the fields of `TouchRelations`, the last two as those of theirs. keys: of rows, sorted."""
    touches = TouchedItems(*_touch_groups(keys, shape))
    waits, notes, ends = _related(touches.kinds, touches.pairs, about)
    finals = _hops_of_groups(touches, (hops[0], hops[2], 1, shape[2]), queued, True)
    begins = _hops_of_groups(touches, (hops[0], hops[1], hops[3], shape[2]), queued, False)
    return waits, notes, ends, finals, begins


@nb.njit(**IN_PLACE)
def _bits(shape):  # type: ignore[no-untyped-def]
    """Returns how many bits operations take in the number of a row, and how many they and places."""
    of_ops, of_places = 0, 0
    while 1 << of_ops < shape[2]:
        of_ops += 1
    while 1 << of_places < shape[1]:
        of_places += 1
    return of_ops, of_ops + of_places


@nb.njit(**ENTERED_IN_PLACE)
def _put_keys(rows, shape, keys):  # type: ignore[no-untyped-def]
    """Writes a number for every row, which are in the order of kinds, pairs, places and operations."""
    of_ops, before = _bits(shape)
    for at in range(len(rows)):
        group = (rows[at, 0] * shape[0] + rows[at, 2]) * OFFSETS + rows[at, 3] + OFFSETS // 2
        keys[at] = group << before | rows[at, 4] << of_ops | rows[at, 1]


@nb.njit(**ENTERED)
def _touch_groups(keys, shape):  # type: ignore[no-untyped-def]
    """Returns the fields of `TouchedItems`. keys: of `_sorted_keys`."""
    codes, (of_ops, before), count = shape[0] * OFFSETS, _bits(shape), 0
    op, place = keys & ((1 << of_ops) - 1), (keys >> of_ops) & ((1 << before - of_ops) - 1)
    kinds, pairs, offsets = np.empty_like(keys), np.empty_like(keys), np.empty(len(keys) + 1, np.int64)
    for at in range(len(keys)):
        group = keys[at] >> before
        if at == 0 or group != keys[at - 1] >> before:
            kinds[count], pairs[count], offsets[count] = group // codes, group % codes, at
            count += 1
    offsets[count] = len(keys)
    return kinds[:count].copy(), pairs[:count].copy(), offsets[: count + 1].copy(), op, place


@nb.njit(**INNER)
def _related(kinds, pairs, about):  # type: ignore[no-untyped-def]
    """Returns the first fields of `TouchRelations`. kinds, pairs: of TouchedItems. about: as of `relations_of`."""
    nature, replaced, held, gone = about
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
    for pair in gone:
        arrives[pair] = False
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


@nb.njit(**INNER)
def _hops_of_groups(touches, marks, queued, last):  # type: ignore[no-untyped-def]
    """Returns the fields of `HopsOfGroups`. marks: of hops their operations and what marks them, the mark of those that
    are meant, and the number of operations. last: whether others wait for them."""
    of, mark, meant, most = marks
    begin, hops = np.zeros(most + 1, np.int64), np.empty(len(of), np.int64)
    queues, room = _put_marked(touches.ops, (of, mark, meant), queued, begin, hops)
    work = np.full(queues, -1, np.int64), np.arange(room), np.ones(room, np.bool_)
    out = np.zeros(len(touches.offsets), np.int64), np.empty((room, 3), np.int64), np.empty(room, np.int64)
    used = _put_groups(touches, (begin, hops), queued, last, work, out)
    return out[0], out[1][:used].copy()


@nb.njit(**IN_PLACE)
def _put_marked(ops, marks, queued, begin, hops):  # type: ignore[no-untyped-def]
    """Writes the marked hops of every operation, compressed rows; returns how many queues hops have, and how many hops
    those of some operations together."""
    of, mark, meant = marks
    count, queues, room = 0, 0, 0
    for hop in range(len(of)):  # hops are in the order of their operations
        queues = max(queues, queued.queue_a[hop] + 1, queued.queue_b[hop] + 1)
        if mark[hop] == meant:
            hops[count] = hop
            count += 1
            begin[of[hop] + 1] += 1
    for op in range(len(begin) - 1):
        begin[op + 1] += begin[op]
    for op in ops:
        room += begin[op + 1] - begin[op]
    return queues, room


@nb.njit(**IN_PLACE)
def _put_groups(touches, rows, queued, last, work, out):  # type: ignore[no-untyped-def]
    """Writes what `_hops_of_groups` returns, and returns how many hops there are. rows: marked hops of operations,
    compressed rows. work: of every queue -1, the numbers of hops that there may be, and whether each is needed, which
    is so of all."""
    (none, every, needed), (begin, table, found) = work, out
    offsets, ops, places = touches.offsets, touches.ops, touches.places
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
            for at_hop in range(first, used):
                hop = found[at_hop]
                kind = 0 if not queued.computes[hop] else FELT if queued.busy[hop] > LEAST_FELT else 1
                table[at_hop, 0], table[at_hop, 1], table[at_hop, 2] = where, hop, kind
        begin[group + 1] = used
    return used
