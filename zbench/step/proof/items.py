"""The items of a proof: a table by (tensor, layer, place, cell) with what is known of each; compiled."""

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Ints

EMPTY = -1
THERE, READ_ALREADY = 1, 2  # bits of flags


class ItemTable(NamedTuple):
    """An open-addressed table; arrays [a power of two]. keys: EMPTY where nothing is; a key that was taken stays.

    count: contributions of a sum. version: of state. hops: lossy encodings so far. encoding: what the values arrived
    in and may be forwarded in, -1: plain. flags: THERE, READ_ALREADY. writer: the operation that touched it last.
    """

    keys: Ints
    count: Ints
    version: NDArray[np.int32]
    hops: NDArray[np.int32]
    encoding: NDArray[np.int32]
    flags: NDArray[np.uint8]
    writer: NDArray[np.int32]


def new_table(most: int) -> ItemTable:
    """Makes an empty table for at most `most` items."""
    size = 1 << max(int(2 * most + 2).bit_length(), 4)
    return ItemTable(
        np.full(size, EMPTY, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
        np.full(size, -1, np.int32),
        np.zeros(size, np.uint8),
        np.full(size, -1, np.int32),
    )


@nb.njit(cache=True)
def find(keys, key):  # type: ignore[no-untyped-def]
    """Returns where a key is in the table, or the place that is free for it."""
    mask = np.uint64(len(keys) - 1)
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64((mixed ^ (mixed >> np.uint64(29))) & mask)
    while keys[at] != EMPTY and keys[at] != key:
        at = (at + 1) & np.int64(mask)
    return at
