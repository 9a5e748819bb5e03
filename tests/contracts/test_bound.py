"""Bounds of contracts: no schedule inside one is faster on the clock, and they are above the bound of any plan."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.oracles import A100, H100, MODELS
from tests.helpers.strategies import batches, costs, lengths
from zbench.contracts.bound import contract_bound_seconds, ring_sizes
from zbench.contracts.contract import AlignedPow2Rings, AnyRings, EqualTokenPermutation, WholeOnDP
from zbench.cost.bound import bound_seconds
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.dynamic_cp import dynamic_rounds
from zbench.systems.hybrid_dp import side_by_side
from zbench.systems.in_contract.laid import plans_of_whole
from zbench.systems.in_contract.permutation import dealt_tiles, plan_of_permutation
from zbench.systems.in_contract.planner import InContract
from zbench.systems.in_contract.whole import whole_schedules


def cluster(nodes: int, gpus: int = 4, channels: int = 1, nic: float = 25e9) -> Cluster:
    device = A100 if channels == 1 else H100
    return Cluster("c", nodes, gpus, gpus, nic, 0.8, 1.5e-5, 2e11, 0.6, 1e-5, device, nic_channels=channels)


def test_sizes_are_powers_of_two_or_all_ranks() -> None:
    assert ring_sizes(AlignedPow2Rings(12)).tolist() == [1, 2, 4, 8, 12]
    assert ring_sizes(AlignedPow2Rings(8, least=3)).tolist() == [4, 8]
    assert ring_sizes(AnyRings(5, least=2)).tolist() == [2, 3, 4, 5]


@settings(max_examples=60)
@given(st.data())
def test_no_schedule_of_rings_is_faster(data: st.DataObject) -> None:
    """Any cost model, any limit, every way to have received kv again: rounds inside the contract take longer."""
    cost = data.draw(costs(3, 4)) if data.draw(st.booleans()) else Cost(cluster(2, 4, 2), MODELS["mha"])
    batch = Batch(data.draw(lengths(data.draw(st.sampled_from((300, 30_000, 200_000))), 16)), seed=0, step=0)
    ranks, mode = cost.cluster.num_ranks, data.draw(st.sampled_from(("carry", "keep", "regather")))
    rounds = dynamic_rounds(batch.lengths, ranks, data.draw(st.integers(1, 20_000)))
    plans = tuple(side_by_side(batch.lengths, [(g.size, g.seqs) for g in turn], cost, mode) for turn in rounds)
    seconds = StepEstimate(cost).seconds(plans)
    for contract in (AlignedPow2Rings(ranks), AnyRings(ranks)):
        found = contract_bound_seconds(batch, contract, cost, mode)
        assert bound_seconds(batch, cost) <= found <= seconds * (1 + 1e-9)
    assert found <= contract_bound_seconds(batch, AlignedPow2Rings(ranks), cost, mode) * (1 + 1e-9)


@given(st.data())
def test_no_permutation_is_faster(data: st.DataObject) -> None:
    cost, batch = data.draw(costs(3, 4)), data.draw(batches(20_000, 12))
    ranks = cost.cluster.num_ranks
    missing = -batch.num_tokens % ranks
    batch = Batch(np.append(batch.lengths, missing) if missing else batch.lengths, seed=0, step=0)
    order = dealt_tiles(batch.lengths, ranks, data.draw(st.sampled_from((1, 64, 999))), cost)
    plan = plan_of_permutation(order, np.arange(len(batch.lengths)), cost)
    seconds = StepEstimate(cost).seconds((plan,))
    found = contract_bound_seconds(batch, EqualTokenPermutation(ranks), cost)
    assert bound_seconds(batch, cost) <= found <= seconds * (1 + 1e-9)


@given(st.data())
def test_no_groups_of_permutations_are_faster(data: st.DataObject) -> None:
    """The bound holds for groups of any degree, inside nodes and across them, with documents whole on a group."""
    cost, batch = data.draw(costs(3, 4)), data.draw(batches(20_000, 12))
    ranks = cost.cluster.num_ranks
    degree = data.draw(st.sampled_from([n for n in range(1, ranks + 1) if ranks % n == 0]))
    plans = InContract(cost, contract="equal_token_permutation", degree=degree).plan(batch)
    found = contract_bound_seconds(batch, EqualTokenPermutation(degree), cost)
    assert bound_seconds(batch, cost) <= found <= StepEstimate(cost).seconds(plans) * (1 + 1e-9)


@given(st.data())
def test_no_packs_of_whole_samples_are_faster(data: st.DataObject) -> None:
    cost, batch = data.draw(costs(3, 4)), data.draw(batches(20_000, 30))
    degree = data.draw(st.sampled_from([n for n in range(1, 13) if cost.cluster.num_ranks % n == 0]))
    contract = WholeOnDP(cost.cluster.num_ranks // degree)
    found = contract_bound_seconds(batch, contract, cost)
    assert bound_seconds(batch, cost) <= found
    for schedule in whole_schedules(batch.lengths, contract, cost, cap=data.draw(st.integers(100, 40_000))):
        if all(all(lists) for lists in schedule.micro_batches):
            seconds = StepEstimate(cost).seconds(plans_of_whole(schedule, cost))
            assert found <= seconds * (1 + 1e-9)


def test_a_sample_that_only_a_ring_across_nodes_can_hold_waits_for_the_network() -> None:
    """One sample has to be on all ranks: its kv crosses two nodes, twice a layer, and its gradients once, whatever is
    planned; a rank still has what it received last where kv travels back."""
    cost, batch = Cost(cluster(2, nic=5e9), MODELS["mha"]), Batch(np.array([65_536]), seed=0, step=0)
    own = 2 * 65_536 // 16
    sent = 3 * (65_536 - own) - own
    layer = sent * 2 * 4096 * 2 / (5e9 * 0.8)
    expected = 4 * layer + cost.optimizer_seconds()
    assert contract_bound_seconds(batch, AlignedPow2Rings(8), cost) == pytest.approx(expected, rel=1e-12)
    assert expected > 1.5 * bound_seconds(batch, cost)


def test_what_a_micro_batch_cannot_have_does_not_count() -> None:
    """A ring inside a node leaves other ranks, which need a sample of their own: one sample has to be on all."""
    cost = Cost(cluster(2, 8, nic=5e9), MODELS["mha"])
    one, two = (Batch(np.array([65_536, *[64] * more]), seed=0, step=0) for more in (0, 1))
    found = [contract_bound_seconds(batch, AlignedPow2Rings(16), cost) for batch in (one, two)]
    assert found[0] > 1.5 * found[1]


def test_ranks_that_are_not_the_cluster_s_are_a_sentence() -> None:
    cost, batch = Cost(cluster(2), MODELS["mha"]), Batch(np.array([65]), seed=0, step=0)
    with pytest.raises(ValueError, match="the contract is for 4 ranks; the cluster c has 8"):
        contract_bound_seconds(batch, AlignedPow2Rings(4), cost)
    with pytest.raises(ValueError, match="3 data-parallel ranks, which do not divide the 8 of c"):
        contract_bound_seconds(batch, WholeOnDP(3), cost)
    with pytest.raises(ValueError, match="the contract is for 3 ranks; the cluster c has 8"):
        contract_bound_seconds(batch, EqualTokenPermutation(3), cost)


def test_a_document_takes_no_less_than_its_work_on_its_group() -> None:
    """Groups narrower than the cluster leave the others without work on it: twice as narrow, twice as long."""
    cost, batch = Cost(cluster(2, nic=5e9), MODELS["mha"]), Batch(np.array([65_536]), seed=0, step=0)
    two, one = (
        contract_bound_seconds(batch, EqualTokenPermutation(n), cost) - cost.optimizer_seconds() for n in (2, 1)
    )
    assert one == pytest.approx(2 * two, rel=1e-12)
    assert two > 3.9 * (bound_seconds(batch, cost) - cost.optimizer_seconds())
