"""Slices of exchanges that a run leaves open: as many as make a batch's step fastest, and what a record has of it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.exchanges import TRIED, ExchangeOverlap
from zbench.describe.expert_schedule import Experts
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.systems.ring import Ring

BATCH = Batch(np.array([9000, 7300, 5200, 3100, 900, 77]), seed=0, step=0)


@cache
def given(experts: bool = False) -> tuple[Cost, tuple[Plan, ...]]:
    """Two groups of four GPUs, whose exchanges take about as long as their matmuls."""
    one = small(2, 4)
    model = replace(one.model, num_layers=3, sharding="zero1", num_heads=8, num_kv_heads=8, ffn_hidden=2048)
    model = replace(model, num_experts=8, experts_per_token=2) if experts else model
    cost = make_cost(one.cluster, replace(model, tensor_parallel=4), pipelines=False)
    return cost, Ring(cost).plan(BATCH)


@cache
def played(slices: int | str, method: str = "sliced") -> StepResult:
    cost, plans = given()
    return Simulated(cost, exchanges=ExchangeOverlap(method, slices)).step(BATCH, plans)


@pytest.mark.parametrize("method", ["sliced", "query_split"])
def test_the_fastest_is_taken_and_told(method: str) -> None:
    found = played("best", method)
    each = {count: played(count, method).seconds for count in TRIED}
    assert found.seconds == min(each.values()) == each[found.exchange_slices["slices"]]
    assert found.exchange_slices["seconds"] == {str(count): one for count, one in each.items()}
    assert len(set(each.values())) > 1


def test_nobody_chooses_what_is_given() -> None:
    assert played(4).exchange_slices == {}


def test_chunks_of_experts_are_chosen_beside_the_slices() -> None:
    cost, plans = given(experts=True)
    schedule = Experts("tutel", "auto")
    executor = Simulated(cost, expert_parallel=8, experts=schedule, exchanges=ExchangeOverlap("sliced", "best"))
    found = executor.step(BATCH, plans)
    slices, chunks = found.exchange_slices["slices"], found.expert_chunks["forward"]
    fixed = replace(executor, experts=Experts("tutel", chunks), exchanges=ExchangeOverlap("sliced", slices))
    assert fixed.step(BATCH, plans).seconds == found.seconds == min(found.expert_chunks["seconds"].values())


@pytest.mark.parametrize(("sharding", "given_window", "fits"), [("zero3", 6, 3), ("zero3", 1, 0), ("zero1", 6, None)])
def test_the_widest_window_that_fits_is_told(sharding: str, given_window: int, fits: int | None) -> None:
    """Of GPUs that have room for just that by the account; where parameters are whole for a step none has more."""
    one, batch = small(2, 4), Batch(8 * BATCH.lengths, seed=0, step=0)
    model = replace(one.model, num_layers=8, sharding=sharding, recompute="full")
    plans = Ring(make_cost(one.cluster, model, pipelines=False)).plan(batch)

    def of(memory: float, window: int) -> Simulated:
        device = replace(one.cluster.device, memory_bytes=memory)
        return Simulated(make_cost(replace(one.cluster, device=device), model, pipelines=False), window=window)

    peaks = [max(of(1e13, window).step(batch, plans).peak_bytes) for window in range(7)]
    assert (len(set(peaks)) > 1) == (sharding == "zero3")
    executor = of(peaks[fits or 0] - (fits is None), given_window)
    executor.start()
    assert executor.step(batch, plans).out_of_memory
    assert executor.finish() == ({} if fits is None else {"window": {"step": 0, "fits": fits}})
    assert not of(peaks[fits or 0], fits or 0).step(batch, plans).out_of_memory
    executor = of(min(peaks) - 1, given_window)
    assert executor.step(batch, plans).out_of_memory
    assert executor.finish() == {}
