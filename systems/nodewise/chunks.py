"""Chunks that a GPU's heads are cut in, exchanged and attended to one after another. Compiled.

One chunk's exchange hides behind another's attends. Before the first and after the last nothing hides anything, so
these are small: a quarter of the heads.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.systems.nodewise.records import FORWARD

# A cut is one of these, or the sum of both quarters: which part of every GPU's heads is a chunk of its own.
WHOLE, FIRST_QUARTER, LAST_QUARTER = 0, 1, 2


@nb.njit(**ENTERED)
def chunk_bounds(cut: int) -> Floats:
    """Returns where a cut divides a GPU's heads, as shares of them: float64 [chunks + 1], from 0 to 1."""
    if cut == FIRST_QUARTER:
        return np.array([0.0, 0.25, 1.0])
    if cut == LAST_QUARTER:
        return np.array([0.0, 0.75, 1.0])
    if cut == FIRST_QUARTER + LAST_QUARTER:
        return np.array([0.0, 0.25, 0.75, 1.0])
    return np.array([0.0, 1.0])


@nb.njit(**ENTERED)
def shard_cut(chunks: int, direction: int) -> int:
    """Returns the cut of shards' heads in at most `chunks`; in the backward, where a call starts eight kernels, two."""
    if chunks == 1:
        return WHOLE
    return FIRST_QUARTER + LAST_QUARTER if chunks > 2 and direction == FORWARD else FIRST_QUARTER


@nb.njit(**INNER)
def shard_bounds(cut: int, heads: float) -> Floats:
    """Returns where a cut divides the `heads` that a GPU has of a shard, which are whole: chunks without any are left
    out.
    """
    heads = max(heads, 1.0)
    ends = np.floor(chunk_bounds(cut) * heads + 0.5) / heads
    ends[-1] = 1.0
    return np.unique(ends)
