"""Ulysses: queries of one run of ranks after another, in slices."""

import itertools

import numpy as np
import pytest

from tests.helpers.oracles import batches, small
from zbench.describe.model import O
from zbench.plans.plan import ATTEND, Plan
from zbench.systems.ulysses import Ulysses


def operations_of(plan: Plan, rank: int) -> list[tuple[bool, list[int]]]:
    """Whether each of a rank's operations attends or sends outputs, and with which blocks."""
    ops = plan.forward
    mine = ops.take((ops.src == rank) & ((ops.kind == ATTEND) | (ops.tensor == O)))
    return [
        (kind == ATTEND, plan.lists[int(blocks)].tolist()) for kind, blocks in zip(mine.kind, mine.blocks, strict=True)
    ]


@pytest.mark.parametrize("slices", [1, 2, 3, 4])
def test_a_slice_is_sent_behind_its_attend_and_own_queries_come_last(slices: int) -> None:
    """Each of four ranks has as many attends as there are slices."""
    (batch,) = batches(1)
    (plan,) = Ulysses(small(1, 4), slices=slices).plan(batch)
    for rank in range(4):
        own = int(np.flatnonzero(plan.blocks.home == rank)[0])
        order = operations_of(plan, rank)
        attended = [blocks for attends, blocks in order if attends]
        assert len(attended) == slices
        assert own in attended[-1]
        assert sorted(itertools.chain(*attended)) == [0, 1, 2, 3]
        done: set[int] = set()
        for attends, blocks in order:
            if attends:
                done.update(blocks)
            else:
                assert set(blocks) <= done - {own}
        sent = [block for attends, blocks in order if not attends for block in blocks]
        assert sorted([*sent, own]) == [0, 1, 2, 3]


def test_slices_are_refused_where_keys_go_round_a_ring() -> None:
    told = "system.slices is 2; it takes 1 where kv goes round a ring, as here: an all-to-all has 2 of the 4 ranks"
    with pytest.raises(ValueError, match=told):
        Ulysses(small(1, 4), degree=2, slices=2)
    for slices in (0, 5):
        with pytest.raises(ValueError, match=rf"system.slices is {slices}; it takes a whole number from 1 to 4"):
            Ulysses(small(1, 4), slices=slices)


def test_keys_are_repacked_once_for_all_slices() -> None:
    """What slices add is the fixed costs of more kernels: as many bytes are copied between both layouts."""
    cost = small(1, 4)
    (batch,) = batches(1)
    seconds = []
    for slices in (1, 4):
        (plan,) = Ulysses(cost, slices=slices).plan(batch)
        attend = np.flatnonzero(plan.forward.kind == ATTEND)
        seconds.append(cost.repacking_seconds(plan, plan.forward, attend).sum())
    assert seconds[1] == pytest.approx(seconds[0])
