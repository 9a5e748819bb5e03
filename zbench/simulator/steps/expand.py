"""Writes the hops that operations of a step become into a table; compiled."""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.links import NIC
from zbench.simulator.hops import class_of, proxy
from zbench.step.operations import BOTH_WAYS, COMPUTE, DROP, GATHER, MOVE, REDUCE, SEND

TX, RX, THROUGH_TX, THROUGH_RX = range(4)
START, NEVER = -1, -2  # in place of a hop before: an operation's first; one that waits for its queue or for named hops
_BOTH_WAYS = np.array(BOTH_WAYS)
MOST_PIECES = 2**12  # of a message; of 0.2 ms each that is 0.8 s, longer than any between GPUs
OP, RANK, QUEUE_A, QUEUE_B, LINK_A, LINK_B, CLASS, BYTES, AFTER, IS_LAST, PIECES = range(11)  # rows of a table of hops


class CollectiveLegs(NamedTuple):
    """Legs of collectives over different members, one after another; offsets by their number. number: by operation,
    which it goes over; pieces: of each operation."""

    number: Ints
    offsets: Ints
    member: Ints
    link: Ints
    share: Floats
    pieces: Ints


class Topology(NamedTuple):
    """The queues and links of a cluster as compiled loops read them.

    classes, member: zbench.simulator.hops.members. port: its ports. nic: of every GPU. per_node, nics: of a node. gpus:
    of all. host: the class of links to hosts, -1 if there is none. queues: of a GPU.
    """

    classes: Ints
    member: Ints
    port: Ints
    nic: Ints
    per_node: int
    nics: int
    gpus: int
    host: int
    queues: int


@nb.njit(**INNER)
def _queue(to, place, purpose, link, way):  # type: ignore[no-untyped-def]
    return place * to.queues + 1 + 4 * (link + len(to.port) * (purpose - 1)) + way


@nb.njit(**INNER)
def _hop(out, at, op, ends, ways, link, moved, to):  # type: ignore[no-untyped-def]
    """Writes a transfer from one GPU's port to another's."""
    a, b = ends
    number, purpose = op
    size, after = moved
    out[OP, at], out[RANK, at], out[CLASS, at], out[BYTES, at], out[AFTER, at] = number, a, link, size, after
    out[QUEUE_A, at], out[QUEUE_B, at] = _queue(to, a, purpose, link, ways[0]), _queue(to, b, purpose, link, ways[1])
    out[LINK_A, at], out[LINK_B, at] = to.port[link, a], to.port[link, b] + 1


@nb.njit(**INNER)
def _routed(out, at, number, op, size, lanes, to):  # type: ignore[no-untyped-def]
    """Writes the hops of a transfer over lanes; returns where the next hop goes."""
    s, d, node = op[2], op[3], to.member[-1]
    for place in range(len(lanes)):
        share = size * (place + 1) // len(lanes) - size * place // len(lanes)
        if share == 0:
            continue
        p = proxy(s, lanes[place], to.nic, node, to.per_node, to.nics)
        q = proxy(d, lanes[place], to.nic, node, to.per_node, to.nics)
        before = START
        if p != s:
            c = class_of(s, p, to.classes, to.member)
            _hop(out, at, (number, op[8]), (s, p), (TX, THROUGH_RX), c, (share, before), to)
            before = at
            at += 1
        _hop(out, at, (number, op[8]), (p, q), (TX, RX), NIC, (share, before), to)
        if q != d:
            before = at
            at += 1
            c = class_of(q, d, to.classes, to.member)
            _hop(out, at, (number, op[8]), (q, d), (THROUGH_TX, RX), c, (share, before), to)
        out[IS_LAST, at] = 1
        at += 1
    return at


