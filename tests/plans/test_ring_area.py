"""The work of a ring's pairs at once against walking them one by one (which tests/plans/test_area.py holds to
counting)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zbench.plans.pairs
from zbench.describe.mask import Mask
from zbench.plans.area import Work
from zbench.plans.build import Builder
from zbench.plans.pairs import Pairs, rings
from zbench.plans.patterns import local, ulysses_ring
from zbench.plans.plan import Blocks, Plan
from zbench.plans.ring_area import rectangles
from zbench.plans.walk import gather_pieces


def both(plan: Plan) -> tuple[Pairs, Pairs]:
    """(with rings of two lists and more counted at once, with every pair walked)."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for least in (2, 10**9):
            patch.setattr(zbench.plans.pairs, "LEAST", least)
            found.append(Pairs.of(plan, plan.forward, plan.backward))
    return found[0], found[1]


def equal(one: Work, other: Work) -> bool:
    return all((getattr(one, name) == getattr(other, name)).all() for name in Work.__dataclass_fields__)


@st.composite
def ring_plans(draw: st.DrawFn) -> Plan:
    """Groups of zigzag rings, with all-to-all inside of them or not, over which local sequences may lie."""
    groups, rows, cols = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 2))
    most = draw(st.sampled_from((2, 20, 300, 3000)))
    tokens = np.array(draw(st.lists(st.integers(1, most), min_size=groups, max_size=12)), np.int64)
    builder = Builder(tokens, groups * rows * cols, 4, Mask(draw(st.booleans())))
    cut = np.array(draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens))))
    seqs = np.flatnonzero(cut)
    ulysses_ring(builder, seqs, seqs % groups, np.arange(builder.num_ranks).reshape(groups, rows, cols))
    whole = np.flatnonzero(~cut)
    local(builder, whole, whole % builder.num_ranks)
    return builder.build()


@given(ring_plans())
def test_a_ring_at_once_is_the_walk(plan: Plan) -> None:
    at_once, walked = both(plan)
    assert np.array_equal(at_once.offsets, walked.offsets)
    assert np.array_equal(at_once.kv, walked.kv)
    assert equal(at_once.work, walked.work)


def test_chunks_of_several_tiles_and_rows_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of 1 to 100,000 tokens on 24 ranks: the longest rows of tiles differ from pair to pair."""
    monkeypatch.setattr("zbench.plans.ring_area.CELLS", 100)
    tokens = np.array([100_000, 3, 47, 48, 49, 9_000, 12_345, 1, 777], np.int64)
    builder = Builder(tokens, 24, 1)
    ulysses_ring(builder, np.arange(9), np.zeros(9, np.int64), np.arange(24).reshape(1, 24, 1))
    at_once, walked = both(builder.build())
    assert equal(at_once.work, walked.work)
    assert walked.work.longest.max() > 30


def ring_of(blocks: Blocks, count: int) -> object:
    """The rectangles of lists 0..count - 1 of one block each."""
    members, pieces = np.arange(count), blocks.pieces
    lists = gather_pieces(np.ones(count, bool), np.arange(count + 1), members, pieces.offsets, pieces.items)
    return rectangles(members, lists, blocks.seq, blocks.stop - blocks.start, True)


def test_only_sequences_that_go_up_and_then_down_are_a_ring() -> None:
    def laid(order: list[int]) -> Blocks:
        at = np.arange(len(order), dtype=np.int64)
        return Blocks(0 * at, at, at + 1, np.array(order, np.int64), np.arange(3))

    assert ring_of(laid([0, 1, 2, 2, 1, 0]), 3) is not None
    assert ring_of(laid([0, 2, 1]), 3) is not None
    assert ring_of(laid([1, 0, 2]), 3) is None
    assert ring_of(laid([2, 1, 0, 1]), 3) is None


def test_rings_are_lists_that_all_attend_to_the_same() -> None:
    offsets = np.array([0, 3, 6, 9, 10, 12, 13])
    kv = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4, 5, 5], np.int32)  # 4 attends to 5, which does not to 4
    assert rings(offsets, kv, 2).tolist() == [0, 0, 0, -1, -1, -1]
    assert rings(offsets, kv, 1).tolist() == [0, 0, 0, 3, -1, 5]
    assert rings(offsets, kv, 4).tolist() == [-1] * 6
