"""What a plan derives from its columns, and its views."""

import numpy as np
from hypothesis import given

from tests.helpers.strategies import cases
from zbench.cost.cost import Cost
from zbench.describe.model import DKV, KV, O, Q
from zbench.passes import reverse, route
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import ATTEND, Attend, Plan, Transfer


@given(cases(nodes=2, gpus=4))
def test_derived_arrays(case: tuple[Cost, Plan]) -> None:
    _, plan = case
    blocks = plan.blocks
    sizes = blocks.stop - blocks.start
    assert blocks.tokens.tolist() == [int(sizes[blocks.block == b].sum()) for b in range(len(blocks))]
    for index in range(len(blocks)):
        pieces = blocks.pieces[index]
        assert (blocks.block[pieces] == index).all()
        order = list(zip(blocks.seq[pieces].tolist(), blocks.start[pieces].tolist(), strict=True))
        assert order == sorted(order)
    per_rank = [int(blocks.tokens[blocks.home == rank].sum()) for rank in range(plan.num_ranks)]
    assert plan.tokens_per_rank.tolist() == per_rank
    assert plan.tokens_per_rank.sum() == plan.lengths.sum()
    assert plan.list_tokens.tolist() == [int(blocks.tokens[plan.lists[at]].sum()) for at in range(len(plan.lists))]


@given(cases(nodes=2, gpus=4))
def test_views_say_what_the_columns_say(case: tuple[Cost, Plan]) -> None:
    _, plan = case
    for ops in (plan.forward, plan.backward):
        for index, view in enumerate(plan.views(ops)):
            assert view.heads == (ops.head_lo[index], ops.head_hi[index])
            if isinstance(view, Attend):
                assert ops.kind[index] == ATTEND
                assert view.rank == ops.src[index]
                assert view.kv_blocks == tuple(plan.lists[ops.kv_blocks[index]])
                continue
            assert isinstance(view, Transfer)
            assert (view.src, view.dst) == (ops.src[index], ops.dst[index])
            assert view.blocks == tuple(plan.lists[ops.blocks[index]])
            assert bool(view.via) == (ops.via[index] >= 0)
            assert view.keep == bool(ops.keep[index])


def test_printing(uneven: Cost) -> None:
    builder = Builder(np.array([600]), 15, 6)
    ring(builder, np.array([0]), np.array([0]), np.arange(15)[None])
    plan = reverse(builder.build(), "keep")
    text = str(plan)
    assert "plan of 1 sequence, 600 tokens, 15 ranks, 15 blocks" in text
    assert "tokens of a rank: 40 to 40; mask causal; heads 6" in text
    assert "sequences: 0 whole on a rank, 1 cut over up to 15 ranks" in text
    assert "forward: 435 operations, 225 attends, 210 transfers (210 of kv)" in text
    assert f"backward (keep): {len(plan.backward)} operations" in text
    views = [str(view) for view in plan.views(plan.forward)]
    assert "attend rank 0 q [0] kv [0] heads 0:6" in views
    assert "transfer kv [14] heads 0:6 rank 14 -> 0" in views
    routed = route(plan, uneven)
    spread = [str(view) for view in routed.views(routed.forward)]
    assert any("via lanes 0,1" in view for view in spread) or not (routed.forward.via >= 0).any()
    many = Attend(0, tuple(range(9)), (0,), (0, 1))
    assert "[0,1,2,3,4,5,... 9]" in str(many)


def test_tensors_have_the_numbers_the_columns_use() -> None:
    assert (Q, KV, O, DKV) == (0, 1, 2, 5)


def test_plans_are_changed_by_copy(uneven: Cost) -> None:
    builder = Builder(np.array([8]), 15, 6)
    ring(builder, np.array([0]), np.array([0]), np.arange(15)[None])
    plan = builder.build()
    assert plan.with_(backward_mode="keep").backward_mode == "keep"
    assert plan.backward_mode == ""
