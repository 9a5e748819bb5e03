"""The planner inside contracts: always inside, for any lengths and ranks, and never behind the shipped scheduler."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.oracles import A100, MODELS
from tests.helpers.strategies import lengths
from zbench.contracts.bound import ring_sizes
from zbench.contracts.check import check_schedule
from zbench.contracts.contract import AlignedPow2Rings, AnyRings, EqualTokenPermutation, RingContract, WholeOnDP
from zbench.contracts.schedule import ContractError, SampleSchedule, TokenPermutation
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.proof.verify import verify
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.dynamic_cp import DynamicCP
from zbench.systems.in_contract.candidates import candidate_rounds, multiplied, operations, rounds_seconds
from zbench.systems.in_contract.choice import schedule_of_rounds
from zbench.systems.in_contract.laid import plans_of_rings
from zbench.systems.in_contract.planner import InContract, schedule_lengths
from zbench.systems.in_contract.rates import ring_rates
from zbench.systems.torch_cp.balancers import BALANCERS
from zbench.systems.torch_cp.planner import TorchCP


def cost_of(ranks: int, per_node: int) -> Cost:
    cluster = Cluster("c", ranks // per_node, per_node, per_node, 25e9, 0.8, 1.5e-5, 2e11, 0.6, 1e-5, A100)
    return Cost(cluster, MODELS["mha"])


@st.composite
def ring_contracts(draw: st.DrawFn, most: int = 64) -> RingContract:
    kind = draw(st.sampled_from((AlignedPow2Rings, AlignedPow2Rings, AnyRings)))
    ranks = draw(st.integers(2, most))
    limit = draw(st.sampled_from((None, 40, 900, 20_000)))
    return kind(ranks, limit, draw(st.integers(1, min(ranks, 5))), draw(st.integers(1, 4)))


@settings(max_examples=200)
@given(ring_contracts(), lengths(40_000, 40), st.integers(0, 4), st.sampled_from((30.0, 1000.0, 1e9)))
def test_every_candidate_keeps_to_its_contract(
    contract: RingContract, drawn: np.ndarray, per_node: int, room: float
) -> None:
    """Any ranks from 2 to 64, any limit: nothing is lost, doubled, empty or misaligned."""
    divisors = [n for n in range(1, 9) if contract.ranks % n == 0]
    cost = cost_of(contract.ranks, divisors[per_node % len(divisors)])
    if len(drawn) < contract.multiple or drawn.max() > contract.ranks * (contract.max_tokens or 10**9):
        with pytest.raises(ContractError, match=r"sample \d+ has .* tokens?; .* hold|samples?; with a multiple of"):
            schedule_lengths(drawn, contract, cost)
        return
    aligned = isinstance(contract, AlignedPow2Rings)
    rates = ring_rates(drawn, ring_sizes(contract), aligned, cost, "carry")
    cap = max(room, float(drawn.max()) / contract.ranks)
    cap = cap if contract.max_tokens is None else min(cap, float(contract.max_tokens))
    for rounds in candidate_rounds(rates, contract, cap):
        whole = multiplied(rounds, rates, contract, cap)
        if whole is None:
            assert contract.multiple > 1
            continue
        made = schedule_of_rounds(whole, drawn, contract, cost)
        check_schedule(made, contract)
        tokens = [sum(made.lengths[s] for s in group.samples) / group.size for turn in made.groups() for group in turn]
        assert max(tokens) <= cap * (1 + 1e-9) or contract.multiple > 1 or len(drawn) == 1


@settings(max_examples=25)
@given(lengths(60_000, 24), st.sampled_from((2, 4, 6, 8, 12)))
def test_never_behind_the_shipped_scheduler_at_any_of_its_limits(drawn: np.ndarray, ranks: int) -> None:
    cost, batch = cost_of(ranks, min(ranks, 4) if ranks != 6 else 3), Batch(drawn, seed=0, step=0)
    mine = StepEstimate(cost).seconds(InContract(cost).plan(batch))
    for times in (1, 2, 4, 8):
        limit = max(1, times * (batch.num_tokens // ranks))
        theirs = StepEstimate(cost).compared_seconds(batch, DynamicCP(cost, pack_tokens=limit).plan(batch))
        assert mine <= theirs / 0.99


def test_samples_of_equal_seconds_are_balanced_and_a_giant_has_a_node() -> None:
    cost = cost_of(16, 4)
    found = schedule_lengths(np.array([1024] * 64), AlignedPow2Rings(16), cost)
    assert isinstance(found, SampleSchedule)
    assert [len(samples) for samples in found.micro_batches[0]] == [4] * 16
    giant = schedule_lengths(np.array([30_000, *[2000] * 40]), AlignedPow2Rings(16), cost)
    assert isinstance(giant, SampleSchedule)
    held = [rank for rank, samples in enumerate(giant.micro_batches[0]) if 0 in samples]
    assert held == [0, 1, 2, 3]


def test_a_schedule_is_a_function_of_lengths_contract_and_cost() -> None:
    cost, drawn = cost_of(8, 4), np.random.default_rng(0).integers(10, 9000, 30)
    for contract in (AlignedPow2Rings(8), AnyRings(8), WholeOnDP(8), EqualTokenPermutation(8)):
        padded = np.append(drawn, -int(drawn.sum()) % 8 + 8)
        first, second = (schedule_lengths(padded, contract, cost) for _ in range(2))
        if isinstance(first, TokenPermutation):
            assert isinstance(second, TokenPermutation)
            assert np.array_equal(first.order, second.order)
        else:
            assert first == second


def test_the_estimate_is_near_the_clock() -> None:
    """What decides which candidates are played is within a tenth of what they take."""
    cost, drawn = cost_of(8, 8), np.random.default_rng(1).integers(500, 20_000, 30)
    contract = AlignedPow2Rings(8)
    rates = ring_rates(drawn, ring_sizes(contract), True, cost, "carry")
    for rounds in candidate_rounds(rates, contract, 1e9):
        plans = plans_of_rings(schedule_of_rounds(rounds, drawn, contract, cost), cost)
        layers = StepEstimate(cost).seconds(plans) - cost.optimizer_seconds()
        assert rounds_seconds(rounds, rates) * cost.layers == pytest.approx(layers, rel=0.1)
        count = sum(len(plan.forward) + len(plan.backward) for plan in plans)
        assert count <= operations(rounds) <= 1.25 * count


def test_equal_numbers_for_every_rank_where_asked_for() -> None:
    cost, drawn = cost_of(4, 4), np.array([9000, 1, 1, 1, 1, 1, 1, 1])
    found = schedule_lengths(drawn, WholeOnDP(4, equal_size=True), cost)
    assert isinstance(found, SampleSchedule)
    assert [sum(len(lists[rank]) for lists in found.micro_batches) for rank in range(4)] == [2] * 4
    free = schedule_lengths(drawn, WholeOnDP(4), cost)
    assert isinstance(free, SampleSchedule)
    assert [0] in [list(samples) for samples in free.micro_batches[0]]


def test_limits_of_packs_make_micro_batches() -> None:
    cost, drawn = cost_of(4, 4), np.array([500] * 16)
    for contract in (WholeOnDP(4, max_tokens=1000), AlignedPow2Rings(4, max_tokens=1000)):
        found = schedule_lengths(drawn, contract, cost)
        assert isinstance(found, SampleSchedule)
        assert len(found.micro_batches) == 2


def test_a_permutation_balances_attention_and_tokens() -> None:
    cost, drawn = cost_of(4, 4), np.array([8192, 4096, 100, 4, 3992])
    found = schedule_lengths(drawn, EqualTokenPermutation(4), cost)
    assert isinstance(found, TokenPermutation)
    seen = np.concatenate([np.arange(length) + 1 for length in drawn])
    area = [int(seen[found.owned(rank)].sum()) for rank in range(4)]
    assert max(area) <= 1.02 * min(area)


@settings(max_examples=15)
@given(lengths(30_000, 20), st.sampled_from((1, 2, 4, 8)))
def test_groups_of_permutations_are_no_slower_than_any_balancer_of_pytorch(drawn: np.ndarray, degree: int) -> None:
    cost, batch = cost_of(8, 4), Batch(drawn, seed=0, step=0)
    plans = InContract(cost, contract="equal_token_permutation", degree=degree).plan(batch)
    for plan in plans:
        verify(plan, cost, memory=False)
        assert plan.backward_mode == "regather"
    seconds = StepEstimate(cost).seconds(plans)
    for balancer in BALANCERS:
        theirs = StepEstimate(cost).compared_seconds(batch, TorchCP(cost, balancer, degree).plan(batch))
        assert seconds <= theirs * (1 + 1e-9)


@pytest.mark.parametrize(
    ("lengths", "contract", "told"),
    [
        ([10, 900], AlignedPow2Rings(8, max_tokens=100), "sample 1 has 900 tokens; 8 ranks of at most 100"),
        ([10], AnyRings(8, multiple=2), "the batch has 1 sample; with a multiple of 2 micro-batches"),
        ([10] * 7, WholeOnDP(8), "the batch has 7 samples; 8 data-parallel ranks with 1 micro-batch take at least 8"),
        ([10] * 9, WholeOnDP(8, equal_size=True), "9 samples, of which 8 data-parallel ranks cannot have as many"),
        ([10] * 8 + [99], WholeOnDP(8, max_tokens=50), "sample 8 has 99 tokens; a pack has at most 50"),
        ([50] * 9, WholeOnDP(8, max_tokens=50), "no schedule was found that gives 8 data-parallel ranks a sample"),
        ([10, 7], EqualTokenPermutation(8), "17 tokens, which 8 ranks cannot share evenly; pad it"),
        ([10], AlignedPow2Rings(4), "the contract is for 4 ranks; the cluster c has 8"),
    ],
)
def test_what_a_contract_cannot_hold_is_a_sentence(
    lengths: list[int], contract: AlignedPow2Rings | AnyRings | WholeOnDP | EqualTokenPermutation, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        schedule_lengths(np.array(lengths), contract, cost_of(8, 4))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"contract": "rings"}, "system.contract is 'rings'; it takes one of aligned_pow2_rings"),
        ({"max_tokens": 0}, "system.max_tokens is 0"),
        ({"least_degree": 9}, "system.least_degree is 9"),
        ({"degree": 3}, "system.degree is 3; it takes a divisor of the 8 ranks"),
        ({"received_kv": "again"}, "system.received_kv is 'again'"),
        ({"equal_size": "yes"}, "system.equal_size is 'yes'"),
    ],
)
def test_keys_that_cannot_be_are_named(keys: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(InContract(cost_of(8, 4)), **keys)


def test_where_the_fastest_does_not_fit_memory_it_is_not_the_slowest_that_does() -> None:
    """A ring inside a node has no room for the long sample; one of twice as many ranks is taken, not all of them."""
    cost = cost_of(16, 4)
    device = replace(A100, memory_bytes=1.26e10)
    cost = Cost(replace(cost.cluster, device=device), replace(cost.model, num_layers=8))
    batch = Batch(np.array([60_000, *[3000] * 12]), seed=0, step=0)
    found = StepEstimate(cost).compared_seconds(batch, InContract(cost).plan(batch))
    assert found < inf
    for limit in (2000, 4000, 8000, 16_000):
        theirs = StepEstimate(cost).compared_seconds(batch, DynamicCP(cost, pack_tokens=limit).plan(batch))
        assert found <= theirs / 0.99
