"""nodewise where something of layers waits on hosts: nodes are even in what they wait for, not in what they compute."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cost.test_layers_on_hosts import hosted
from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import waiting
from zbench.describe.batch import Batch
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.nodewise.rates import Rates

BATCH = Batch(np.array([30000, 20000, 9000] + [700] * 100), 0, 0)
ONE_LONG = Batch(np.array([100000] + [1500] * 60), 0, 0)


def on(rate: float, **of: Any) -> Cost:
    cost = hosted(num_layers=4, sharding="zero3", offload="activations", **of)
    return replace(cost, cluster=replace(cost.cluster, host_bandwidth=rate, host_efficiency=1.0))


def on_nodes(cost: Cost, batch: Batch = BATCH) -> np.ndarray:
    """Tokens of each node, as nodewise plans alone."""
    (plan,) = Nodewise(cost, adopt_rivals=False).plan(batch)
    return plan.tokens_per_rank.reshape(2, 4).sum(axis=1)


@pytest.mark.parametrize(("batch", "gained"), [(BATCH, 0.05), (ONE_LONG, 0.01)])
def test_nodes_are_even_in_tokens_where_links_are_waited_for(batch: Batch, gained: float) -> None:
    """Whole sequences, and one that is cut over both nodes, whose tokens are copied wherever they are."""
    slow = on(1e7)
    uneven, even = on_nodes(slow.not_waiting, batch), on_nodes(slow, batch)
    assert np.ptp(even) < np.ptp(uneven)
    assert np.ptp(even) < 0.01 * batch.num_tokens
    before, after = (
        StepEstimate(slow).seconds(Nodewise(one, adopt_rivals=False).plan(batch)) for one in (slow.not_waiting, slow)
    )
    assert after < (1 - gained) * before


def test_links_that_nobody_waits_for_change_nothing() -> None:
    fast = on(1e15)
    assert on_nodes(fast).tolist() == on_nodes(fast.not_waiting).tolist()


@pytest.mark.parametrize("rate", [1e7, 1e10])
def test_busy_is_what_ranks_compute_and_wait_for(rate: float) -> None:
    """With whole sequences on their GPUs alone: what each waits for by itself, but for starts of kernels."""
    cost = on(rate)
    planner, lengths = Nodewise(cost), np.full(8, 4096)
    task = planner._task(lengths, np.arange(8), Rates.of(cost), 10**6)
    even, _ = planner._place(task)
    trial = planner._play(task, task.layout(even[0]))
    alone = [cost.whole_seconds(lengths, way) for way in (False, True)]
    waits = waiting(cost, lengths, *alone)
    computed = trial.busy(cost.not_waiting)
    assert trial.busy(cost) - computed == pytest.approx(waits, rel=0.05, abs=0.01 * computed.max())
    assert task.placed.attention - task.sequences.attention == pytest.approx(waits)
