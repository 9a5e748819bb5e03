"""sharding.collectives: the same step in one level or two, and one sentence where there are not two."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.correctness.reference.step_check import step_faults
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.degrees import NODE, WORLD, ShardDegrees, TransferBits
from zbench.describe.expert_schedule import Experts
from zbench.describe.overlap import HIERARCHICAL, USUAL, StepOverlap
from zbench.describe.sync import RoundSync
from zbench.simulated.executor import Simulated
from zbench.simulated.known_steps import KnownSteps
from zbench.step.operations import GATHER, QUEUES, REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.text import step_text
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.ring import Ring

BATCH = Batch(np.array([5000, 1800, 900, 400, 300, 220, 120, 77]), seed=0, step=0)
NODES, GPUS = 2, 4
ZEROPP_BITS = TransferBits(8, 8, 4, block=16)
EXPERTS = {"num_experts": 4, "experts_per_token": 2}


def cost_of(nodes: int = NODES, **model: Any) -> Cost:
    one = small(nodes, GPUS)
    return make_cost(one.cluster, replace(one.model, num_layers=14, **model), pipelines=False)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
def test_the_steps_are_those_of_the_pass_and_flat_ones_are_as_they_were(sharding: str) -> None:
    cost = cost_of(sharding=sharding)
    plans = tuple(Ring(cost).plan(BATCH))
    stage = sharding.removeprefix("zero")
    flat = whole_step(cost.model, plans, 1, stage)
    found = [step_text(Simulated(cost, collectives=how).built(BATCH, plans)) for how in ("flat", HIERARCHICAL)]
    assert found == [step_text(flat), step_text(in_two_levels(flat, GPUS))]


@pytest.mark.parametrize(
    ("model", "how"),
    [
        ({"sharding": "zero3"}, {}),
        ({"sharding": "none"}, {"gradient_bucket": "end"}),
        ({"sharding": "zero1", "tensor_parallel": 2}, {"window": "all"}),
        ({"sharding": "zero3", "recompute": "full"}, {"window": 2}),
        ({"sharding": "zero2", **EXPERTS}, {"expert_parallel": 4}),
        (
            {"sharding": "zero2", "num_experts": 8, "experts_per_token": 2},
            {"expert_parallel": 8, "experts": Experts("fsmoe", "auto", gradients="between")},
        ),
        ({"sharding": ShardDegrees(WORLD, NODE, WORLD, WORLD, WORLD, NODE, ZEROPP_BITS).of_ranks(8, 4)}, {}),
        ({"sharding": ShardDegrees(2, 2, 2, 2)}, {}),
    ],
)
def test_what_nics_send_is_the_same(model: dict[str, Any], how: dict[str, Any]) -> None:
    """Of each purpose, but for what shares are rounded to: the clock's flat collectives send a shard to a node once as
    well."""
    cost = cost_of(**model)
    plans = tuple(Ring(cost).plan(BATCH))
    flat, both = (Simulated(cost, **how, collectives=word).step(BATCH, plans) for word in ("flat", HIERARCHICAL))
    assert [*step_faults(flat, cost), *step_faults(both, cost)] == []
    assert flat.nic_tx_for.keys() == both.nic_tx_for.keys()
    for queue, sent in flat.nic_tx_for.items():
        assert sum(both.nic_tx_for[queue]) == pytest.approx(sum(sent), rel=1e-6), queue
    assert both.peak_bytes == flat.peak_bytes
    assert both.seconds != flat.seconds


def test_all_are_collectives_between_gpus_of_a_number_or_inside_a_node() -> None:
    cost = cost_of(sharding="zero3")
    plans = tuple(Ring(cost).plan(BATCH))
    step = Simulated(cost, collectives=HIERARCHICAL).built(BATCH, plans)
    seen = set()
    for template in step.templates:
        layout = step.layouts[template.layout]
        for kind, _, every, members, *rest in template.operations.table.tolist():
            if QUEUES[rest[4]] in ("parameters", "gradients"):
                numbers = [len(np.unique(ends)) for ends in np.divmod(layout.lists[members], GPUS)]
                seen.add((kind, every, *numbers))
    ways = (-1, NODES, 1), (GPUS, 1, GPUS)
    assert seen == {(kind, *way) for kind in (GATHER, REDUCE) for way in ways}


def test_micro_batches_that_are_alike_share_operations_still() -> None:
    cost = cost_of(sharding="zero3")
    plans = tuple(Ring(cost).plan(BATCH)) * 3
    flat = whole_step(cost.model, [replace(one, sequences=one.sequences + 8 * at) for at, one in enumerate(plans)])
    for step in (flat, in_two_levels(flat, GPUS)):
        assert set(step.same_layouts) == {0}
        for name in ("embedding", "forward", "backward"):
            mine = [one.operations for one in step.templates if one.name.split(".")[0] == name]
            assert len(mine) == 3
            assert len({id(one) for one in mine}) == 1, name


def test_known_steps_tell_nodes_apart() -> None:
    """A plan of eight GPUs is the same on two nodes and on four; the step in two levels is not."""
    known, costs = KnownSteps(8), [cost_of(sharding="zero3")]
    cluster = replace(costs[0].cluster, num_nodes=4, gpus_per_node=2)
    costs.append(make_cost(cluster, costs[0].model, pipelines=False))
    plans = tuple(Ring(costs[0]).plan(BATCH))
    for cost in costs:
        anew = Simulated(cost, collectives=HIERARCHICAL).step(BATCH, plans)
        assert Simulated(cost, collectives=HIERARCHICAL, known=known).step(BATCH, plans) == anew


@pytest.mark.parametrize(
    ("cost", "how", "told"),
    [
        (
            cost_of(1),
            {},
            "cluster small has 1 node of 4 GPUs, and two levels take several nodes of several GPUs, so it takes flat",
        ),
        (
            cost_of(sharding="zero1", pipeline_parallel=2, micro_batches=2),
            {},
            "a stage of the pipeline has 1 node of 4 GPUs, and two levels take several nodes of several GPUs",
        ),
        (
            cost_of(sharding=ShardDegrees(NODE, NODE, NODE, NODE).of_ranks(8, 4)),
            {},
            "with sharding.degrees {weights: 4, secondary: 4, gradients: 4, optimizer: 4} on 8 GPUs every gather and "
            "reduction is inside a node or between single GPUs of nodes, so it takes flat",
        ),
        (
            cost_of(sharding="zero3"),
            {"sync": RoundSync("local_sgd", 2)},
            "with sync=local_sgd workers gather and reduce apart, and once a round over all, at once, so it takes flat",
        ),
    ],
)
def test_where_there_are_not_two_levels(cost: Cost, how: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=rf"^sharding.collectives is hierarchical; {re.escape(told)}"):
        Simulated(cost, **how, collectives=HIERARCHICAL)


def test_with_pipelines_that_a_planner_chose() -> None:
    cost = replace(cost_of(sharding="zero1"), pipelines=True)
    plans = tuple(Hydraulis(cost, tp_pp_pairs=[[2, 2], [1, 1]]).plan(BATCH))
    with pytest.raises(ValueError, match=r"sharding.collectives is hierarchical, which takes flat with them$"):
        Simulated(cost, collectives=HIERARCHICAL).step(BATCH, plans)
    assert StepOverlap(collectives=HIERARCHICAL) != USUAL
