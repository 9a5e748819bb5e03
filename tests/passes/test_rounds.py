"""Lists in rounds: what Transformer Engine's loop sends in which step."""

import numpy as np
import pytest

from zbench.describe.mask import CAUSAL
from zbench.describe.model import DKV, KV
from zbench.passes.reverse import MODES, Mode, reverse
from zbench.passes.rounds import into_rounds
from zbench.plans.build import Builder
from zbench.plans.patterns import ring, ulysses_ring
from zbench.plans.plan import ATTEND, COLUMNS, Ops, Plan
from zbench.proof.verify import verify


def laid(ranks: int, mode: Mode, heads: int = 4) -> Plan:
    builder = Builder(np.array([64 * ranks, 70, 3]), ranks, heads, CAUSAL)
    ring(builder, np.arange(3), np.zeros(3, np.int64), np.arange(ranks).reshape(1, -1))
    return reverse(builder.build(), mode)


def rounds_of(ops: Ops, rank: int) -> list[tuple[list[int], list[int]]]:
    """(tensors that a rank sends, key lists that it attends to) of every round of a list."""
    found: list[tuple[list[int], list[int]]] = [([], [])]
    after_attend = False
    for op in range(len(ops)):
        attend = bool(ops.kind[op] == ATTEND)
        if after_attend and not attend:
            found.append(([], []))
        after_attend = attend
        if ops.src[op] == rank:
            found[-1][attend].append(int(ops.kv_blocks[op] if attend else ops.tensor[op]))
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_the_backward_sends_as_transformer_engine_does(ranks: int) -> None:
    """kv in the first step, kv and the gradient of the block before in each, only a gradient in the last. It sends each
    rank its own keys home with them, which the rank has."""
    plan = into_rounds(laid(ranks, "carry"))
    verify(plan)
    for rank in range(ranks):
        found = rounds_of(plan.backward, rank)
        assert len(found) == ranks
        assert [len(attended) for _, attended in found] == [1] * ranks
        kv_rounds = range(ranks - 2)
        for at, (sent, _) in enumerate(found):
            assert sent == [DKV] * (at > 0) + [KV] * (at in kv_rounds)


@pytest.mark.parametrize("mode", MODES)
def test_only_the_order_changes(mode: Mode) -> None:
    plan = laid(5, mode)
    found = into_rounds(plan)
    assert found.in_rounds
    verify(found)
    for name in ("forward", "backward"):
        old, new = (
            sorted(zip(*(getattr(getattr(one, name), column).tolist() for column in COLUMNS), strict=True))
            for one in (plan, found)
        )
        assert old == new
    assert all((getattr(found.forward, name) == getattr(plan.forward, name)).all() for name in COLUMNS)


def test_plans_of_other_schemes_are_put_in_rounds_too() -> None:
    builder = Builder(np.array([900, 70, 3]), 6, 4, CAUSAL)
    ulysses_ring(builder, np.arange(3), np.zeros(3, np.int64), np.arange(6).reshape(1, 3, 2))
    verify(into_rounds(reverse(builder.build(), "carry")))


def test_a_list_that_uses_what_is_not_there_is_refused() -> None:
    plan = laid(3, "keep")
    wrong = plan.with_(forward=plan.forward.take(np.flatnonzero(plan.forward.kind == ATTEND)))
    with pytest.raises(ValueError, match=r"^forward operation \d+ uses kv of block \d+ on rank \d+, which no earlier"):
        into_rounds(wrong)
