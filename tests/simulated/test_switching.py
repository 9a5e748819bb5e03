"""What a change of pipelines costs by the simulated clock."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import MODEL, pipeline_plans
from tests.simulated.test_executor import BATCH, small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.simulated.executor import Simulated

SHAPES = {"group": [(2, 1)], "stages": [(1, 2)], "single": [(1, 1)] * 2}


def cost_of(nodes: int, gpus: int) -> Cost:
    one = small(nodes, gpus)
    return make_cost(one.cluster, replace(MODEL, num_layers=4, sharding="none"))


def steps_of(cost: Cost, names: list[str]) -> list:
    executor = Simulated(cost)
    executor.start()
    return [executor.step(BATCH, tuple(pipeline_plans(SHAPES[one], [[(3, 0)]], 2))) for one in names]


def test_a_step_waits_for_what_moves_and_its_account_closes() -> None:
    """From a group of two, each with half of a parameter, to single GPUs: half of 14 bytes of each goes either way,
    through a NIC each."""
    cost = cost_of(2, 1)
    first, moved, stays = steps_of(cost, ["group", "single", "single"])
    half = 14 * (cost.model.total_params - cost.model.hidden * 9) // 2  # norms' gains are whole on both
    assert "switch" not in first.phases
    assert moved.nic_tx_for["switch"] == [half, half]
    assert moved.seconds == pytest.approx(stays.seconds + moved.phases["switch"], rel=1e-12)
    assert moved.phases["switch"] >= half / cost.cluster.nic_bandwidth
    assert moved.phases["forward"] == pytest.approx(stays.phases["forward"] + moved.phases["switch"], rel=1e-12)
    assert (np.array(moved.nic_tx_bytes) - stays.nic_tx_bytes).tolist() == [half, half]
    assert np.sum(list(moved.nic_tx_for.values()), axis=0).tolist() == moved.nic_tx_bytes
    assert sum(np.array(one) for one in moved.seconds_for.values()) == pytest.approx(np.full(2, moved.seconds))
    assert "switch" not in stays.phases


def test_what_moves_inside_a_node_takes_time_and_no_nic() -> None:
    _, moved = steps_of(cost_of(1, 2), ["group", "single"])
    assert moved.phases["switch"] > 0
    assert "switch" not in moved.nic_tx_for


def test_pipelines_that_nothing_moves_for_cost_nothing() -> None:
    """Single GPUs have all that a group's have."""
    found = steps_of(cost_of(2, 1), ["single", "group"])
    assert ["switch" in one.phases for one in found] == [False, False]


def test_state_on_hosts_does_not_move() -> None:
    """A batch with other pipelines is refused where optimizer state rests on hosts, and one with the same is not."""
    cost = cost_of(2, 1)
    hosts = {"host_bandwidth": 1e10, "host_efficiency": 1.0, "host_latency": 1e-5, "host_memory": 1e12}
    cluster = replace(cost.cluster, **hosts, host_adam_bandwidth=1e11)
    model = replace(cost.model, sharding="zero1", offload="optimizer")
    assert len(steps_of(replace(cost, cluster=cluster, model=model), ["single", "single"])) == 2
    with pytest.raises(ValueError, match=r"^plans have other pipelines .* and memory.offload is optimizer; state"):
        steps_of(replace(cost, cluster=cluster, model=model), ["single", "stages"])


def test_a_run_begins_with_everything_in_place() -> None:
    executor = Simulated(cost_of(2, 1))
    for name in ("stages", "single"):
        executor.start()
        assert "switch" not in executor.step(BATCH, tuple(pipeline_plans(SHAPES[name], [[(3, 0)]], 2))).phases
