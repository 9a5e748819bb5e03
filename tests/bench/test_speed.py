"""How long planning, verifying and simulating take, at 32, 128 and 1,024 ranks.

Not collected by default: `make bench`. Beside the time, each benchmark asserts what it worked on, so that a
number is never the time of something smaller.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from zbench.cost.bound import bound_seconds
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.interfaces.protocols import System
from zbench.plans.plan import Plan
from zbench.proof.verify import verify_step
from zbench.simulator.estimate.step import StepEstimate

CONF = Path(__file__).parents[2] / "conf" / "system"
NAMES = [path.stem for path in sorted(CONF.glob("*.yaml"))]
RANKS = (32, 128, 1024)
TOKENS_PER_RANK = 4096
DEVICE = Device("bench", 1e15, 80e9, 2e12, 3e11, 5e14, 6e14, 5e14, 5e-6, 6e-5)


def setting(name: str, ranks: int) -> tuple[System, Batch, Cost]:
    """The system on nodes of 8 GPUs and 4 NICs, Llama 7B's shapes, and a long-tailed batch of 4,096 tokens a rank."""
    cluster = Cluster("bench", ranks // 8, 8, 4, 25e9, 0.8, 1.5e-5, 2e11, 0.6, 1e-5, DEVICE)
    cost = Cost(cluster, Model("bench", 32, 4096, 32, 32, 128, 11008, 32000, sharding="zero3"))
    drawn = np.random.default_rng(0).lognormal(6.1, 1.5, ranks * 40).astype(np.int64) + 1
    ends = np.cumsum(np.minimum(drawn, 131072))
    cut = np.minimum(ends, ranks * TOKENS_PER_RANK)
    lengths = np.diff(cut, prepend=0)
    batch = Batch(lengths[lengths > 0], seed=0, step=0)
    assert batch.num_tokens == ranks * TOKENS_PER_RANK
    system = instantiate(OmegaConf.load(CONF / f"{name}.yaml"), _partial_=True, _convert_="all")(cost=cost)
    return system, batch, cost


def num_ops(plans: tuple[Plan, ...]) -> int:
    return sum(len(plan.forward) + len(plan.backward) for plan in plans)


@pytest.fixture(params=[(name, ranks) for name in NAMES for ranks in RANKS], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request: pytest.FixtureRequest) -> tuple[System, Batch, Cost, tuple[Plan, ...]]:
    """With everything compiled, and the plans made once."""
    name, ranks = request.param
    if name == "allgather" and ranks > 128:
        pytest.skip("every rank's attend names every block: a million items at 1,024 ranks, and as many transfers")
    small = setting(name, 32)
    StepEstimate(small[2]).seconds(small[0].plan(small[1]))
    verify_step(small[1], small[0].plan(small[1]))
    system, batch, cost = setting(name, ranks)
    return system, batch, cost, system.plan(batch)


def timed(benchmark: Callable, work: Callable, plans: tuple[Plan, ...]) -> object:
    benchmark.extra_info["operations"] = num_ops(plans)
    return benchmark.pedantic(work, rounds=3 if plans[0].num_ranks < 1024 else 1, warmup_rounds=0)


def test_plan(benchmark: Callable, case: tuple) -> None:
    system, batch, _, plans = case
    found = timed(benchmark, lambda: system.plan(batch), plans)
    assert num_ops(found) == num_ops(plans)


def test_verify(benchmark: Callable, case: tuple) -> None:
    _, batch, _, plans = case
    timed(benchmark, lambda: verify_step(batch, plans), plans)


def test_simulate(benchmark: Callable, case: tuple) -> None:
    _, batch, cost, plans = case
    assert timed(benchmark, lambda: StepEstimate(cost).seconds(plans), plans) >= bound_seconds(batch, cost)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_ring_has_the_operations_it_should(ranks: int) -> None:
    """Forward: G^2 attends and G (G - 1) transfers; backward as many, and kv back on G (G - 2)."""
    system, batch, _ = setting("ring", ranks)
    assert num_ops(system.plan(batch)) == 2 * (ranks**2 + ranks * (ranks - 1)) + ranks * (ranks - 2)
