"""What a rank's backward reads of its own tokens, beside a plain walk over its operations."""

import numpy as np
import pytest
from hypothesis import given

from tests.helpers.strategies import cases
from zbench.cost.cost import Cost
from zbench.plans.plan import Attend, Plan
from zbench.plans.read_at_home import head_edges, kv_of_heads, read_at_home


def read_by_views(plan: Plan) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Heads of q and kv that a backward list reads of blocks at home, as (block, head of queries)."""
    queries, keys = set[tuple[int, int]](), set[tuple[int, int]]()
    for op in plan.views(plan.backward):
        if isinstance(op, Attend):
            reads = (queries, op.rank, op.q_blocks), (keys, op.rank, op.kv_blocks)
        else:
            reads = tuple((one, op.src, op.blocks) for one, name in ((queries, "q"), (keys, "kv")) if op.tensor == name)
        for found, rank, blocks in reads:
            mine = [block for block in blocks if plan.blocks.home[block] == rank]
            found |= {(block, head) for block in mine for head in range(*op.heads)}
    return queries, keys


@given(cases(nodes=2, gpus=4))
def test_what_is_read_at_home(case: tuple[Cost, Plan]) -> None:
    _, plan = case
    edges = head_edges(plan)
    for cuts in (edges, np.arange(plan.num_heads + 1)):
        for found, wanted in zip(read_at_home(plan, cuts), read_by_views(plan), strict=True):
            assert found.shape == (len(plan.blocks), len(cuts) - 1)
            cells = {
                (block, head)
                for block, part in np.argwhere(found).tolist()
                for head in range(cuts[part], cuts[part + 1])
            }
            assert cells == wanted


@pytest.mark.parametrize(
    ("cuts", "per_kv", "parts"),
    [([0, 4], 1, [0]), ([0, 1, 2, 3, 4], 2, [0, 0, 1, 1]), ([0, 3, 4], 2, [0, 0]), ([0, 2, 3, 8], 2, [0, 1, 1])],
)
def test_heads_that_share_a_kv_head_read_one_part(cuts: list[int], per_kv: int, parts: list[int]) -> None:
    assert kv_of_heads(np.array(cuts), per_kv).tolist() == parts
