"""The conformance suite: what every system in conf/system owes, whatever it does.

A new yaml there is picked up by itself, and so is a model or a cluster. tests/plans/test_exact.py adds that outputs and
gradients are right; python -m zbench.correctness matrix tries all combinations, of which here are enough to have every
pair.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import chequered, examples
from tests.helpers.shared import made_once
from tests.helpers.strategies import batches, costs
from tests.helpers.variants import SYSTEMS, VARIANTS, Variant
from zbench.correctness.adversarial import KINDS
from zbench.correctness.combinations import GROUPS, Combination, Combinations, choices
from zbench.correctness.cover import pairwise_cover
from zbench.correctness.reference.byte_law import Bytes, step_traffic
from zbench.correctness.reference.judge import charged_bytes, played_fault
from zbench.correctness.reference.step_check import has_whole_step, same_plan, step_faults
from zbench.correctness.strategy_choices import StrategyChoice
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import SEQUENTIAL
from zbench.interfaces.protocols import System
from zbench.plans.plan import TRANSFER, Plan
from zbench.proof.verify import verify_step
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate

every_system = pytest.mark.parametrize("which", SYSTEMS, ids=str)
every_change = pytest.mark.parametrize("which", [one for one in VARIANTS if one.changes], ids=str)


def drawn(
    data: st.DataObject, which: Variant, most: int = 30_000, nodes: int = 4, gpus: int = 8
) -> tuple[Cost, Batch, System]:
    cost = data.draw(costs(nodes, gpus))
    return cost, data.draw(batches(most, 20)), which.make(cost)


@every_system
@examples(6)
@given(st.data())
def test_plans_are_correct_and_a_pure_function_of_the_batch_and_their_step_is_sound(
    which: Variant, data: st.DataObject
) -> None:
    """Neither what was planned before, nor the step's number, nor writing to the batch changes a plan or its step."""
    cost, batch, system = drawn(data, which)
    first = system.plan(batch)
    before = batch.lengths.copy()
    other = data.draw(batches(30_000, 20))
    system.plan(other)
    again = system.plan(Batch(batch.lengths, seed=batch.seed + 1, step=batch.step + 1))
    fresh = which.make(cost).plan(batch)
    assert len(first) == len(again) == len(fresh)
    assert all(same_plan(a, b) and same_plan(a, c) for a, b, c in zip(first, again, fresh, strict=True))
    assert np.array_equal(before, batch.lengths)
    assert_correct(batch, first, cost)
    assert StepEstimate(cost).seconds(first) == StepEstimate(cost).seconds(again) > 0


@pytest.mark.sampled(2)
@every_change
@examples(5)
@given(st.data())
def test_plans_of_other_choices_are_correct(which: Variant, data: st.DataObject) -> None:
    cost, batch, system = drawn(data, which)
    plans = system.plan(batch)
    assert_correct(batch, plans, cost)


