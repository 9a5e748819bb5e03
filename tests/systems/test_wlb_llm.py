"""WLB-LLM: packs of equal work, the way each is cut, and how near the best both are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import H100, assignments, batches, small
from zbench.cost.cost import Cost
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.batch import Batch
from zbench.plans.area import work
from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather
from zbench.plans.plan import Ints
from zbench.proof.verify import verify_step
from zbench.simulator.estimate.step import StepEstimate, layer_seconds
from zbench.systems.common.bins import bins
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.wlb_llm.planner import WLBLLM, capacity, context_degrees, linear_seconds, work_seconds
from zbench.systems.wlb_llm.shard import attend_seconds, mixed, shard_per_document, shard_per_sequence


def roomy(cost: Cost) -> Cost:
    return replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=1e15)))


def test_groups_divide_nodes_or_are_made_of_them() -> None:
    assert context_degrees(small(4, 6)) == [1, 2, 3, 6, 12, 24]
    assert context_degrees(small(1, 1)) == [1]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12), st.integers(1, 3), st.sampled_from([2, 3, 4]))
def test_pieces_are_each_token_once_and_balanced(tokens: list[int], packs: int, degree: int) -> None:
    lengths = np.array(tokens)
    pack = np.arange(len(lengths)) % packs
    document, sequence = shard_per_document(lengths, pack, degree), shard_per_sequence(lengths, pack, degree)
    first = np.arange(packs) % 2 == 0
    for pieces in (document, sequence, mixed(document, sequence, pack, first)):
        held = np.zeros((len(lengths), lengths.max()), np.int64)
        for seq, start, stop in zip(pieces.seq, pieces.start, pieces.stop, strict=True):
            held[seq, start:stop] += 1
        assert (held == (np.arange(lengths.max()) < lengths[:, None])).all()
        assert (pieces.owner // degree == pack[pieces.seq]).all()
    for number in range(packs):
        _, start, stop, owner = sequence.of(pack, number, degree)
        if len(owner):
            assert np.ptp(np.bincount(owner, stop - start, degree)) <= 2  # a pack's chunks differ by a token


def test_per_sequence_is_the_way_for_many_short_documents_and_per_document_for_a_long_one() -> None:
    """The paper's trade: tiles lost in short pieces, balance lost in whole ones."""
    cost = small(1, 8)
    for lengths, faster in ((np.full(64, 300), "sequence"), (np.array([20_000, *[500] * 8]), "document")):
        pack = 0 * lengths
        document, sequence = (
            attend_seconds(way(lengths, pack, 8), lengths, 1, 8, cost)[0]
            for way in (shard_per_document, shard_per_sequence)
        )
        assert (faster == "document") == (document < sequence)
        (plan,) = WLBLLM(roomy(cost), degree=8).plan(Batch(lengths, 0, 0))
        assert plan.notes["by_document"] == (faster == "document")


@pytest.mark.parametrize("way", [shard_per_document, shard_per_sequence])
def test_attention_seconds_are_the_clock_s(way: type) -> None:
    """Kernels of the slowest rank within 3 % of what the cost model says of the plan, copies apart."""
    for cost in (small(1, 4), small(1, 4, H100, "gqa")):
        for lengths in (np.array([30_000, 500]), np.array([4000, 3000, 2500, 900]), np.full(40, 333)):
            pack = 0 * lengths
            pieces = way(lengths, pack, 4)
            builder = Builder(lengths, 4, cost.model.num_heads)
            all_gather(builder, *pieces.of(pack, 0, 4), np.arange(4).reshape(1, 4))
            plan = builder.build()
            attend, amount = work(plan, plan.forward)
            ones = np.ones(len(attend), np.int64)
            heads, kv_heads = cost.model.num_heads * ones, cost.model.num_kv_heads * ones
            exact = sum(cost.kernel_seconds(amount, heads, kv_heads, back) for back in (False, True)).max()
            assert attend_seconds(pieces, lengths, 1, 4, cost)[0] == pytest.approx(exact, rel=0.03)


def test_predicted_seconds_are_those_of_a_layer() -> None:
    """The slowest pack's, against the clock: within 10 %."""
    ratios = []
    for cost in (small(1, 4), small(2, 4), small(2, 4, H100, "gqa")):
        for batch in batches(8, seed=3):
            (plan,) = WLBLLM(roomy(cost)).plan(batch)
            ratios.append(float(plan.notes["busiest_seconds"]) / layer_seconds(plan, roomy(cost), 3))
    assert min(ratios) > 0.90
    assert max(ratios) < 1.10


def largest(load: np.ndarray, packs: int) -> float:
    every = assignments(len(load), packs)
    return float(np.stack([np.where(every == p, load, 0).sum(axis=1) for p in range(packs)]).max(axis=0).min())


