"""USP: every factorisation, the fastest of them, in as many micro-batches as memory asks for."""

import numpy as np
import pytest

from tests.helpers.oracles import A100, H100, batches, small
from zbench.describe.batch import Batch
from zbench.describe.model import Q
from zbench.plans.plan import ATTEND, Plan
from zbench.simulator.estimate.step import layer_seconds
from zbench.systems.common.grids import Grid, exchange_degrees, grid_plan, head_first
from zbench.systems.usp import USP


def degree_of(plan: Plan) -> int:
    """Ranks that exchange heads: all heads over those of an attend."""
    heads = (plan.forward.head_hi - plan.forward.head_lo)[plan.forward.kind == ATTEND]
    return plan.num_heads // int(heads.max())


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_a_given_degree_is_used(degree: int) -> None:
    (plan,) = USP(small(2, 4), ulysses_degree=degree).plan(batches(1)[0])
    assert degree_of(plan) == degree
    assert (plan.forward.tensor == Q).sum() == 8 * (degree - 1)
    assert (plan.forward.kind == ATTEND).sum() == 8 * (8 // degree)


@pytest.mark.parametrize("degree", [0, 3, 64, True, 2.5])
def test_a_degree_that_does_not_fit_is_refused(degree: object) -> None:
    with pytest.raises(ValueError, match=r"system.ulysses_degree is .*divisor of the 8 ranks of at most 32"):
        USP(small(2, 4), ulysses_degree=degree)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 4), (2, 2)], ids=str)
@pytest.mark.parametrize("model", ["mha", "gqa"])
def test_the_choice_is_the_fastest_factorisation(shape: tuple[int, int], model: str) -> None:
    """Every factorisation built and played: the gap is 0 at the median, and below 2 % at worst."""
    gaps = []
    for device in (A100, H100):
        cost = small(*shape, device, model)
        for batch in batches(12):
            every = np.arange(len(batch.lengths))
            grids = [Grid(head_first(4, degree), 4 // degree) for degree in exchange_degrees(4, 32)]
            plans = [grid_plan(batch.lengths, every, grid, cost, "carry") for grid in grids]
            best = min(layer_seconds(plan, cost, 3) for plan in plans)
            (chosen,) = USP(cost).plan(batch)
            gaps.append(layer_seconds(chosen, cost, 3) / best - 1)
    assert np.median(gaps) < 1e-9
    assert max(gaps) < 0.02


def test_the_choice_depends_on_the_batch() -> None:
    """One long sequence hides a ring behind its attention; short ones leave it exposed, and exchange heads instead."""
    cost = small(4, 4, H100, "gqa")
    (long,) = USP(cost).plan(Batch(np.array([131_072]), 0, 0))
    (short,) = USP(cost).plan(Batch(np.full(100, 500), 0, 0))
    assert degree_of(long) < degree_of(short)
