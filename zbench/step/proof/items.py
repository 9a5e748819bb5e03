"""The items of a proof: a table by (tensor, layer, place, cell) with what is known of each; compiled.

A row holds all that is known of an item, as a walk goes through items in no order that a cache could foresee.
"""

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.compiled import ENTERED_IN_PLACE, ENTERED_INLINED, IN_PLACE, INLINED

EMPTY = -1  # of an array of keys alone, where nothing is
NO_ITEM = 0  # of a table of items: what new memory is, so that a large table is not written before it is used
THERE, READ_ALREADY = 1, 2  # bits of flags
# key: NO_ITEM where nothing is; one that was taken stays. count: contributions of a sum. version: of state. hops: lossy
# encodings so far. encoding: what the values arrived in and may be forwarded in, -1: plain. writer: the operation that
# touched it last.
ROW = np.dtype(
    [
        ("key", "i8"),
        ("count", "i8"),
        ("writer", "i4"),
        ("version", "i4"),
        ("hops", "i2"),
        ("encoding", "i2"),
        ("flags", "i2"),
    ],
    align=True,
)
ItemTable = NDArray[Any]  # of ROW; its length is a power of two


def new_table(most: int) -> ItemTable:
    """Makes an empty table for at most `most` items."""
    return np.zeros(room_for(most), ROW)


@nb.njit(**ENTERED_IN_PLACE)
def room_for(most):  # type: ignore[no-untyped-def]
    """Returns the length of a table for at most `most` items: a power of two above 1.25 times as many."""
    room = 16
    while room <= most + most // 4 + 2:
        room *= 2
    return room


@nb.njit(**IN_PLACE)
def forget_items(items):  # type: ignore[no-untyped-def]
    """Empties a table."""
    for at in range(len(items)):
        if items[at].key != NO_ITEM:
            items[at].key, items[at].count, items[at].flags = NO_ITEM, 0, 0
            items[at].version, items[at].hops, items[at].encoding, items[at].writer = 0, 0, 0, 0


@nb.njit(**INLINED)
def first_place(key, size):  # type: ignore[no-untyped-def]
    """Returns where to look for a key first, in a table of a power of two: four keys in a row, as cells of neighbouring
    heads have them, are side by side, as who touches one mostly touches all."""
    number = (np.uint64(key) >> np.uint64(2)) * np.uint64(0x9E3779B97F4A7C15)
    block = (number ^ (number >> np.uint64(29))) << np.uint64(2)
    return np.int64((block | (np.uint64(key) & np.uint64(3))) & np.uint64(size - 1))


@nb.njit(**ENTERED_INLINED)
def find_item(items, key):  # type: ignore[no-untyped-def]
    """Returns where an item is in the table, or the place that is free for it."""
    at = first_place(key, len(items))
    while items[at].key != NO_ITEM and items[at].key != key:
        at = (at + 1) & (len(items) - 1)
    return at


@nb.njit(**INLINED)
def find_key(keys, key):  # type: ignore[no-untyped-def]
    """Returns where a key is in an array of keys alone, or the place that is free for it."""
    at = first_place(key, len(keys))
    while keys[at] != EMPTY and keys[at] != key:
        at = (at + 1) & (len(keys) - 1)
    return at
