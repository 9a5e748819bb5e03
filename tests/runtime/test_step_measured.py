"""What ranks measured of a whole step as its result."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.interfaces.result import StepResult
from zbench.runtime.clocks.named import NamedMessages, Waited
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.step_measured import whole_step_result

SPENT = {"attention": 4.0, "linear": 2.0, "waiting_gradients": 1.0, "interpreter": 1.0}
SLOW = StepReport(
    None,
    8.0,
    SPENT,
    3.0,
    {"attention": (10, 20), "parameters": (1, 1)},
    {"gradients": (100, 200), "attention": (3, 4)},
    7,
    9,
    0.5,
)
FAST = replace(SLOW, loss=1.5, seconds=6.0, spent=SPENT | {"attention": 2.0}, peak_bytes=8, compiling=0.25, across={})


OTHER = replace(FAST, loss=None)


def result(tensor_parallel: int) -> StepResult:
    one = small(2, 2)
    model = replace(one.model, tensor_parallel=tensor_parallel)
    cost = make_cost(one.cluster, model, pipelines=False)
    return whole_step_result(Batch(np.array([64]), 0, 0), cost, [SLOW, FAST, OTHER, OTHER], {})


def test_gpus_are_ranks() -> None:
    reports = result(1)
    assert reports.seconds == 8
    assert reports.seconds_for == {
        "attention": [4, 2, 2, 2],
        "linear": [2, 2, 2, 2],
        "interpreter": [1, 1, 1, 1],
        "waiting_gradients": [1, 1, 1, 1],
        "end": [0, 2, 2, 2],
    }
    assert reports.exposed_seconds == [1, 1, 1, 1]
    assert reports.communication_seconds == [3, 3, 3, 3]
    assert reports.peak_bytes == [7, 8, 8, 8]
    assert reports.phases["compile"] == 0.5


def test_waits_for_messages_are_for_ranks_and_links_where_one_clock_tells() -> None:
    small_cost = small(2, 2)
    cost = make_cost(small_cost.cluster, small_cost.model, pipelines=False)
    spent = {"linear": 5.0, "waiting_messages": 3.0}
    late = NamedMessages("m", {}, [Waited((1, 0), 1.0, 3.0)])
    reports = [
        replace(SLOW, spent=spent, named=late),
        replace(SLOW, spent=spent, named=NamedMessages("m", {(0, 0): 2.5})),
    ]
    reports += [replace(SLOW, spent=spent, named=NamedMessages("m"))] * 2
    batch = Batch(np.array([64]), 0, 0)
    found = whole_step_result(batch, cost, reports, {}).seconds_for
    assert found == {"linear": [5] * 4, "waiting_rank": [1.5, 0, 0, 0], "waiting_link": [1.5, 3, 3, 3]}
    apart = [replace(reports[0], named=late._replace(machine="other")), *reports[1:]]
    assert whole_step_result(batch, cost, apart, {}).seconds_for == {"linear": [5] * 4, "waiting_messages": [3] * 4}


def test_gpus_of_tensor_parallel_groups_are_ranks_each() -> None:
    found, alone = result(2), result(1)
    assert found.seconds_for == alone.seconds_for
    assert (found.peak_bytes, found.exposed_seconds) == (alone.peak_bytes, alone.exposed_seconds)
    assert np.sum(list(found.seconds_for.values()), axis=0).tolist() == [8] * 4


def test_nics_have_what_goes_between_nodes_by_what_it_is_for() -> None:
    found = result(1)
    assert found.nic_tx_bytes == [103, 0]
    assert found.nic_rx_bytes == [204, 0]
    assert found.nic_tx_for == {"attention": [3, 0], "gradients": [100, 0]}
    assert found.nvlink_bytes == 40  # parameters inside nodes are left out, as of what is simulated


def test_with_counters_nics_have_all_that_these_counted() -> None:
    """What messages are for is counted by ranks, headers are in the counters alone."""
    counted = {"nic_series": {"interval": 0.5, "tx": [[400, 100]], "rx": [[100, 0]]}}
    nodes = [replace(one, nic={"eth0": (500 + at, 100)}, **counted) for at, one in enumerate((SLOW, OTHER))]
    every = [nodes[0], FAST, nodes[1], OTHER]
    found = whole_step_result(Batch(np.array([64]), 0, 0), small(2, 2), every, {}, nic_counters=True)
    assert (found.nic_tx_bytes, found.nic_rx_bytes) == ([500, 501], [100, 100])
    assert found.nic_series == {"interval": 0.5, "tx": [[400, 100]] * 2, "rx": [[100, 0]] * 2}
    assert found.nic_tx_for == {"attention": [3, 0], "gradients": [100, 0]}
    with pytest.raises(ValueError, match=r"^cluster.nics_per_node is 1; node 0 has 0: none$"):
        whole_step_result(Batch(np.array([64]), 0, 0), small(2, 2), [SLOW, FAST, OTHER, OTHER], {}, nic_counters=True)


def test_what_moved_for_another_strategy_is_told_by_itself() -> None:
    """Inside nodes it is left out, as gradients are; its seconds are the slowest rank's."""
    moved = {"inside": SLOW.inside | {"switch": (7, 8)}, "across": {"switch": (5, 6)}}
    one = small(1, 2)
    every = [replace(SLOW, switching=0.5, **moved), replace(FAST, switching=0.25, **moved)]
    found = whole_step_result(Batch(np.array([64]), 0, 0), one, every, {})
    assert found.phases["switch"] == 0.5
    assert sum(found.nic_tx_for["switch"]) == 10
    assert found.nvlink_bytes == 20
    assert "switch" not in result(1).phases


def test_the_loss_is_that_of_the_one_rank_that_has_it() -> None:
    one = small(1, 2)
    found = whole_step_result(Batch(np.array([64]), 0, 0), one, [SLOW, FAST], {})
    assert found.loss == 1.5
