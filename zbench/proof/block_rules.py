"""The rules of blocks: every token of every sequence belongs to exactly one block, and every block has a home.

Arrays are as zbench.proof.array_rules wants them.
"""

from collections.abc import Iterator

import numpy as np

from zbench.plans.columns import in_order
from zbench.plans.plan import Plan


def block_fault(plan: Plan) -> str:
    """Returns the first rule of blocks and of lists of them that the plan breaks, as a sentence; "" if none."""
    return next(_faults(plan), "")


def _faults(plan: Plan) -> Iterator[str]:
    blocks, items = plan.blocks, plan.lists.items
    for name, ids, count, what in (
        ("blocks.block", blocks.block, len(blocks), "blocks"),
        ("blocks.seq", blocks.seq, len(plan.lengths), "sequences"),
        ("blocks.home", blocks.home, plan.num_ranks, "ranks"),
        ("lists.items", items, len(blocks), "blocks"),
    ):
        outside = (ids < 0) | (ids >= count)
        if outside.any():
            at = int(np.argmax(outside))
            yield f"plan.{name}[{at}] is {ids[at]}; {what} are 0 to {count - 1}"
    lengths = plan.lists.lengths
    if (lengths < 1).any():
        yield f"plan.lists has nothing in list {int(np.argmin(lengths))}; a list has at least one block"
    yield from _token_faults(plan)


def _token_faults(plan: Plan) -> Iterator[str]:
    blocks, lengths = plan.blocks, plan.lengths
    sizes = blocks.stop - blocks.start
    # A piece within its sequence first: differences of anything else may not fit into 64 bits.
    beyond = (blocks.start < 0) | (blocks.stop > lengths[blocks.seq]) | (blocks.stop <= blocks.start)
    if beyond.any():
        at = int(np.argmax(beyond))
        yield (
            f"block {blocks.block[at]} has the tokens {blocks.start[at]} to {blocks.stop[at]} of sequence "
            f"{blocks.seq[at]}; a piece begins before it stops and lies in 0 to {lengths[blocks.seq[at]]}"
        )
    if not in_order(blocks.seq, blocks.start):
        yield "pieces of plan.blocks are not in (sequence, start) order"
    empty = np.bincount(blocks.block, minlength=len(blocks)) == 0
    if empty.any():
        yield f"block {int(np.argmax(empty))} is empty; a block has at least one token"
    # In order, without holes or overlaps: each piece starts where the one before stopped, or at 0 of the next sequence.
    new = np.concatenate([[True], blocks.seq[1:] != blocks.seq[:-1]])[: len(sizes)]
    expected = np.where(new, 0, np.concatenate([[0], blocks.stop[:-1]])[: len(sizes)])
    wrong = blocks.start != expected
    if wrong.any():
        at = int(np.argmax(wrong))
        yield (
            f"sequence {blocks.seq[at]}: block {blocks.block[at]} has tokens from {blocks.start[at]}, "
            f"those before it end at {expected[at]}: a token is owned twice or not at all"
        )
    owned = np.bincount(blocks.seq, weights=sizes, minlength=len(lengths))
    if (owned != lengths).any():
        short = int(np.argmax(owned != lengths))
        yield f"sequence {short} has {lengths[short]} tokens, its blocks hold {int(owned[short])}"
