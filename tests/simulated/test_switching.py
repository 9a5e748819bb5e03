"""What a change of pipelines costs by the simulated clock."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import MODEL, pipeline_plans
from tests.simulated.test_executor import BATCH, small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.simulated.executor import Simulated
from zbench.simulated.switching import Left, played_switch

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


def with_hosts(cost: Cost) -> Cost:
    hosts = {"host_bandwidth": 1e10, "host_efficiency": 1.0, "host_latency": 1e-5, "host_memory": 1e12}
    cluster = replace(cost.cluster, **hosts, host_adam_bandwidth=1e11)
    return replace(cost, cluster=cluster, model=replace(cost.model, sharding="zero1", offload="optimizer"))


def test_state_on_hosts_moves_between_nodes_and_is_handed_over_inside_one() -> None:
    """While it moves host memory has what rests there, 14 bytes of each parameter, and a few tensors that come before
    as many have left."""
    first, moved, stays = steps_of(with_hosts(cost_of(2, 1)), ["single", "stages", "stages"])
    assert "switch" not in first.phases
    assert moved.seconds == pytest.approx(stays.seconds + moved.phases["switch"], rel=1e-12)
    assert min(moved.nic_tx_for["switch"]) > 0
    assert moved.host_bytes >= stays.host_bytes
    assert moved.peak_bytes >= stays.peak_bytes
    cost = with_hosts(cost_of(2, 1))
    plans = [tuple(pipeline_plans(SHAPES[one], [[(3, 0)]], 2)) for one in ("single", "stages")]
    before, after = (Simulated(cost).built(BATCH, one) for one in plans)
    played = played_switch(Left.of(before, plans[0], None), after, plans[1], cost)
    assert played is not None
    rests = 14 * cost.model.total_params
    assert rests <= played.memory.peak[2:].sum() < 1.35 * rests
    on_gpus = replace(cost_of(1, 2), model=replace(cost_of(1, 2).model, sharding="zero1"))
    changed = [steps_of(cost, ["single", "stages"])[1] for cost in (with_hosts(cost_of(1, 2)), on_gpus)]
    assert 0 < changed[0].phases["switch"] < changed[1].phases["switch"]
    assert "switch" not in changed[0].nic_tx_for


def test_parts_of_a_nodes_cpus_have_queues_of_their_own() -> None:
    """As many as the node's GPUs: a GPU's part had the queue of another one's collectives where there were fewer."""
    apart, together = (steps_of(with_hosts(cost_of(*shape)), ["stages"])[0] for shape in ((2, 1), (1, 2)))
    assert 0.9 * apart.seconds < together.seconds < apart.seconds  # of so little work NVLink is quicker by latencies


def test_a_run_begins_with_everything_in_place() -> None:
    executor = Simulated(cost_of(2, 1))
    for name in ("stages", "single"):
        executor.start()
        assert "switch" not in executor.step(BATCH, tuple(pipeline_plans(SHAPES[name], [[(3, 0)]], 2))).phases
