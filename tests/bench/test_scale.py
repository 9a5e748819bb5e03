"""How long rings over many ranks take to plan, prove and play, and how many operations and pairs of lists that is.

Not collected by default: `make bench`. Processor time: with --benchmark-timer=time.process_time.
"""

from collections.abc import Callable

import numpy as np
import pytest

from zbench.cost.bound import bound_seconds
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.mask import CAUSAL
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.proof.verify import verify
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.ring import Ring

DEVICE = Device("d", 312e12, 80e9, 1.5e12, 3e11, 2.2e14, 1.5e14, 1.1e14, 6e-6, 3e-5)
MODEL = Model("m", 32, 4096, 32, 32, 128, 11008, 32000)


@pytest.fixture(scope="module", params=[4, 16, 64], ids=lambda nodes: f"{8 * nodes} ranks")
def cost(request: pytest.FixtureRequest) -> Cost:
    return Cost(Cluster("c", request.param, 8, 4, 25e9, 0.8, 15e-6, 2e11, 0.6, 1e-5, DEVICE), MODEL)


@pytest.fixture(scope="module")
def batch(cost: Cost) -> Batch:
    """4,096 tokens a rank with a long tail."""
    tokens = 4096 * cost.cluster.num_ranks
    drawn = np.minimum(np.random.default_rng(0).lognormal(6.1, 1.5, tokens // 100).astype(np.int64) + 1, 131072)
    return Batch(drawn[: int(np.searchsorted(np.cumsum(drawn), tokens))], seed=0, step=0)


@pytest.fixture(scope="module")
def plan(cost: Cost, batch: Batch) -> Plan:
    return Ring(cost).plan(batch)[0]


def test_plan(benchmark: Callable, cost: Cost, batch: Batch) -> None:
    made = benchmark(lambda: Ring(cost).plan(batch)[0])
    ranks = cost.cluster.num_ranks
    assert len(made.forward) == ranks * ranks + ranks * (ranks - 1)
    assert len(made.backward) == len(made.forward) + ranks * (ranks - 2)


def test_verify(benchmark: Callable, cost: Cost, plan: Plan) -> None:
    benchmark(lambda: verify(plan.with_(mask=CAUSAL)))  # a new plan, which has counted no pairs yet
    assert len(plan.pairs.kv) == cost.cluster.num_ranks**2


def test_step(benchmark: Callable, cost: Cost, batch: Batch, plan: Plan) -> None:
    seconds = benchmark(lambda: StepEstimate(cost).seconds((plan,)))
    assert seconds > bound_seconds(batch, cost)
