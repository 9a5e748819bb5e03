"""MagiAttention's dispatch: chunks on ranks, the keys that travel, and the stages they come in."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.oracles import assignments, small
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.mask import Mask
from zbench.describe.model import DKV, KV
from zbench.plans.plan import ATTEND, TRANSFER, Ops, Plan
from zbench.proof.verify import verify
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.magi_dispatch.planner import MagiDispatch
from zbench.systems.magi_dispatch.solver import Chunks, chunk_size, least_maximum, longest_first, nearest
from zbench.systems.magi_dispatch.stages import MOST_PARTS, PART, exchange_turns, stages_of

A = [812, 90, 33, 415, 1200, 77, 64, 5, 300, 210, 48, 950]
B = [3000, 20, 20, 20, 700, 701, 699, 40]
C = [9, 9, 9, 9, 9, 9, 30, 1]
# Lengths, ranks, tokens of a chunk, causal, top_p, and the rank of every chunk, as the solvers MIN_HEAP and TOPP_HEAP
# of MagiAttention 2c641357 give it (the latter with empty chunks up to a multiple of the ranks). Areas, both dispatches
# and every rank's remote key ranges agreed on over 3,800 random packs, too, and its optimal solvers on 1,028.
# Kept as examples because no package has their code: `magi-attention` 0.0.1 is an empty one.
MAGI = [
    (A, 4, 200, True, 0.5, "0303102101301222331223", "0303303101301122221221"),
    (A, 4, 200, False, 0.5, "2303030032102012113212", "2121030012010223333321"),
    (
        B,
        8,
        100,
        True,
        0.3,
        "4251147654321001234567765432105036326064743761702755",
        "2442100123455432100123455432101557666625777774337666",
    ),
    ([640] * 4, 4, 80, True, 1.0, "33333333222222221111111100000000", "00000000111111112222222233333333"),
    (C, 3, 5, True, 0.6, "11101222000012201", "12022221211000101"),
]
lengths_of_packs = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def batch_of(*lengths: int) -> Batch:
    return Batch(np.array(lengths, np.int64), seed=0, step=0)


def visible(lengths: list[int], causal: bool) -> np.ndarray:
    """bool [total, total]: which keys of a pack every query sees."""
    seq = np.repeat(np.arange(len(lengths)), lengths)
    mask = seq[:, None] == seq
    return np.tril(mask) if causal else mask


@pytest.mark.parametrize(("lengths", "ranks", "size", "causal", "top_p", "longest", "topp"), MAGI)
def test_the_dispatch_is_magi_attention_s(
    lengths: list[int], ranks: int, size: int, causal: bool, top_p: float, longest: str, topp: str
) -> None:
    chunks = Chunks.cut(np.array(lengths), size, causal)
    assert longest_first(chunks.area, ranks).tolist() == [int(rank) for rank in longest]
    assert nearest(chunks, ranks, top_p).tolist() == [int(rank) for rank in topp]


@given(lengths_of_packs, st.integers(1, 30), st.booleans())
def test_areas_are_the_mask_s(lengths: list[int], size: int, causal: bool) -> None:
    chunks, pairs = Chunks.cut(np.array(lengths), size, causal), visible(lengths, causal).sum(axis=1)
    assert chunks.area.tolist() == [pairs[begin : begin + size].sum() for begin in range(0, len(pairs), size)]
    assert (chunks.stop - chunks.start).sum() == sum(lengths)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 9))
def test_longest_first_is_the_rule_step_by_step(area: list[int], ranks: int) -> None:
    load, count, want = [0] * ranks, [0] * ranks, [0] * len(area)
    for chunk in sorted(range(len(area)), key=lambda one: (-area[one], -one)):
        open_ranks = [rank for rank in range(ranks) if count[rank] < -(-len(area) // ranks)]
        want[chunk] = least = min(open_ranks, key=lambda rank: (load[rank], rank))
        load[least] += area[chunk]
        count[least] += 1
    assert longest_first(np.array(area), ranks).tolist() == want


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 3), st.booleans())
@settings(max_examples=60)
def test_the_searches_find_the_least_maximum(area: list[int], ranks: int, equal: bool) -> None:
    """Against every way to place up to 7 chunks."""
    most = -(-len(area) // ranks) if equal else len(area)
    every = assignments(len(area), ranks)
    held = np.stack([every == rank for rank in range(ranks)])
    allowed = (held.sum(axis=2) <= most).all(axis=0)
    best = (held * np.array(area)).sum(axis=2).max(axis=0)[allowed].min()
    found = least_maximum(np.array(area), ranks, equal)
    assert np.bincount(found, area).max() == best
    assert np.bincount(found).max() <= most


def test_a_search_that_is_too_large_ends_no_worse_than_longest_first() -> None:
    area = np.random.default_rng(0).integers(1, 1 << 40, 128)
    largest = [np.bincount(ranks, area).max() for ranks in (longest_first(area, 16), least_maximum(area, 16, True))]
    assert largest[1] <= largest[0]


@given(lengths_of_packs, st.integers(1, 30), st.integers(1, 5), st.booleans())
def test_the_nearest_of_all_ranks_shares_most_keys(lengths: list[int], size: int, ranks: int, causal: bool) -> None:
    """With top_p 1, against the mask: keys of the chunk among those of each of a rank's chunks."""
    chunks, mask = Chunks.cut(np.array(lengths), size, causal), visible(lengths, causal)
    keys = np.stack([mask[begin : begin + size].any(axis=0) for begin in range(0, len(mask), size)]).astype(int)
    shared, rank = keys @ keys.T, np.full(len(keys), -1)
    for chunk in np.argsort(-chunks.area, kind="stable"):
        load = [(chunks.area[rank == one].sum(), one) for one in range(ranks)]
        room = [pair for pair in sorted(load) if (rank == pair[1]).sum() < -(-len(keys) // ranks)]
        rank[chunk] = max(room, key=lambda pair: shared[chunk, rank == pair[1]].sum())[1]
    assert nearest(chunks, ranks, 1.0).tolist() == rank.tolist()


def test_chunks_are_as_large_as_the_rule_says() -> None:
    """An eighth of a rank's tokens, rounded up; a user's size only where it is smaller."""
    assert chunk_size(65_536, 8, 8, None) == 1024
    assert chunk_size(65_536, 8, 8, 2048) == 1024
    assert chunk_size(65_536, 8, 8, 512) == 512
    assert chunk_size(65_536, 8, 4, 2048) == 2048
    assert chunk_size(3, 4, 8, None) == 1


def test_ranks_have_about_as_many_chunks_each(cost: Cost) -> None:
    for algorithm in ("lpt", "backtracking", "topp"):
        (plan,) = MagiDispatch(cost, algorithm=algorithm).plan(batch_of(700, 60, 17, 247))  # type: ignore[arg-type]
        assert plan.tokens_per_rank.tolist() == [256] * 4
    (plan,) = MagiDispatch(cost, algorithm="binary_search").plan(batch_of(700, 60, 17, 247))
    assert plan.tokens_per_rank.max() > 256


def tokens_of(plan: Plan, ops: Ops, op: int) -> list[tuple[int, int]]:
    """(sequence, position) of every token that a transfer carries."""
    found = []
    for block in plan.lists.items[plan.lists.offsets[ops.blocks[op]] : plan.lists.offsets[ops.blocks[op] + 1]]:
        for piece in np.flatnonzero(plan.blocks.block == block):
            seq = int(plan.blocks.seq[piece])
            found += [(seq, at) for at in range(int(plan.blocks.start[piece]), int(plan.blocks.stop[piece]))]
    return found


@given(lengths_of_packs, st.integers(0, 3), st.booleans(), st.sampled_from([None, 3, 11]))
@settings(max_examples=40, deadline=None)
def test_every_rank_gets_the_keys_it_needs_and_no_others(
    lengths: list[int], stages: int, causal: bool, chunk: int | None
) -> None:
    """Each token once, from where it lives, by the mask of the rank's queries; its gradient goes the same way back."""
    cost, seqs = small(2, 2), np.arange(len(lengths))
    system = MagiDispatch(cost, overlap_stages=stages, chunk_tokens=chunk)
    plan = system.laid(np.array(lengths), seqs, 0 * seqs, 4, Mask(causal))
    verify(plan, cost)
    home = {}
    for piece, block in enumerate(plan.blocks.block):
        for at in range(int(plan.blocks.start[piece]), int(plan.blocks.stop[piece])):
            home[int(plan.blocks.seq[piece]), at] = int(plan.blocks.home[block])
    names = [(seq, at) for seq, length in enumerate(lengths) for at in range(length)]
    mask, where = visible(lengths, causal), np.array([home[name] for name in names])
    want = sorted(
        (names[key], where[key], rank)
        for rank in range(4)
        for key in np.flatnonzero(mask[where == rank].any(axis=0))
        if where[key] != rank
    )
    for ops, tensor, out in ((plan.forward, KV, True), (plan.backward, KV, True), (plan.backward, DKV, False)):
        sent = [
            (name, int((ops.src if out else ops.dst)[op]), int((ops.dst if out else ops.src)[op]))
            for op in np.flatnonzero((ops.kind == TRANSFER) & (ops.tensor == tensor))
            for name in tokens_of(plan, ops, int(op))
        ]
        assert sorted(sent) == want


@pytest.mark.parametrize("stages", [0, 1, 3])
def test_keys_cross_to_a_node_once(stages: int) -> None:
    """Passed on where they arrive: fewer tokens between nodes, as many to every rank, and gradients summed there."""
    cost, lengths = small(2, 4), [3000, 500, 2000, 90]
    for whole in (False, True):
        system = MagiDispatch(cost, hierarchical=whole, overlap_stages=stages)
        (plan,) = system.plan(batch_of(*lengths))
        verify(plan, cost)
        ops = plan.forward
        crossing = np.flatnonzero((ops.kind == TRANSFER) & (ops.src // 4 != ops.dst // 4))
        tokens = [(name, int(ops.dst[op]) // 4) for op in crossing for name in tokens_of(plan, ops, int(op))]
        assert (len(tokens) == len(set(tokens))) is whole
        assert not whole or (ops.src[crossing] % 4 == ops.dst[crossing] % 4).all()


def naive_stages(tokens: list[int], stages: int) -> list[int]:
    """A list of parts, the rank's own one first, cut in stages; a copy's stage is that of the part of its middle."""
    size = max(PART, -(-sum(tokens) // MOST_PARTS))
    parts = 1 + -(-sum(tokens) // size)
    used = min(stages, parts - 1)
    sizes = [parts // used + (stage < parts % used) for stage in range(used)]
    stage_of = [stage for stage, count in enumerate(sizes, 1) for _ in range(count)]
    return [stage_of[1 + (sum(tokens[:i]) + tokens[i] // 2) // size] for i in range(len(tokens))]


@given(st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=40), min_size=1, max_size=3), st.integers(1, 5))
def test_stages_are_of_equal_parts(received: list[list[int]], stages: int) -> None:
    """Ranks' copies in any order among each other; that of OverlapSolver's UNIFORM of MagiAttention 2c641357."""
    rank = np.repeat(np.arange(len(received)), [len(one) for one in received])
    order = np.random.default_rng(len(rank)).permutation(rank)
    tokens, iterators = np.empty(len(rank), np.int64), [iter(one) for one in received]
    for at, one in enumerate(order):
        tokens[at] = next(iterators[one])
    found = stages_of(tokens, order, stages)
    for number, one in enumerate(received):
        assert found[order == number].tolist() == naive_stages(one, stages)


def homes_of_keys(plan: Plan, ops: Ops, rank: int) -> list[list[int]]:
    """Returns where the keys of each of a rank's attends live, in order."""
    attends = np.flatnonzero((ops.kind == ATTEND) & (ops.src == rank))
    items = [plan.lists.items[slice(*plan.lists.offsets[[kv, kv + 1]])] for kv in ops.kv_blocks[attends]]
    return [sorted(set(plan.blocks.home[blocks].tolist())) for blocks in items]


def test_a_rank_attends_to_its_own_keys_first_in_both_directions(cost: Cost) -> None:
    batch = batch_of(40_000, 3000)
    for stages in (1, 2):
        (plan,) = MagiDispatch(cost, overlap_stages=stages).plan(batch)
        for rank in range(4):
            found = homes_of_keys(plan, plan.forward, rank)
            assert found[0] == [rank]
            assert all(rank not in others for others in found[1:])
            assert len(found) == 1 + stages
            assert homes_of_keys(plan, plan.backward, rank) == found
    (plan,) = MagiDispatch(cost, overlap_stages=0).plan(batch)
    assert all(len(homes_of_keys(plan, plan.forward, rank)) == 1 for rank in range(4))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 6])
def test_everybody_sends_and_receives_once_a_turn(group: int) -> None:
    src, dst = (axis.reshape(-1) for axis in np.indices((group, group)))
    found = exchange_turns(src, dst, group)
    for end in (src, dst):
        assert len(set(zip(found.tolist(), end.tolist(), strict=True))) == group * group


def test_nothing_leaves_a_group() -> None:
    cost = small(2, 4)
    for degree in (1, 2, 4):
        for plan in MagiDispatch(cost, degree=degree).plan(batch_of(9000, 700, 8000, 300, 20, 4000)):
            moves = plan.forward.kind == TRANSFER
            assert (plan.forward.src[moves] // degree == plan.forward.dst[moves] // degree).all()
            assert moves.any() == (degree > 1)


def test_packs_are_as_large_as_memory_allows(cost: Cost) -> None:
    batch = batch_of(*[fitting_tokens(cost) // 2] * 12)
    for degree in (1, 2, 4):
        plans = MagiDispatch(cost, degree=degree).plan(batch)
        assert len(plans) > 1
        assert StepEstimate(cost).fits(batch, plans)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("degree", 3, "system.degree is 3; it takes a divisor of the 4 ranks, or null"),
        ("pack_tokens", 0, "system.pack_tokens is 0; it takes a whole number of at least 1, or null"),
        ("batching", "x", "system.batching is 'x'; it takes arrival, best_fit, balanced"),
        ("chunk_tokens", 0, "system.chunk_tokens is 0; it takes a whole number of at least 1, or null"),
        ("chunks_per_rank", None, "system.chunks_per_rank is None; it takes a whole number of at least 1"),
        ("algorithm", "ilp", "system.algorithm is 'ilp'; it takes lpt, binary_search, backtracking, topp"),
        ("top_p", 1.5, "system.top_p is 1.5; it takes a number from 0 to 1"),
        ("overlap_stages", -1, "system.overlap_stages is -1; it takes a whole number of at least 0"),
        ("hierarchical", "no", "system.hierarchical is 'no'; it takes true or false"),
    ],
)
def test_a_bad_key_is_one_sentence(cost: Cost, key: str, value: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        MagiDispatch(cost, **{key: value})  # type: ignore[arg-type]
