"""Jobs whose stages have numbers of layers of their own, and recompute numbers of their own of these: planners'
seconds, their memory beside the step's account, and the bound."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.bound import bound_seconds
from zbench.cost.job import make_cost
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.needs import memory_of, moments_of_stages
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.batch import Batch
from zbench.simulated.executor import Simulated
from zbench.simulator.attention import programs
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.mesh import Mesh


def test_stages_that_differ_take_what_each_has() -> None:
    """Two stages of one layer and three, of which the first recomputes its one: six micro-batches on the slower stage
    and one on the other, which recomputing counts a third of a layer for."""
    one = small(2, 1)
    free = replace(one.cluster, nic_bandwidth=1e30, nvlink_bandwidth=1e30, nic_latency=0.0, nvlink_latency=0.0)
    model = replace(one.model, num_layers=4, sharding="zero1", pipeline_parallel=2)
    cost, batch = make_cost(free, model), Batch(np.full(6, 4096), 0, 0)
    model = replace(model, stage_layers=(1, 3), recompute="full", recompute_layers=(1, 0))
    uneven = make_cost(free, model)
    plans = Mesh(uneven, "ring", 1, "balanced", 4096).plan(batch)
    assert len(plans) == 6
    attention = [float(part.busy.max()) for part in programs(plans[0], uneven)]
    tokens = plans[0].tokens_per_rank
    forward, back = (float(one[0]) for one in (cost.linear_seconds(tokens), cost.backward_linear_seconds(tokens)))
    first = 2 * (forward + attention[0]) + back + attention[1]
    second = 3 * (forward + attention[0] + back + attention[1])
    wanted = 6 * (second + float(cost.head_seconds(tokens)[0])) + first
    assert StepEstimate(uneven).seconds(plans) - uneven.optimizer_seconds() == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"recompute": "full", "recompute_layers": (3, 1, 0, 0)},
        {"recompute": "selective", "recompute_layers": (0, 2, 2, 1)},
    ],
)
def test_a_planner_reckons_with_what_each_stage_has(fields: dict[str, Any]) -> None:
    """What is there on the fullest rank of every stage, never less, of whose ranks one has the state of the table or of
    the head."""
    one = small(4, 2)
    model = replace(one.model, num_layers=8, sharding="zero1", pipeline_parallel=4, stage_layers=(3, 2, 2, 1), **fields)
    cost = make_cost(one.cluster, model)
    batch = Batch(np.full(16, 4096), 0, 0)
    plans = Mesh(cost, "ring", 1, "balanced", 4096).plan(batch)
    found, reckoned = np.array(Simulated(cost).step(batch, plans).peak_bytes), peak_bytes(plans, cost)
    assert (found <= reckoned).all()
    assert found.reshape(4, 2).max(axis=1) == pytest.approx(reckoned[::2], rel=0.01)
    lines = [one.lines(4 - stage, stage == 3) for stage, one in enumerate(moments_of_stages(cost))]
    assert len(set(lines)) == 4
    each = [MemoryLines(one).bytes(4096) for one in lines]
    assert max(each) == memory_of(cost).bytes(4096)


def test_the_bound_is_the_last_stage_s() -> None:
    one = small(2, 1)
    model = replace(one.model, num_layers=8, sharding="zero1", pipeline_parallel=2)
    batch = Batch(np.full(16, 2048), 0, 0)
    found = []
    for layers in ((6, 2), (4, 4), (2, 6)):
        cost = make_cost(one.cluster, replace(model, stage_layers=layers))
        plans = Mesh(cost, "ring", 1, "balanced", 2048).plan(batch)
        found.append(bound_seconds(batch, cost))
        assert StepEstimate(cost).seconds(plans) > found[-1]
    assert found == sorted(found)
    assert found[1] == bound_seconds(batch, make_cost(one.cluster, model))
