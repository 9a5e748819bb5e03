"""Areas, tiles and segments against counting every (query, key) pair one by one."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.describe.test_mask import seen
from tests.helpers.strategies import cases, masks
from zbench.cost.cost import Cost
from zbench.describe.mask import CAUSAL, FULL, Mask
from zbench.plans.area import HALF, STRIP, TILE, Work, work
from zbench.plans.build import Builder
from zbench.plans.patterns import local, pack_zigzag, ring, sequence_zigzag
from zbench.plans.plan import ATTEND, Blocks, Lists, Ops, Plan

MASKS = st.one_of(st.just(CAUSAL), st.just(FULL), st.builds(Mask, window=st.integers(1, 320)))


@st.composite
def scattered(draw: st.DrawFn) -> Plan:
    """Pieces of a few sequences thrown into blocks at random, random lists of blocks, and attends of any two lists."""
    num_blocks = draw(st.integers(1, 6))
    seq, start, stop, block = [], [], [], []
    lengths = draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    for index, length in enumerate(lengths):
        cuts = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=6))})
        for begin, end in pairwise(cuts):
            seq.append(index), start.append(begin), stop.append(end)
            block.append(draw(st.integers(0, num_blocks - 1)))
    names = sorted(set(block))
    blocks = Blocks(
        *(np.array(column, np.int64) for column in (seq, start, stop, [names.index(b) for b in block])),
        np.zeros(len(names), np.int64),
    )
    row = st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=4, unique=True)
    lists = Lists.of(draw(st.lists(row, min_size=1, max_size=5)))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, len(lists) - 1)] * 2), min_size=1, max_size=6))
    q, kv = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    ops = Ops.attends(np.zeros(len(q), np.int64), (0, 1), q, kv)
    return Plan(
        lengths=np.array(lengths, np.int64),
        sequences=np.arange(len(lengths)),
        num_ranks=1,
        num_heads=1,
        blocks=blocks,
        lists=lists,
        forward=ops,
        backward=Ops.concatenate([]),
        lanes=Lists.of([]),
        mask=draw(MASKS),
    )


def held(plan: Plan, index: int) -> list[int]:
    """The pieces of a list of blocks, in (sequence, start) order."""
    return [p for p in range(len(plan.blocks.seq)) if plan.blocks.block[p] in set(plan.lists[index].tolist())]


def literal(plan: Plan, q_list: int, kv_list: int) -> list[int]:
    """Work by its definition: count the keys every query piece sees token by token, then merge pieces that line up."""
    b = plan.blocks
    keys = {(int(b.seq[p]), t) for p in held(plan, kv_list) for t in range(b.start[p], b.stop[p])}
    segments: list[list] = []  # sequence, queries, keys that all of them see, triangle?
    for piece in held(plan, q_list):
        seq, start, stop = int(b.seq[piece]), int(b.start[piece]), int(b.stop[piece])
        triangle = plan.mask.causal and (seq, start) in keys
        before = sum(1 for s, t in keys if s == seq and (t < start or not plan.mask.causal))
        if not before and not triangle:
            continue
        if segments:
            s, m, n, t = segments[-1]
            if s == seq and t == triangle and before == n + (m if triangle else 0):
                segments[-1][1] += stop - start
                continue
        segments.append([seq, stop - start, before, triangle])
    out = [0] * 10
    for _, m, n, triangle in segments:
        rows = -(-m // TILE)
        ends = [
            n + (min(m, (r + 1) * TILE) if triangle else 0) for r in range(rows)
        ]  # keys stand in one row: n, then m
        tiles = {(r, c) for r in range(rows) for c in range(-(-ends[r] // TILE))}
        longest = max(sum(1 for row, _ in tiles if row == r) for r in range(rows))
        pairs = m * n + (sum(range(m + 1)) if triangle else 0)
        parts = (pairs, len(tiles), m, n + (m if triangle else 0), 1)
        out[:5] = [a + b for a, b in zip(out[:5], parts, strict=True)]
        out[5] = max(out[5], longest)
        out[6] += len({row for row, _ in tiles})
        out[7] += triangle
        last, tokens = sum(1 for row, _ in tiles if row == rows - 1), set(range(m))
        for column, rows_of in ((8, STRIP), (9, HALF)):  # parts of the last row of tiles that no query is in
            parts = [range(first, first + rows_of) for first in range((rows - 1) * TILE, rows * TILE, rows_of)]
            out[column] += last * sum(1 for part in parts if tokens.isdisjoint(part))
    return out


def visible(plan: Plan, q_list: int, kv_list: int) -> int:
    """Visible (query, key) pairs, one by one."""
    b = plan.blocks
    tokens = [
        [(int(b.seq[p]), t) for p in held(plan, index) for t in range(b.start[p], b.stop[p])]
        for index in (q_list, kv_list)
    ]
    rows, columns = (np.array(part) for part in tokens)
    same = rows[:, None, 0] == columns[None, :, 0]
    return int((same & seen(rows[:, 1], columns[:, 1], plan.mask)).sum())


@given(scattered())
def test_work_equals_counting(plan: Plan) -> None:
    attend, found = work(plan, plan.forward)
    assert attend.tolist() == list(range(len(plan.forward)))
    for at, (q, kv) in enumerate(zip(plan.forward.blocks, plan.forward.kv_blocks, strict=True)):
        if not plan.mask.window or plan.mask.window >= plan.lengths.max():
            assert [int(getattr(found, name)[at]) for name in Work.__dataclass_fields__] == literal(plan, q, kv)
        assert found.area[at] == visible(plan, q, kv)


@given(cases(nodes=2, gpus=5, mask=masks()))
def test_the_attends_of_a_plan_cover_every_visible_pair(case: tuple[Cost, Plan]) -> None:
    _, plan = case
    for ops in (plan.forward, plan.backward):
        attend, found = work(plan, ops)
        assert np.array_equal(attend, np.flatnonzero(ops.kind == ATTEND))
        heads = (ops.head_hi - ops.head_lo)[attend]
        assert (found.area * heads).sum() == plan.mask.pairs(plan.lengths) * plan.num_heads
        assert (found.tiles * TILE * TILE >= found.area).all()
        assert ((found.segments == 0) == (found.area == 0)).all()
        assert (found.longest <= found.tiles).all() or plan.mask.window


def test_by_hand() -> None:
    """A local sequence of 300: three rows of tiles. A ring of two over 512: rank 0 has chunks 0 and 3 of 128."""
    whole = Builder(np.array([300]), 1, 1)
    local(whole, np.array([0]), np.array([0]))
    _, one = work(whole.build(), whole.build().forward)
    assert [int(column[0]) for column in vars(one).values()] == [300 * 301 // 2, 6, 300, 300, 1, 3, 3, 1, 3 * 5, 3]

    two = Builder(np.array([512]), 2, 1)
    ring(two, np.array([0]), np.array([0]), np.array([[0, 1]]))
    plan = two.build()
    _, found = work(plan, plan.forward)
    views = [(view.rank, view.kv_blocks) for view in plan.views(plan.forward) if hasattr(view, "rank")]
    by = {view: [int(column[at]) for column in vars(found).values()] for at, view in enumerate(views)}
    diagonal = 256 * 257 // 2
    assert by[0, (0,)] == [
        diagonal,
        3,
        256,
        256,
        1,
        2,
        2,
        1,
        0,
        0,
    ]  # chunk 3 sees chunk 0 and itself: lines up, one triangle
    assert by[1, (1,)] == [diagonal, 3, 256, 256, 1, 2, 2, 1, 0, 0]
    assert by[0, (1,)] == [128 * 256, 2, 128, 256, 1, 2, 1, 0, 0, 0]  # chunk 3 sees chunks 1 and 2
    assert by[1, (0,)] == [256 * 128, 2, 256, 128, 1, 1, 2, 0, 0, 0]  # chunks 1 and 2 see chunk 0


@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(1, 6), st.booleans())
def test_pack_and_sequence_cuts_hold_the_same_area(lengths: list[int], ranks: int, pack: bool) -> None:
    tokens = np.array(lengths)
    seq, start, stop, owner = (pack_zigzag if pack else sequence_zigzag)(tokens, ranks)
    builder = Builder(tokens, ranks, 1)
    base = builder.add_blocks(seq, start, stop, owner, np.arange(ranks))
    everything = builder.add_lists(base + np.arange(ranks)[None])
    builder.add_ops(Ops.attends(np.arange(ranks), (0, 1), base + np.arange(ranks), np.repeat(everything, ranks)))
    plan = builder.build()
    _, found = work(plan, plan.forward)
    assert found.area.sum() == (tokens * (tokens + 1) // 2).sum()
    assert found.queries.sum() == tokens.sum()


def test_areas_of_two_million_tokens_do_not_overflow() -> None:
    builder = Builder(np.array([2**21] * 4), 1, 1)
    local(builder, np.arange(4), np.zeros(4, np.int64))
    plan = builder.build()
    _, found = work(plan, plan.forward)
    assert int(found.area[0]) == 4 * (2**21 * (2**21 + 1) // 2)
