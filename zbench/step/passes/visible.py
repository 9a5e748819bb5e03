"""The relation visible(t, s) of a plan: which parts of queries see which parts of keys."""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Plan
from zbench.step.index import Relation


def visible_parts(plan: Plan, block: Ints) -> Relation:
    """Returns visible(t, s): which blocks have a query that sees a key of which blocks. block: of every part of t."""
    blocks, mask = plan.blocks, plan.mask
    offsets, partners = _seen(
        (blocks.seq, blocks.start, blocks.stop, blocks.block),
        blocks.pieces.offsets,
        blocks.pieces.items,
        len(plan.lengths),
        mask.causal,
        mask.window,
    )
    key = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) * len(blocks) + partners
    key.sort()  # here and not in the compiled loop, where a sort takes seconds to compile
    return Relation("visible", "t", "t", block, block, offsets, key % len(blocks))


@nb.njit(**ENTERED)
def _seen(
    pieces: tuple[Ints, Ints, Ints, Ints], offsets: Ints, of_block: Ints, num_sequences: int, causal: bool, window: int
) -> tuple[Ints, Ints]:
    """Returns compressed rows of blocks: those with a key that a query of the row's block sees, in any order."""
    seq, start, stop, block = pieces
    first = np.zeros(num_sequences + 1, np.int64)
    for at in range(len(seq)):
        first[seq[at] + 1] += 1
    for at in range(num_sequences):
        first[at + 1] += first[at]
    count = len(offsets) - 1
    rows, stamp = np.zeros(count + 1, np.int64), np.full(count, -1, np.int64)
    found, used = np.empty(count + 16, np.int64), 0
    for one in range(count):
        if used + count > len(found):
            larger = np.empty(2 * len(found) + count, np.int64)
            larger[:used] = found[:used]
            found = larger
        for at in range(offsets[one], offsets[one + 1]):
            mine = of_block[at]
            for other in range(first[seq[mine]], first[seq[mine] + 1]):
                if causal and start[other] >= stop[mine]:
                    break
                if window > 0 and start[mine] - stop[other] + 1 >= window:
                    continue
                if stamp[block[other]] != one:
                    stamp[block[other]] = one
                    found[used] = block[other]
                    used += 1
        rows[one + 1] = used
    return rows, found[:used].copy()
