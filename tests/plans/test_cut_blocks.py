"""Blocks cut into parts: each token in one, in the order of its block."""

import numpy as np

from zbench.plans.columns import Blocks
from zbench.plans.cut_blocks import cut_blocks


def test_parts_have_their_block_s_tokens_in_order() -> None:
    """Block 0 has tokens 0 to 4 of sequence 0 and 2 to 3 of sequence 1, block 1 the rest, two pieces."""
    columns = ([0, 0, 1, 1], [0, 5, 0, 2], [5, 9, 2, 4], [0, 1, 1, 0], [3, 7])
    blocks = Blocks(*(np.array(one, np.int64) for one in columns[:4]), home=np.array(columns[4]))
    found = cut_blocks(blocks, np.array([0, 0, 0, 1, 1]), np.array([2, 4, 1, 4, 2]))
    pieces = list(zip(found.seq, found.start, found.stop, found.block, strict=True))
    assert pieces == [(0, 0, 2, 0), (0, 2, 5, 1), (0, 5, 9, 3), (1, 0, 2, 4), (1, 2, 3, 1), (1, 3, 4, 2)]
    assert found.home.tolist() == [3, 3, 3, 7, 7]
    assert found.tokens.tolist() == [2, 4, 1, 4, 2]