def assert_correct(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> None:
    """Plans are right, own every token once and send what is charged."""
    assert isinstance(plans, tuple)
    verify_step(batch, plans, cost)
    assert sum(int(plan.own_lengths.sum()) for plan in plans) == batch.num_tokens
    for plan in plans:
        assert plan.tokens_per_rank.sum() == plan.lengths.sum()
        assert plan.num_ranks == cost.cluster.num_ranks
        assert plan.num_heads == cost.model.num_heads
    assert_bytes_by_law(plans, cost)


@every_system
@examples(3)
@given(st.data())
def test_whole_steps_of_drawn_cases_are_sound(which: Variant, data: st.DataObject) -> None:
    """Fewer and smaller ones than have their plans verified, as a whole step takes many times as long."""
    cost, batch, system = drawn(data, which, most=2000, nodes=3, gpus=3)
    assert_sound(batch, system.plan(batch), cost)


def assert_sound(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> None:
    """The whole step that plans become, where there is one, is proven and played; its seconds and memory are possible,
    and attention sends what the law says."""
    if has_whole_step(plans, cost):
        assert played_fault(batch, plans, cost) == ""


def assert_bytes_by_law(plans: tuple[Plan, ...], cost: Cost) -> Bytes:
    """Bytes are charged as by the law, of every NIC and port, in and out; returns those."""
    law = step_traffic(plans, cost)
    if plans[0].pipelines is not None:
        assert not any(getattr(law, name).any() for name in Bytes.__dataclass_fields__)
        return law
    assert law.inside_tx.sum() == law.inside_rx.sum()
    charged = charged_bytes(plans, cost)
    for name in Bytes.__dataclass_fields__:
        assert getattr(charged, name).tolist() == getattr(law, name).tolist()
    assert cost.cluster.num_nodes > 1 or not law.nic_tx.any()
    return law


@every_system
@pytest.mark.parametrize("lengths", [[1], [7919], [3, 5, 7, 11, 13], [60_000, *[1] * 40], [512] * 30], ids=str)
def test_named_batches(which: Variant, lengths: list[int], uneven: Cost) -> None:
    """One token; a prime; shorter than the 15 ranks; one giant; all equal. Whole steps send what the law says."""
    batch = Batch(np.array(lengths), 0, 0)
    plans = which.make(uneven).plan(batch)
    verify_step(batch, plans, uneven)
    law = assert_bytes_by_law(plans, uneven)
    result = Simulated(uneven).step(batch, plans)
    assert list(step_faults(result, uneven)) == []
    if plans[0].pipelines is None:
        assert result.nic_tx_for.get("attention", [0] * len(law.nic_tx)) == law.nic_tx.tolist()
        assert result.nvlink_bytes == law.inside_tx.sum()


@every_system
def test_one_rank_sends_nothing(which: Variant, uneven: Cost) -> None:
    alone = replace(uneven, cluster=replace(uneven.cluster, num_nodes=1, gpus_per_node=1, nics_per_node=1))
    batch = Batch(np.array([100, 7, 31]), 0, 0)
    plans = which.make(alone).plan(batch)
    verify_step(batch, plans, alone)
    for plan in plans:
        assert not (plan.forward.kind == TRANSFER).any()
        assert not (plan.backward.kind == TRANSFER).any()
    result = Simulated(alone).step(batch, plans)
    assert result.communication_seconds == [0.0]
    assert result.nic_tx_bytes == [0]


@every_system
@examples(5)
@given(st.data())
def test_a_system_that_gains_a_faster_network_is_no_slower(which: Variant, data: st.DataObject) -> None:
    """The same plans on a cluster whose links have no latency and a hundred times the rate.

    Not exact: an earlier message can take a link from a more urgent one (Graham's anomaly).
    """
    cost, batch, system = drawn(data, which, most=3000, nodes=3, gpus=4)
    plans = system.plan(batch)
    cluster = cost.cluster
    faster = replace(
        cluster,
        nic_latency=0.0,
        nvlink_latency=0.0,
        nic_bandwidth=100 * cluster.nic_bandwidth,
        nvlink_bandwidth=100 * cluster.nvlink_bandwidth,
    )
    slow = StepEstimate(cost).seconds(plans)
    assert StepEstimate(replace(cost, cluster=faster)).seconds(plans) <= 1.02 * slow


def test_the_suite_found_the_systems() -> None:
    assert {"ring", "allgather", "ulysses"} <= {system.path.stem for system in SYSTEMS}


Conf = tuple[Combinations, list[Combination], dict[Combination, StrategyChoice]]


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Conf:
    """What conf/ has, combinations of it that have every pair of a system, a model and a cluster, and the choices of
    recompute=, memory= and experts' GPUs that they are tried with.

    Clusters have at most three nodes here: the command has them whole, and property tests draw some of four. Of
    combinations with experts on several GPUs make test tries one in eight with its schedule of experts, which takes up
    to fifteen times as long, and the others with the usual one.
    """

    def made() -> Conf:
        combinations = Combinations(tokens_per_gpu=1024, most_nodes=3)
        systems, models, clusters = map(choices, GROUPS)
        cover = pairwise_cover(systems, models, clusters, combinations.can_be)
        chosen = combinations.choices(cover)
        scheduled = [combination for combination, choice in chosen.items() if choice.schedule]
        tried = {combination for (combination,) in chequered(scheduled, offset=0, one_in=8)}
        usual = {one: replace(chosen[one], schedule=SEQUENTIAL) for one in scheduled if one not in tried}
        return combinations, cover, chosen | usual

    return made_once(tmp_path_factory, "conf", made)


@pytest.mark.parametrize("name", choices("system"))
def test_every_model_and_every_cluster_of_conf(name: str, conf: Conf) -> None:
    """One kind of batches with one combination, another with the next: the command takes all. So with choices of
    recompute=, memory= and where experts are, of which every system has each."""
    combinations, cover, chosen = conf
    mine = [one for one in cover if one.system == name]
    kinds = [KINDS[number % len(KINDS)] for number in range(len(mine))]
    found = [combinations.check(one, [kind], chosen.get(one)) for one, kind in zip(mine, kinds, strict=True)]
    if all(one.skipped for one in found):
        pytest.skip(f"{name} needs {found[0].skipped}, of the extra `peers`")
    assert {f"{one.combination}, {one.choice}": one.failures for one in found if one.failures} == {}
    had = [one.choice for one in found if one.choice]
    assert {one.recompute for one in had} == set(choices("recompute"))
    assert {one.memory for one in had} == set(choices("memory"))
    assert {one.experts for one in had} == {"", "home", "whole", "cut"}
    assert sum(one.fitting for one in found) > 0
