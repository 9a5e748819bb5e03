"""Cuts a plan's blocks into parts that follow one another in them, wherever the pieces of sequences end."""

import numpy as np

from zbench.describe.arrays import Ints
from zbench.plans.columns import Blocks


def cut_blocks(blocks: Blocks, block: Ints, sizes: Ints) -> Blocks:
    """Returns the parts of blocks as blocks of their own: of each block they have its tokens in order.

    block, sizes: of every part its block, ascending, and its tokens, of which those of a block have all.
    """
    # Tokens of all blocks one after another are a line; it is cut where a piece ends and where a part does.
    order = blocks.pieces.items
    piece_ends, part_ends = np.cumsum((blocks.stop - blocks.start)[order]), np.cumsum(sizes)
    ends = np.unique(np.concatenate([piece_ends, part_ends]))
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    at, part = (np.searchsorted(every, begins, side="right") for every in (piece_ends, part_ends))
    piece = order[at]
    start = np.asarray(blocks.stop[piece] - piece_ends[at] + begins, np.int64)
    sort = np.lexsort((start, blocks.seq[piece]))
    stop = np.asarray(start + ends - begins, np.int64)
    return Blocks(blocks.seq[piece][sort], start[sort], stop[sort], part[sort], blocks.home[block])
