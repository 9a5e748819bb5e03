"""FlexSP's baseline as its public code packs it: cases by hand, and what holds for any lengths."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.anchors.flexsp import GPT_7B
from zbench.anchors.presets import cluster
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import Ints, Plan
from zbench.proof.verify import OutOfMemory, verify_step
from zbench.systems.flexsp.cost import Objective
from zbench.systems.flexsp.published import FILL, published_groups
from zbench.systems.flexsp_batch_ada import FlexSPBatchAda
from zbench.systems.local_packing import best_fit

COST = Cost(cluster("a100_8x8"), GPT_7B)
NONE = Collectives.of(replace(COST, model=replace(GPT_7B, sharding="zero1")))


def of(num_ranks: int, tokens: int) -> Objective:
    """Degrees 1, 2 ... num_ranks with room for `tokens` a rank; a group's seconds are tokens / degree and 1 besides."""
    degree = 2 ** np.arange(num_ranks.bit_length())
    none = np.zeros(len(degree))
    return Objective(degree, none, 1.0 / degree, none + 1, tokens * degree, num_ranks, NONE)


def groups(lengths: list[int], index: int, objective: Objective) -> list[list[list[int]]]:
    """Micro-batches of groups of sequences."""
    found = published_groups(np.array(lengths), index, objective)
    number = objective.num_ranks // int(objective.degree[index])
    return [[part.sequences[part.found.packed.group == g].tolist() for g in range(number)] for part in found]


def test_the_last_micro_batch_s_groups_take_sequences_of_those_opened_last() -> None:
    """4 ranks in groups of 2 with room for 20 tokens, filled to 18. Best fit puts 10 and 8, 9 and 9, 5 and 3 together;
    the fourth group takes the first of the third one's, in the batch's order."""
    assert groups([3, 10, 8, 9, 9, 5], 1, of(4, 10)) == [[[1, 2], [3, 4]], [[5], [0]]]


def test_seconds_are_those_of_the_slowest_group() -> None:
    first, second = published_groups(np.array([3, 10, 8, 9, 9, 5]), 1, of(4, 10))
    assert (first.found.packed.seconds, second.found.packed.seconds) == (18 / 2 + 1, 5 / 2 + 1)


@pytest.mark.parametrize(("index", "last"), [(4, [[4, 5], [2, 3]]), (3, [[3, 4, 5], [2]])], ids=["16", "8"])
def test_groups_of_16_even_the_tokens_of_the_last_micro_batch(index: int, last: list) -> None:
    """Two groups with room for 160 tokens, filled to 144; 130 tokens are left for the last micro-batch. First its
    second group takes 60; of degree 16 then also 40, as it has less than the mean of 65: 100 and 30 tokens."""
    degree = 2**index
    objective = of(2 * degree, 160 // degree)
    assert groups([144, 144, 60, 40, 20, 10], index, objective) == [[[0], [1]], last]


def test_a_longer_sequence_than_nine_tenths_makes_every_group_as_large() -> None:
    """20 tokens are room enough, 18 are not what a group is filled to once a sequence has 20."""
    assert groups([12, 20, 8], 1, of(4, 10)) == [[[1], [0, 2]]]


def test_fewer_sequences_than_groups_leave_groups_idle() -> None:
    assert groups([5, 7], 0, of(4, 10)) == [[[1], [0], [], []]]


@given(st.lists(st.integers(1, 80), min_size=1, max_size=60), st.integers(0, 5))
def test_every_sequence_has_one_group_within_its_room(lengths: list[int], index: int) -> None:
    objective = of(32, 80)
    room = int(objective.capacity[index])
    parts = groups(lengths, index, objective)
    assert sorted(seq for part in parts for group in part for seq in group) == list(range(len(lengths)))
    tokens = np.array([sum(lengths[seq] for seq in group) for part in parts for group in part])
    assert tokens.max() <= max(int(FILL * room), *lengths)
    assert len(parts) == -(-_packs(np.array(lengths), room) // (32 // int(objective.degree[index])))
    used = (tokens > 0).sum()
    assert used == min(len(tokens), len(lengths))


def _packs(lengths: Ints, room: int) -> int:
    return int(best_fit(lengths, max(int(FILL * room), int(lengths.max()))).max()) + 1


def test_the_degree_with_the_least_seconds_is_taken_and_no_fewer_micro_batches_than_best_fit_needs() -> None:
    rng = np.random.default_rng(0)
    for seed in range(3):
        lengths = np.minimum(rng.lognormal(6.1, 1.4, 300).astype(np.int64) + 1, 50_000)
        batch = Batch(lengths, 0, seed)
        plans = {degree: FlexSPBatchAda(COST, degree, "published").plan(batch) for degree in (1, 2, 4, 8, 16, 32, 64)}
        chosen = FlexSPBatchAda(COST, None, "published").plan(batch)
        seconds = [_objective(found) for found in plans.values() if _fits(batch, found)]
        assert 1 < len(seconds) < len(plans)
        assert _objective(chosen) == pytest.approx(min(seconds))
        verify_step(batch, chosen, COST)


def _objective(plans: tuple[Plan, ...]) -> float:
    charged = Collectives.of(COST).micro_batch_seconds
    return sum(charged(float(plan.notes["objective_seconds"])) for plan in plans)


def _fits(batch: Batch, plans: tuple[Plan, ...]) -> bool:
    try:
        verify_step(batch, plans, COST)
    except OutOfMemory:
        return False
    return True


def test_published_packs_are_slower_than_those_of_the_search() -> None:
    """By FlexSP's objective, over some batches together: the one looks at tokens, the other at seconds."""
    total = {"published": 0.0, "search": 0.0}
    rng = np.random.default_rng(1)
    for seed in range(4):
        batch = Batch(np.minimum(rng.lognormal(6.1, 1.4, 300).astype(np.int64) + 1, 50_000), 0, seed)
        for packing in total:
            plans = FlexSPBatchAda(COST, packing=packing).plan(batch)  # type: ignore[arg-type]
            total[packing] += sum(float(plan.notes["objective_seconds"]) for plan in plans)
    assert total["search"] < total["published"]


def test_packing_that_is_neither_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"system\.packing is 'best'; it takes search or published"):
        FlexSPBatchAda(COST, packing="best")  # type: ignore[arg-type]