@nb.njit(**INNER)
def _collective(out, op, size, legs, to, edges, where):  # type: ignore[no-untyped-def]
    """Writes a collective: a meeting, all legs, another meeting. where: the operation's number, the hop and the edge
    that come next, the queue of the first meeting. Returns (next hop, next edge)."""
    number, at, count, meeting = where
    begin, end, first = legs.offsets[legs.number[number]], legs.offsets[legs.number[number] + 1], at
    last = first + 1 + end - begin
    out[OP, first], out[QUEUE_A, first], out[AFTER, first] = number, -2 - meeting, START
    for leg in range(begin, end):
        at += 1
        ends, share = (legs.member[leg], legs.member[leg]), np.int64(legs.share[leg] * size)
        _hop(out, at, (number, op[8]), ends, (TX, RX), legs.link[leg], (share, first), to)
        out[PIECES, at] = legs.pieces[number]
        edges[0, count], edges[1, count] = at, last
        count += 1
    out[OP, last], out[QUEUE_A, last], out[IS_LAST, last] = number, -3 - meeting, 1
    out[AFTER, last] = first if begin == end else NEVER
    return last + 1, count


@nb.njit(**INNER)
def _host_copy(out, at, number, op, size, to):  # type: ignore[no-untyped-def]
    """Writes a copy between a GPU and its node's host memory, which has no queue at its other end."""
    sends = op[3] >= to.gpus
    gpu = op[2] if sends else op[3]
    way = TX if sends else RX
    out[OP, at], out[RANK, at], out[CLASS, at], out[BYTES, at], out[AFTER, at] = number, gpu, to.host, size, START
    out[QUEUE_A, at] = _queue(to, gpu, op[8], to.host, way)
    out[LINK_A, at] = to.port[to.host, gpu] + way


@nb.njit(**ENTERED)
def expand(ops, begin, size, lists, legs, to):  # type: ignore[no-untyped-def]
    """Returns (the table of hops, edges inside collectives, queues of meetings of each variant). begin: where the
    operations of variants begin, and one more for the end."""
    count, ends, node = 0, 0, to.member[-1]
    for number in range(len(ops)):
        op = ops[number]
        if op[0] == GATHER or op[0] == REDUCE:
            which = legs.number[number]
            legs_of_op = legs.offsets[which + 1] - legs.offsets[which] if which >= 0 else 0
            count += 2 + legs_of_op
            ends += legs_of_op
        else:
            count += 1 if op[11] < 0 else 3 * (lists[0][op[11] + 1] - lists[0][op[11]])
    out = np.full((11, count), -1, np.int64)
    out[BYTES], out[IS_LAST], out[RANK], out[PIECES] = 0, 0, 0, 1
    edges = np.empty((2, ends), np.int64)
    at, done, variant, meetings = 0, 0, 0, np.zeros(len(begin) - 1, np.int64)
    for number in range(len(ops)):
        op = ops[number]
        while begin[variant + 1] <= number:
            variant += 1
        if op[0] == DROP or (op[0] != COMPUTE and size[number] < 0):
            continue
        if op[0] == COMPUTE:
            queue = op[2] * to.queues if op[2] < to.gpus else to.gpus * to.queues + op[2] - to.gpus
            out[OP, at], out[RANK, at], out[QUEUE_A, at], out[AFTER, at] = number, op[2], queue, START
        elif op[0] == GATHER or op[0] == REDUCE:
            at, done = _collective(out, op, size[number], legs, to, edges, (number, at, done, meetings[variant]))
            meetings[variant] += 2
            continue
        elif op[2] >= to.gpus or op[3] >= to.gpus:
            _host_copy(out, at, number, op, size[number], to)
        elif op[11] < 0 or node[op[2]] == node[op[3]]:
            c = class_of(op[2], op[3], to.classes, to.member)
            back = _BOTH_WAYS[op[8]] and op[3] < op[2]
            ways = (THROUGH_TX, THROUGH_RX) if back else (TX, RX)
            _hop(out, at, (number, op[8]), (op[2], op[3]), ways, c, (size[number], START), to)
        else:
            at = _routed(out, at, number, op, size[number], lists[1][lists[0][op[11]] : lists[0][op[11] + 1]], to)
            continue
        out[IS_LAST, at] = 1
        at += 1
    return out[:, :at].copy(), edges[0, :done].copy(), edges[1, :done].copy(), meetings


