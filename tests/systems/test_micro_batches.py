"""Memory: several micro-batches where one does not fit, and a verdict where none can."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.batch import Batch
from zbench.plans.plan import Ints, Plan
from zbench.proof.verify import verify_step
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.micro_batches import dealt, fitting, fitting_tokens, need_bytes, need_range
from zbench.systems.distca import DistCA
from zbench.systems.fcp import FCP
from zbench.systems.local_packing import LocalPacking
from zbench.systems.loongtrain import LoongTrain
from zbench.systems.usp import USP

SYSTEMS = [USP, LoongTrain, FCP, DistCA, LocalPacking]
every_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.__name__)


def test_parts_hold_every_sequence_once_and_about_the_same() -> None:
    lengths = np.array([100, 90, 50, 40, 10, 10])
    parts = dealt(np.arange(6), lengths, 3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(6))
    assert [int(lengths[part].sum()) for part in parts] == [100, 100, 100]


@every_system
@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_batch_larger_than_memory_takes_micro_batches(system: type, times: int) -> None:
    """Sequences of an eighth of a GPU, `times` what the cluster holds."""
    cost = small(2, 2, memory=16e9)
    batch = Batch(np.full(32 * times, fitting_tokens(cost) // 8), 0, 0)
    plans = system(cost).plan(batch)
    verify_step(batch, plans, cost)  # raises where a rank is over its memory
    assert len(plans) >= times
    assert len(plans) <= 2 * times + 1
    assert StepEstimate(cost).fits(batch, plans)


@every_system
def test_an_impossible_batch_is_a_verdict(system: type) -> None:
    cost = small(2, 2, memory=8e9)
    batch = Batch(np.array([10 * 4 * fitting_tokens(cost), 300, 20]), 0, 0)
    plans = system(cost).plan(batch)
    verify_step(batch, plans)
    assert not StepEstimate(cost).fits(batch, plans)


@pytest.mark.parametrize("system", SYSTEMS[:-1], ids=lambda system: system.__name__)
def test_a_sequence_too_long_for_a_gpu_is_cut(system: type) -> None:
    cost = small(2, 2, memory=16e9)
    batch = Batch(np.array([2 * fitting_tokens(cost)]), 0, 0)
    verify_step(batch, system(cost).plan(batch), cost)
    assert not StepEstimate(cost).fits(batch, LocalPacking(cost).plan(batch))


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.__name__)
def test_the_quick_bounds_hold(system: type) -> None:
    roomy = small(2, 2, memory=1e15)
    batch = Batch(np.array([9000, 4000, 700, 20]), 0, 0)
    plan: Plan
    for plan in system(roomy).plan(batch):
        exact = int(peak_bytes((plan,), roomy).max())
        low, high = need_range(plan, roomy)
        assert exact / 2 < low <= exact <= high < 3 * exact
        assert need_bytes(plan, roomy) == high
        tight = small(2, 2, memory=float(exact - 1))
        assert need_bytes(plan, tight) == exact


def test_a_planner_is_told_which_part_of_a_step_it_plans() -> None:
    """With ZeRO-1 the first part has the gathers, the last one the reductions; parts of parts, what these have."""
    cost = small(2, 2, memory=16e9)
    lengths, told = np.full(96, fitting_tokens(cost) // 8), dict[int, tuple[bool, bool]]()
    system = LocalPacking(cost)

    def planner(seqs: Ints, part: Cost) -> Iterator[Plan]:
        told[int(seqs[0])] = part.opens_step, part.closes_step
        for plan in system.plan(Batch(lengths[seqs], 0, 0))[:1]:
            yield plan.with_(sequences=seqs[plan.sequences])

    plans = fitting(lengths, cost, planner)
    assert len(plans) > 2
    places = [told[int(plan.sequences.min())] for plan in plans]
    assert places == [(True, False), *[(False, False)] * (len(plans) - 2), (False, True)]
