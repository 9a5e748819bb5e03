"""Hybrid data parallelism: how long a stretch of a sequence a rank takes."""

import numpy as np

from tests.helpers.oracles import batches, small
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.simulator.estimate.step import StepEstimate, layer_seconds
from zbench.systems.common.micro_batches import fitting_tokens, need_bytes
from zbench.systems.hybrid_dp import HybridDP, stretches


def test_the_stretch_is_the_fastest_predicted_of_those_that_fit() -> None:
    cost = small(2, 4, memory=20e9)
    wide = 0
    for batch in batches(12, 10, seed=3):
        every = {limit: HybridDP(cost, tokens_per_rank=limit).plan(batch) for limit in stretches(batch, cost)}
        assert next(iter(every)) == -(-batch.num_tokens // 8)

        def predicted(plans: tuple[Plan, ...]) -> float:
            return sum(layer_seconds(plan, cost, 1) for plan in plans)

        fitting = [plans for plans in every.values() if all(need_bytes(plan, cost) <= 20e9 for plan in plans)]
        chosen = HybridDP(cost).plan(batch)
        if fitting:
            assert predicted(chosen) == min(map(predicted, fitting))
        wide += predicted(chosen) < predicted(next(iter(every.values())))
    assert wide > 3  # the even share alone would have been slower


def test_no_stretch_is_longer_than_a_gpu_holds() -> None:
    cost = small(2, 4, memory=5.5e9)
    batch = Batch(np.full(8, 2500, np.int64), 0, 0)
    assert 2500 < fitting_tokens(cost) < 3750
    assert stretches(batch, cost) == [2500]
    assert StepEstimate(cost).fits(batch, HybridDP(cost).plan(batch))
