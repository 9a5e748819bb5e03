"""Routes, ranks and heads that the cluster or the model has not: rejected by a run before anything is charged."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.strategies import SHARP
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.mask import FULL
from zbench.describe.model import KV, Model
from zbench.passes import reverse, route
from zbench.passes.route import narrowed
from zbench.plans.build import Builder
from zbench.plans.patterns import ring, ulysses_ring
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import TRANSFER, Lists, Plan
from zbench.proof.verify import PlanError, verify, verify_step
from zbench.simulated.executor import Simulated

COST = Cost(Cluster("pair", 2, 4, 2, 1e9, 0.8, 0.0, 1e11, 0.6, 0.0, SHARP), Model("small", 2, 16, 4, 2, 4, 32, 64))
BATCH = Batch(np.array([90]), 0, 0)


def routed() -> Plan:
    """A ring over both nodes, its transfers between them spread over both NICs of each."""
    builder = Builder(BATCH.lengths, 8, 4)
    ring(builder, np.array([0]), np.array([0]), np.arange(8)[None])
    return route(reverse(builder.build(), "carry"), COST)


def test_routed_plans_pass_and_charge_the_nics() -> None:
    plan = routed()
    assert (plan.forward.via >= 0).any()
    verify_step(BATCH, (plan,), COST)
    verify_step(BATCH, (narrowed(plan, COST, 1),), COST)
    assert sum(Simulated(COST).step(BATCH, (plan,)).nic_tx_bytes) > 0


@pytest.mark.parametrize(
    ("lanes", "told"),
    [
        ([[]], r"plan\.lanes has nothing in list 0; a list has at least one lane"),
        ([[0, 1], []], r"plan\.lanes has nothing in list 1"),
        ([[0, 1, 0]], r"plan\.lanes has lane 0 twice in list 0; the lanes of a list are different ones"),
        ([[0, 2]], r"plan\.lanes\.items\[1\] is 2; the NICs of a node are 0 to 1"),
        ([[10**9, 0]], r"plan\.lanes\.items\[0\] is 1000000000; the NICs of a node are 0 to 1"),
        ([[0, -1]], r"plan\.lanes\.items\[1\] is -1; the NICs of a node are 0 to 1"),
        ([], r"via is 0; without lanes it takes -1, sent directly"),
    ],
)
def test_lanes(lanes: list[list[int]], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        verify_step(BATCH, (routed().with_(lanes=Lists.of(lanes)),), COST, memory=False)


@pytest.mark.parametrize(
    ("lanes", "told"),
    [([[]], "has nothing in list 0"), ([[1, 1]], "has lane 1 twice"), ([[-1]], "is -1; lanes are numbered from 0")],
)
def test_lanes_of_a_cluster_that_is_not_known(lanes: list[list[int]], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        verify(routed().with_(lanes=Lists.of(lanes)))


def test_a_route_inside_a_node() -> None:
    plan = routed()
    everywhere = replace(plan.forward, via=np.where(plan.forward.kind == 0, 0, -1))
    with pytest.raises(PlanError, match=r"forward operation \d+ on rank \d: via is 0; a transfer to rank \d stays"):
        verify(plan.with_(forward=everywhere), COST)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda plan: plan.with_(num_ranks=9), "plan.num_ranks is 9; the cluster pair has 8 ranks"),
        (lambda plan: plan.with_(num_heads=5), "plan.num_heads is 5; the model small has 4 heads"),
        (lambda plan: plan.with_(mask=FULL), "plan.mask is full; a step of this model takes the model's, causal"),
    ],
)
def test_what_the_job_has_otherwise(change: Callable[[Plan], Plan], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        verify_step(BATCH, (change(routed()),), COST)


def test_pipelines_where_nothing_runs_them() -> None:
    one = np.array([1])
    plan = routed().with_(pipelines=Pipelines(np.array([0]), one, one))
    with pytest.raises(PlanError, match=r"plan\.pipelines has groups of ranks; what runs this plan takes plans"):
        verify(plan, replace(COST, pipelines=False))


def test_micro_batches_are_told_by_number() -> None:
    plan = routed()
    batch = Batch(np.array([90, 90]), 0, 0)
    other = plan.with_(sequences=np.array([1]))
    verify_step(batch, (plan, other), COST)
    with pytest.raises(PlanError, match=r"^micro-batch 1: plan\.lanes has nothing"):
        verify_step(batch, (plan, other.with_(lanes=Lists.of([[]]))), COST)
    with pytest.raises(PlanError, match=r"^micro-batch 1: it is a list, no zbench\.plans\.plan\.Plan$"):
        verify_step(batch, (plan, [other]), COST)  # type: ignore[arg-type]


def test_a_kv_head_comes_to_a_rank_once() -> None:
    """Four query heads of one kv head: a message of two and another one of two bring it twice; to ranks that attend
    with a query head each it comes once."""
    cost = replace(COST, model=replace(COST.model, num_kv_heads=1))
    plan, batch = routed(), BATCH
    verify_step(batch, (plan,), cost, memory=False)
    at = int(np.flatnonzero((plan.forward.kind == TRANSFER) & (plan.forward.tensor == KV))[0])
    twice = plan.with_(forward=plan.forward.take(np.insert(np.arange(len(plan.forward)), at, at)))
    twice.forward.head_hi[at], twice.forward.head_lo[at + 1] = 2, 2
    told = rf"forward operation {at + 1} .* has the kv head of query heads 0 to 3 already, from operation {at}; one"
    with pytest.raises(PlanError, match=told):
        verify_step(batch, (twice,), cost, memory=False)
    verify_step(batch, (twice,), COST, memory=False)  # of two kv heads each brings one
    wide = Builder(batch.lengths, 4, 4)
    ulysses_ring(wide, np.array([0]), np.array([0]), np.arange(4).reshape(1, 1, 4))
    few = replace(cost, cluster=replace(COST.cluster, num_nodes=1))
    verify_step(batch, (reverse(wide.build(), "keep"),), few, memory=False)