@nb.njit(**ENTERED)
def hop_columns(table, ops, seconds, carried, classes):  # type: ignore[no-untyped-def]
    """Returns, of a table of hops, the first hop of every operation (and one more for the end), each hop's purpose,
    whether its queues have one channel, whether it computes, and its busy and latency.

    seconds: of operations, those of computes, and latencies. carried: of hops, the seconds of their bytes as a message
    on one channel, and on all of a link. classes: channels and latencies of the classes of links.
    """
    count = table.shape[1]
    first, purpose = np.zeros(len(ops) + 1, np.int64), np.empty(count, np.int64)
    serial, computes = np.empty(count, np.bool_), np.empty(count, np.bool_)
    busy, delay = np.zeros(count), np.zeros(count)
    for hop in range(count):
        op, link, last = table[OP, hop], table[CLASS, hop], table[IS_LAST, hop] == 1
        kind = ops[op, 0]
        first[op + 1] += 1
        purpose[hop], computes[hop], serial[hop] = ops[op, 8], kind == COMPUTE, classes[0][link] == 1
        if link >= 0:
            whole = kind in (GATHER, REDUCE) or serial[hop]
            busy[hop] = carried[1][hop] if whole else carried[0][hop]
            if kind < GATHER:
                delay[hop] = classes[1][link] + (seconds[1][op] if last else 0.0)
        elif table[QUEUE_A, hop] >= 0:
            busy[hop] = seconds[0][op]
        if last and table[QUEUE_A, hop] < 0:
            delay[hop] = seconds[1][op]
    for op in range(len(ops)):
        first[op + 1] += first[op]
    return first, purpose, serial, computes, busy, delay


@nb.njit(**ENTERED)
def put_pieces(table, ops, seconds, longest):  # type: ignore[no-untyped-def]
    """Cuts the messages of a table in pieces of one length, of at most `longest` seconds, or in MOST_PIECES. seconds:
    of each hop's bytes as a message."""
    for hop in range(table.shape[1]):
        if table[CLASS, hop] >= 0 and ops[table[OP, hop], 0] < GATHER:
            count = min(np.ceil(seconds[hop] / longest), table[BYTES, hop], MOST_PIECES)
            table[PIECES, hop] = max(1, np.int64(count))


@nb.njit(**ENTERED)
def piece_bytes(table):  # type: ignore[no-untyped-def]
    """Returns the hops of a table that go in several pieces, with how many there are of each, int64 [n, 2], and the
    bytes and the class of links of every piece, those of one hop after another."""
    hops, count = 0, 0
    for pieces in table[PIECES]:
        hops += pieces > 1
        count += pieces if pieces > 1 else 0
    found, size, link = np.empty((hops, 2), np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    train, at = 0, 0
    for hop in range(table.shape[1]):
        pieces, whole = table[PIECES, hop], table[BYTES, hop]
        if pieces > 1:
            found[train, 0], found[train, 1] = hop, pieces
            train += 1
            for piece in range(pieces):
                size[at], link[at] = whole * (piece + 1) // pieces - whole * piece // pieces, table[CLASS, hop]
                at += 1
    return found, size, link


@nb.njit(**ENTERED)
def misplaced(ops, gpus, nodes):  # type: ignore[no-untyped-def]
    """Tells whether a transfer is at a host memory, and whether one of these is with a GPU of another node. nodes: of
    every place."""
    at_host, apart = False, False
    for op in ops:
        if (op[0] == SEND or op[0] == MOVE) and (op[2] >= gpus or op[3] >= gpus):
            at_host = True
            apart |= nodes[op[2]] != nodes[op[3]]
    return at_host, apart
