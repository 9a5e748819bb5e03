"""FCP: blocks of one size, balanced, in rounds; the reshuffle; the choice of the block size."""

import numpy as np
import pytest

from tests.helpers.oracles import A100, H100, assignments, batches, small
from zbench.describe.batch import Batch
from zbench.describe.model import KV, Q
from zbench.plans.plan import Ints
from zbench.simulator.estimate.step import layer_seconds
from zbench.systems.fcp import FCP, SIZES, SequenceBlocks, block_seconds, neighbours


def test_blocks_are_of_one_size_but_the_last() -> None:
    blocks = SequenceBlocks.cut(np.array([10, 4, 1]), 4, small(1, 4))
    assert blocks.seq.tolist() == [0, 0, 0, 1, 2]
    assert blocks.start.tolist() == [0, 4, 8, 0, 0]
    assert blocks.stop.tolist() == [4, 8, 10, 4, 1]
    assert blocks.length.tolist() == [10, 10, 10, 4, 1]


def test_the_attention_of_blocks_adds_up_to_that_of_the_sequence() -> None:
    cost = small(1, 4)
    whole = sum(cost.whole_seconds(np.array([16_384]), back) for back in (False, True))
    found = SequenceBlocks.cut(np.array([16_384]), 2048, cost).seconds
    assert found.sum() == pytest.approx(float(np.sum(whole)))
    assert (np.diff(found) > 0).all()  # later blocks see more


@pytest.mark.parametrize("tokens", [1024, 4096])
def test_a_given_size_is_used(tokens: int) -> None:
    (plan,) = FCP(small(1, 4), block_tokens=tokens, reshuffle=False).plan(Batch(np.array([20_000, 300]), 0, 0))
    sizes = plan.blocks.tokens
    assert sizes.max() == tokens
    assert (sizes[sizes > 300] == tokens).sum() == 20_000 // tokens


def test_no_rank_sends_or_receives_twice_in_a_round() -> None:
    """Transfers of kv in plan order: as many matchings, one after another, as the busiest rank has messages."""
    (plan,) = FCP(small(2, 4), block_tokens=1024, reshuffle=False).plan(Batch(np.array([30_000, 12_000]), 0, 0))
    kv = plan.forward.take(plan.forward.tensor == KV)
    most = max(np.bincount(kv.src).max(), np.bincount(kv.dst).max())
    rounds, busy = 1, (set[int](), set[int]())
    for src, dst in zip(kv.src.tolist(), kv.dst.tolist(), strict=True):
        if src in busy[0] or dst in busy[1]:
            rounds, busy = rounds + 1, (set(), set())
        busy[0].add(src)
        busy[1].add(dst)
    assert rounds <= most


def test_the_reshuffle_balances_tokens() -> None:
    lengths = np.array([16_000, *[700] * 20])
    system = FCP(small(1, 4), block_tokens=2048)
    plan = system.pieces_plan(
        lengths, np.arange(len(lengths)), system.placed(SequenceBlocks.cut(lengths, 2048, system.cost), True), True
    )
    assert np.ptp(plan.tokens_per_rank) <= 2 * system.reshuffle_tolerance
    assert (plan.forward.tensor == Q).any()


def test_neighbours_share_the_longest_sequences() -> None:
    rank = np.array([3, 1, 0, 2])
    assert neighbours(rank, np.array([50, 900, 50, 900]), 4).tolist() == [3, 0, 2, 1]


def best_load(load: Ints, ranks: int) -> float:
    every = assignments(len(load), ranks)
    return float(np.stack([np.where(every == r, load, 0).sum(axis=1) for r in range(ranks)]).max(axis=0).min())


@pytest.mark.parametrize("reshuffle", [False, True])
def test_the_largest_load_is_near_the_best(reshuffle: bool) -> None:
    """Batches of up to 8 blocks on 4 ranks against every assignment: median 0, worst below 5 %."""
    cost, gaps = small(1, 4), []
    for batch in batches(60):
        pieces = FCP(cost, reshuffle=reshuffle).placed(
            SequenceBlocks.cut(batch.lengths, 32_768, cost), reshuffle
        )  # one each
        load = block_seconds(pieces.start, pieces.stop, pieces.stop, cost)
        if not reshuffle:
            load = load + 3 * (cost.linear_seconds(pieces.stop) - cost.linear_seconds(np.ones_like(pieces.stop)))
        gaps.append(np.bincount(pieces.worker, load).max() / best_load(load, 4) - 1)
    assert np.median(gaps) < 1e-9
    assert max(gaps) < 0.05


def test_the_size_is_near_the_fastest() -> None:
    """Against every size, reshuffled or not, built and played: median 0, worst 3 %."""
    gaps = []
    for device in (A100, H100):
        cost = small(2, 4, device)
        for batch in batches(10):
            every = np.arange(len(batch.lengths))
            played = []
            for size in SIZES:
                for way in (True, False):
                    system = FCP(cost)
                    pieces = system.placed(SequenceBlocks.cut(batch.lengths, size, cost), way)
                    plan = system.pieces_plan(batch.lengths, every, pieces, way)
                    played.append(layer_seconds(plan, cost, 3))
            plans = FCP(cost).plan(batch)
            if len(plans) == 1:
                gaps.append(layer_seconds(plans[0], cost, 3) / min(played) - 1)
    assert len(gaps) > 15
    assert np.median(gaps) < 1e-9
    assert max(gaps) < 0.10


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_tokens", 0),
        ("rounds_per_attend", 0),
        ("rounds_per_attend", True),
        ("reshuffle_tolerance", -1),
        ("reshuffle", 1),
    ],
)
def test_what_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"system.{key} is {value!r}; it takes"):
        FCP(small(1, 4), **{key: value})  # type: ignore[arg-type]
