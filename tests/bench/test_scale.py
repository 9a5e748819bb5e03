"""How long a ring over many ranks takes to plan, prove, prepare and play, and how many operations and edges that is.

Not collected by default: `make bench`. Processor time: with --benchmark-timer=time.process_time.
"""

from collections.abc import Callable

import numpy as np
import pytest

from zbench.batch import Batch
from zbench.cluster import Cluster, Device
from zbench.cost import Cost
from zbench.model import Model
from zbench.plan import Plan
from zbench.simulate import Simulated
from zbench.systems.ring import Ring
from zbench.verify import verify

NODES = 32
DEVICE = Device("d", 312e12, 80e9, 1.5e12, 3e11, 2.2e14, 1.5e14, 1.1e14, 6e-6, 3e-5)
COST = Cost(
    Cluster("c", NODES, 8, 4, 25e9, 0.8, 15e-6, 2e11, 0.6, 1e-5, DEVICE),
    Model("m", 32, 4096, 32, 32, 128, 11008, 32000),
)


@pytest.fixture(scope="module")
def batch() -> Batch:
    drawn = np.minimum(np.random.default_rng(0).lognormal(6.1, 1.5, 10_000).astype(np.int64) + 1, 131072)
    ends = np.cumsum(drawn)
    return Batch(drawn[: int(np.searchsorted(ends, 4096 * COST.cluster.num_ranks))], seed=0, step=0)


@pytest.fixture(scope="module")
def plan(batch: Batch) -> Plan:
    return Ring(COST).plan(batch)[0]


def test_plan(benchmark: Callable, batch: Batch) -> None:
    made = benchmark(lambda: Ring(COST).plan(batch)[0])
    ranks = COST.cluster.num_ranks
    assert len(made.forward) == ranks * ranks + ranks * (ranks - 1)
    assert len(made.backward) == len(made.forward) + ranks * (ranks - 2)


def test_verify(benchmark: Callable, plan: Plan) -> None:
    benchmark(lambda: verify(plan.with_(causal=True)))  # a new plan, which has counted no pairs yet
    assert len(plan.pairs.kv) == COST.cluster.num_ranks**2


def test_step(benchmark: Callable, batch: Batch, plan: Plan) -> None:
    result = benchmark(lambda: Simulated(COST).step(batch, (plan,)))
    assert result.seconds > result.bound_seconds
