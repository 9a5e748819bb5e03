"""Items while a template is followed: who made them, who read them, and how long they live; compiled."""

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import INLINED
from zbench.step.operations import COMPUTE
from zbench.step.proof.items import EMPTY, find_key
from zbench.step.tensor import STATE, SUM

_FIRST, _LAST, _MAKERS, _READERS = range(4, 8)  # of an item's columns
READS, WRITES, USES, ARRIVES = range(4)  # of rows: waits for what wrote it; wrote it; read state; was brought state


class FlowState(NamedTuple):
    """A walk's notes.

    keys: of items, a table of a power of two; number: in each of its places, the item's. items: int64 [items, 8], in
    the order in which they are first touched: the columns of Flow.items, and then the operations that made one and
    those that read it, as chains of nodes. ended: as Flow.ended. stamp: by operation, the last consumer that has an
    edge from it. seen: by kind, tensor, offset and place, the last operation that a row was made for. used: nodes,
    edges, rows, lives ended and items so far.
    """

    keys: Ints
    number: NDArray[np.int32]
    items: Ints
    ended: Ints
    node: Ints
    following: Ints
    stamp: Ints
    seen: Ints
    used: Ints
    edges: Ints
    rows: Ints


class ItemSpace(NamedTuple):
    """The keys that items have, and what a contract needs.

    base: where the keys of each tensor begin. lowest: the lowest layer offset. offsets, places: how many there are.
    needed: [tensors, offsets], whether the contract needs some of it.
    """

    base: Ints
    lowest: int
    offsets: int
    places: int
    needed: Flags


@nb.njit(**INLINED)
def _item(t, where, state, op, item, writes):  # type: ignore[no-untyped-def]
    """Returns the number of an item; it has a new one if it is new, and its life goes on."""
    tensor, layer, place, cell = item
    cells = t.shape0[tensor] * t.shape1[tensor]
    from_lowest = (layer - where.lowest) * t.layered[tensor]
    key = where.base[tensor] + (from_lowest * where.places + place) * cells + cell
    at = find_key(state.keys, key)
    if state.keys[at] == EMPTY:
        one = state.used[4]
        state.used[4] += 1
        state.keys[at], state.number[at] = key, one
        row = state.items[one]
        row[0], row[1], row[2], row[3] = tensor, layer, place, cell
        row[_FIRST], row[_MAKERS], row[_READERS] = -1, -1, -1
    one = state.number[at]
    state.items[one, _LAST] = op
    if writes and state.items[one, _FIRST] < 0:
        state.items[one, _FIRST] = op
    return one


@nb.njit(**INLINED)
def drops_item(t, where, state, op, item):  # type: ignore[no-untyped-def]
    """Ends the life of a copy that a place forgets; another one begins if it is written there again."""
    row = state.items[_item(t, where, state, op, item, False)]
    ended = state.ended[state.used[3]]
    for at in range(6):
        ended[at] = row[at]
    state.used[3] += 1
    row[_FIRST] = -1


@nb.njit(**INLINED)
def _row(t, where, state, kind, op, tensor, layer, place):  # type: ignore[no-untyped-def]
    """Notes a row, once for an operation."""
    offset = layer - where.lowest
    at = ((kind * len(t.nature) + tensor) * where.offsets + offset) * where.places + place
    if state.seen[at] == op:
        return
    state.seen[at] = op
    if state.used[2] < len(state.rows):
        row = state.rows[state.used[2]]
        row[0], row[1], row[2], row[3], row[4] = kind, op, tensor, layer, place
    state.used[2] += 1


@nb.njit(**INLINED)
def _edges(state, ops, chain, op):  # type: ignore[no-untyped-def]
    """Makes the operation wait for all of a chain."""
    while chain >= 0:
        other = state.node[chain]
        chain = state.following[chain]
        if other == op or state.stamp[other] == op:
            continue
        state.stamp[other] = op
        if ops[other, 0] == COMPUTE and ops[op, 0] == COMPUTE and ops[other, 2] == ops[op, 2]:
            continue
        if state.used[1] < len(state.edges):
            state.edges[state.used[1], 0], state.edges[state.used[1], 1] = other, op
        state.used[1] += 1


@nb.njit(**INLINED)
def _chained(state, chain, op):  # type: ignore[no-untyped-def]
    """Returns the chain with the operation in front."""
    if chain >= 0 and state.node[chain] == op:
        return chain
    at = state.used[0]
    state.node[at], state.following[at] = op, chain
    state.used[0] += 1
    return at


@nb.njit(**INLINED)
def reads_item(t, where, state, ops, op, item):  # type: ignore[no-untyped-def]
    """Waits for what made an item."""
    tensor, layer, place, _ = item
    at = _item(t, where, state, op, item, False)
    nature = t.nature[tensor]
    if state.items[at, _MAKERS] < 0 or (nature == SUM and where.needed[tensor, layer - where.lowest]):
        _row(t, where, state, READS, op, tensor, layer, place)
    _edges(state, ops, state.items[at, _MAKERS], op)
    if nature == STATE:
        state.items[at, _READERS] = _chained(state, state.items[at, _READERS], op)
        _row(t, where, state, USES, op, tensor, layer, place)


@nb.njit(**INLINED)
def writes_item(t, where, state, ops, op, item, arrives):  # type: ignore[no-untyped-def]
    """Replaces an item; of state, after all that read it."""
    tensor, layer, place, _ = item
    at = _item(t, where, state, op, item, True)
    if t.nature[tensor] == STATE:
        _edges(state, ops, state.items[at, _READERS], op)
        state.items[at, _READERS] = -1
        if arrives:
            _row(t, where, state, ARRIVES, op, tensor, layer, place)
    state.items[at, _MAKERS] = _chained(state, -1, op)
    _row(t, where, state, WRITES, op, tensor, layer, place)


@nb.njit(**INLINED)
def adds_item(t, where, state, op, item):  # type: ignore[no-untyped-def]
    """Adds to a sum, which waits for nobody."""
    tensor, layer, place, _ = item
    at = _item(t, where, state, op, item, True)
    state.items[at, _MAKERS] = _chained(state, state.items[at, _MAKERS], op)
    _row(t, where, state, WRITES, op, tensor, layer, place)


@nb.njit(**INLINED)
def takes_item(t, where, state, ops, op, item):  # type: ignore[no-untyped-def]
    """Takes what was added to a sum so far."""
    tensor, layer, place, _ = item
    at = _item(t, where, state, op, item, False)
    if where.needed[tensor, layer - where.lowest]:
        _row(t, where, state, READS, op, tensor, layer, place)
    _edges(state, ops, state.items[at, _MAKERS], op)
    state.items[at, _MAKERS] = -1