def lengths_to_pack(count: int) -> list[Ints]:
    rng = np.random.default_rng(8)
    alike = [rng.integers(1000, 6000, int(rng.integers(5, 9))) for _ in range(count // 2)]
    return [batch.lengths for batch in batches(count, seed=7)] + alike


def test_packs_have_nearly_the_least_work_there_is() -> None:
    """Up to 8 documents in 4 packs against every assignment: median 0, worst below 5 %."""
    gaps = []
    for cost in (small(1, 4), small(1, 4, H100, "gqa")):
        for lengths in lengths_to_pack(40):
            load = work_seconds(lengths, 1, cost, "regather")
            gaps.append(np.bincount(bins(load, lengths, 4, 1 << 40), load).max() / largest(load, 4) - 1)
    assert np.median(gaps) < 1e-9
    assert max(gaps) < 0.05


def slowest(lengths: Ints, pack: Ints, degree: int, cost: Cost) -> float:
    """The objective: predicted seconds of the slowest pack, each cut in its better way."""
    count = cost.cluster.num_ranks // degree
    both = (way(lengths, pack, degree) for way in (shard_per_document, shard_per_sequence))
    ways = [attend_seconds(pieces, lengths, count, degree, cost) for pieces in both]
    tokens = np.bincount(pack, lengths, count).astype(np.float64)
    seconds = np.minimum(*ways) + linear_seconds(tokens, degree, cost, "regather")
    return float(seconds[tokens > 0].max())


def test_the_whole_choice_is_near_the_best() -> None:
    """Every degree and every assignment of up to 8 documents on 4 ranks: median 0, worst below 3 %."""
    gaps = []
    for cost in (roomy(small(1, 4)), roomy(small(1, 4, H100, "gqa"))):
        for lengths in lengths_to_pack(10):
            found = next(iter(WLBLLM(cost)._plans(lengths, np.arange(len(lengths))))).notes["busiest_seconds"]
            load = work_seconds(lengths, 1, cost, "regather")
            alone = assignments(len(lengths), 4)
            busiest = np.stack([np.where(alone == p, load, 0).sum(axis=1) for p in range(4)]).max(axis=0)
            best = min(slowest(lengths, alone[i], 1, cost) for i in np.argsort(busiest)[:5])
            best = min(best, slowest(lengths, 0 * lengths, 4, cost))
            best = min([best, *(slowest(lengths, pack, 2, cost) for pack in assignments(len(lengths), 2))])
            gaps.append(float(found) / best - 1)
    assert min(gaps) > -1e-9
    assert np.median(gaps) < 1e-9
    assert max(gaps) < 0.03


def test_packs_of_equal_work_gain() -> None:
    cost = roomy(small(1, 4, H100, "gqa"))
    batch = Batch(np.array([24_000, *[1000] * 104]), 0, 0)
    plans = [WLBLLM(cost, degree=1, equal_work_packs=way).plan(batch) for way in (True, False)]
    assert np.ptp(plans[1][0].tokens_per_rank) == 0
    seconds = [StepEstimate(cost).seconds(plan) for plan in plans]
    assert seconds[0] < 0.95 * seconds[1]


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_batch_larger_than_memory_takes_micro_batches(times: int) -> None:
    cost = small(2, 2, memory=16e9)
    batch = Batch(np.full(32 * times, fitting_tokens(cost) // 8), 0, 0)
    plans = WLBLLM(cost).plan(batch)
    verify_step(batch, plans, cost)
    assert times <= len(plans) <= 2 * times + 1
    assert StepEstimate(cost).fits(batch, plans)


@given(st.lists(st.integers(1, 15_000), min_size=1, max_size=10), st.floats(14e9, 24e9))
def test_memory_is_kept_wherever_some_degree_holds_every_document(tokens: list[int], memory: float) -> None:
    """If every document fits alone, at one degree or another, no plan is over."""
    cost, wide = small(1, 4, memory=memory), small(1, 4, memory=1e15)
    batch = Batch(np.array(tokens), 0, 0)
    longest = Batch(np.array([max(tokens)]), 0, 0)
    least = min(
        int(peak_bytes(WLBLLM(wide, degree=degree).plan(longest), cost).max()) for degree in context_degrees(cost)
    )
    plans = WLBLLM(cost).plan(batch)
    verify_step(batch, plans)
    assert (int(peak_bytes(plans, cost).max()) <= memory) == (least <= memory)


def test_capacity_is_what_memory_holds() -> None:
    """A pack of that many tokens fits, and one of 5 % more does not."""
    for degree, mode in ((1, "regather"), (4, "regather"), (4, "keep")):
        cost = small(1, 4, memory=16e9)
        most = capacity(degree, cost, mode)
        for times, fits in ((0.99, True), (1.05, False)):
            batch = Batch(np.full(1, int(times * most)), 0, 0)
            plans = WLBLLM(cost, degree=degree, received_kv=mode).plan(batch)
            assert (not StepEstimate(cost).fits(batch, plans)) != fits


def test_an_impossible_batch_is_a_verdict() -> None:
    for memory in (8e9, 1e9):
        cost = small(2, 2, memory=memory)
        batch = Batch(np.array([10 * 4 * fitting_tokens(cost), 300, 20]), 0, 0)
        plans = WLBLLM(cost).plan(batch)
        verify_step(batch, plans)
        assert not StepEstimate(cost).fits(batch, plans)


@pytest.mark.parametrize(
    ("key", "value"),
    [("degree", 3), ("degree", True), ("equal_work_packs", 1), ("shard", "token"), ("received_kv", "send")],
)
def test_what_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"system.{key} is {value!r}; it takes"):
        WLBLLM(small(1, 4), **{key: value})  # type: ignore[arg-type]


def test_the_way_of_cutting_is_the_faster_one_on_the_clock() -> None:
    """One group of 4 ranks, both ways built and played: median 0, worst below 2 %; and each way wins somewhere."""
    gaps, ways = [], set()
    for cost in (roomy(small(1, 4)), roomy(small(1, 4, H100, "gqa"))):
        for lengths in lengths_to_pack(10):
            batch = Batch(lengths, 0, 0)
            plans = [
                WLBLLM(cost, degree=4, shard=shard).plan(batch)[0] for shard in ("adaptive", "sequence", "document")
            ]
            seconds = [layer_seconds(plan, cost, 3) for plan in plans]
            gaps.append(seconds[0] / min(seconds) - 1)
            ways.add(plans[0].notes["by_document"])
    assert ways == {0.0, 1.0}
    assert np.median(gaps) < 1e-9
    assert max(gaps) < 0.02
