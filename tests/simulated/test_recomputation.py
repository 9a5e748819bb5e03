"""Recomputation chosen for every batch: as little as fits, of as few layers as will do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import pipeline_plans
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import memory_of
from zbench.describe.batch import Batch
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import Experts
from zbench.describe.job import RolloutJob
from zbench.describe.model import Model
from zbench.describe.strategies.training_strategy import TrainingStrategy
from zbench.describe.strategy import Parallel, Recompute, Sharding, TrainingMemory
from zbench.describe.sync import RoundSync
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.run.target import of_whole_step
from zbench.simulated.executor import Simulated
from zbench.simulated.recomputation import chosen_recompute, recomputing
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.recompute import SomeLayers
from zbench.systems.ring import Ring

MODEL = Model("eight", 8, 64, 4, 4, 16, 128, 100, recompute="full", sharding="zero3")
ROOM = 1e9


def cost_of(room: float, **model: object) -> Cost:
    cost = small(1, 2)
    device = replace(cost.cluster.device, memory_bytes=room)
    return Cost(replace(cost.cluster, device=device), replace(MODEL, **model))


def planned(*lengths: int) -> tuple[Batch, tuple[Plan, ...]]:
    batch = Batch(np.array(lengths), 0, 0)
    return batch, Ring(cost_of(ROOM)).plan(batch)


def peaks(batch: Batch, plans: tuple[Plan, ...], *levels: str) -> list[int]:
    return [max(Simulated(cost_of(ROOM, recompute=level)).step(batch, plans).peak_bytes) for level in levels]


def adaptive(room: float, batch: Batch, plans: tuple[Plan, ...], **model: object) -> StepResult:
    return Simulated(cost_of(room, **model), adaptive_recompute=True).step(batch, plans)


def test_nothing_is_recomputed_where_all_fits() -> None:
    batch, plans = planned(600, 300)
    found = adaptive(ROOM, batch, plans)
    plain = Simulated(cost_of(ROOM, recompute="none")).step(batch, plans)
    told = {"level": "none", "layers": [0], "of_layers": 8, "peak_bytes": max(plain.peak_bytes)}
    assert found == replace(plain, recompute=told)


def test_as_few_layers_as_fit() -> None:
    """Trying every number of layers says the same, for any room; more room never means more recomputation."""
    batch, plans = planned(600, 300)
    most, least = peaks(batch, plans, "none", "full")
    steps, seconds = Simulated(cost_of(ROOM), adaptive_recompute=True).steps, []
    for room in np.linspace(least, most, 4):
        of = cost_of(float(room))
        chosen = chosen_recompute(steps, batch, plans, of)
        assert chosen.peak_bytes <= room
        fewer = replace(chosen, layers=(chosen.layers[0] - 1,)) if chosen.layers[0] else None
        if fewer is not None:
            step = steps.with_recompute(fewer.part if fewer.layers[0] else "none").built(batch, plans)
            assert step_memory(StepParts(step, plans, of)).peak.max() > room
        seconds.append(adaptive(float(room), batch, plans).seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[-1]


@pytest.mark.parametrize(("rate", "level"), [(1e7, "full"), (1e13, "none")])
def test_where_copies_are_waited_for_the_quickest_step_is_taken(rate: float, level: str) -> None:
    """With all activations on hosts a batch fits as it is; over a slow link it takes less time to make them again."""
    batch, plans = planned(600, 300)
    host = {"host_bandwidth": rate, "host_efficiency": 1.0, "host_latency": 1e-6, "host_memory": 1e12}
    cost = cost_of(ROOM, offload="activations")
    cost = replace(cost, cluster=replace(cost.cluster, **host))
    found = Simulated(cost, adaptive_recompute=True).step(batch, plans)
    seconds = {
        one: Simulated(replace(cost, model=replace(cost.model, recompute=one))).step(batch, plans).seconds
        for one in ("none", "selective", "full")
    }
    assert found.recompute["level"] == level == min(seconds, key=lambda one: seconds[one])
    assert found.seconds == pytest.approx(seconds[level])


def test_levels_are_those_of_chunks_where_there_are_some() -> None:
    batch, plans = planned(600, 300)
    (most,) = peaks(batch, plans, "none")
    for chunk, level in (("whole", "selective"), (32, "chunked")):
        told = adaptive(most * 0.98, batch, plans, mlp_chunk_tokens=chunk).recompute
        assert (told["level"], told["peak_bytes"] <= most * 0.98) == (level, True)


def test_what_fits_by_no_choice_is_out_of_memory_in_full() -> None:
    batch, plans = planned(600, 300)
    (least,) = peaks(batch, plans, "full")
    found = adaptive(least - 1, batch, plans)
    assert found.out_of_memory
    assert found.recompute == {"level": "full", "layers": [8], "of_layers": 8, "peak_bytes": least}


def test_every_stage_has_as_many() -> None:
    """The bound is one of no recomputation, which no step beats."""
    cost = make_cost(small(2, 2).cluster, replace(MODEL, num_layers=6, sharding="zero1", pipeline_parallel=2))
    batch = Batch(np.array([600, 300]), 0, 0)
    plans = Ring(cost).plan(batch)
    most = max(Simulated(recomputing(cost, "none")).step(batch, plans).peak_bytes)
    device = replace(cost.cluster.device, memory_bytes=most * 0.95)
    tight = replace(cost, single=replace(cost.gpus, cluster=replace(cost.gpus.cluster, device=device)))
    found = Simulated(tight, adaptive_recompute=True).step(batch, plans)
    count = max(found.recompute["layers"])
    assert (found.recompute["layers"], found.out_of_memory) == ([count, count], False)
    assert found.bound_seconds == Simulated(recomputing(cost, "none")).bound_seconds(batch)


@pytest.mark.parametrize(
    ("beside", "told"),
    [({"sync": RoundSync("local_sgd", 2)}, "sync=local_sgd"), ({"job": RolloutJob("grpo")}, "job=rlhf")],
)
def test_what_cannot_be_is_one_sentence(beside: dict[str, Any], told: str) -> None:
    parts = Sharding("zero1"), Recompute("adaptive"), TrainingMemory(), Parallel(), ExchangeOverlap(), Experts()
    with pytest.raises(ValueError, match=rf"^recompute.granularity is adaptive; with {told} it takes none, sel"):
        TrainingStrategy(*parts, **beside)
    with pytest.raises(ValueError, match=r"granularity is adaptive; only runs with executor=simulated, torch or"):
        of_whole_step(TrainingStrategy(*parts), plays=False)


def test_some_layers_of_a_run() -> None:
    """Memory, planners' and the step's, lies between that of no layer and that of all; so do seconds."""
    batch, plans = planned(600, 300)
    for level in ("selective", "full"):
        choices: list[dict[str, Any]] = [{"recompute": level, "recompute_layers": one} for one in (3, 6, "all")]
        choices.insert(0, {"recompute": "none"})
        found = [Simulated(cost_of(ROOM, **one)).step(batch, plans) for one in choices]
        assert [one.seconds for one in found] == sorted({one.seconds for one in found})
        assert [one.recompute.get("layers") for one in found] == [None, [3], [6], None]
        peaks = [max(one.peak_bytes) for one in found]
        assert peaks == sorted(set(peaks), reverse=True)
        planned_for = [memory_of(cost_of(ROOM, **one)).bytes(600) for one in choices]
        assert planned_for == sorted(set(planned_for), reverse=True)
        three = Simulated(cost_of(ROOM), adaptive_recompute=True).steps.with_recompute(SomeLayers(level, (3,)))
        account = step_memory(StepParts(three.built(batch, plans), plans, cost_of(ROOM)))
        assert account.peak.max() == peaks[1]


def test_numbers_of_layers_that_cannot_be_are_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^recompute.layers is 9; a stage of eight has 8 of its layers, so it"):
        Simulated(cost_of(ROOM, recompute_layers=9))
    told = (
        "it takes a whole number from 1 to the model's number of layers, "
        r"a list of one for each stage, as in \[4,2\], all or auto"
    )
    with pytest.raises(ValueError, match=rf"^recompute.layers is -1; {told}$"):
        Recompute("full", -1)
    with pytest.raises(ValueError, match=rf"^recompute.layers is 0; {told} \(recompute=none recomputes in none\)$"):
        Recompute("full", 0)
    with pytest.raises(ValueError, match=r"^recompute.layers is 2; recompute.granularity=adaptive chooses as many"):
        Recompute("adaptive", 2)
    for fields, told in (
        ({"recompute": "none"}, "recompute.granularity none it takes all, and a number with"),
        ({"offload": "inputs"}, "memory.offload inputs .*, so it takes all, or memory.offload=activations$"),
    ):
        with pytest.raises(ValueError, match=rf"^recompute.layers is 2; with {told}"):
            replace(MODEL, recompute_layers=2, **fields)
    (plan,) = pipeline_plans([(1, 1)] * 2, [[(5, 0), (4, 1)]], 2)
    with pytest.raises(ValueError, match=r"^plans have pipelines, .*; recompute.layers is 2, which takes all with"):
        Simulated(cost_of(ROOM, recompute_layers=2)).steps.built(Batch(np.array([5, 4]), 0, 0), [plan])
