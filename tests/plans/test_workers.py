"""Plans of workers side by side, and each cut out again: the same operations, and nothing between workers."""

import numpy as np
import pytest

from tests.runtime.test_step_executor import cost_of
from zbench.cost.job import worker_cost
from zbench.describe.batch import Batch
from zbench.describe.sync import RoundSync
from zbench.interfaces.dealt import WorkerPlans
from zbench.interfaces.protocols import System
from zbench.plans.plan import COLUMNS, Plan
from zbench.plans.workers import joined_plans, plans_of_worker
from zbench.proof.verify import verify, verify_step
from zbench.systems.local_packing import LocalPacking
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin

COST = cost_of(3, 2)
SYNC = RoundSync("local_sgd", 2)


def batch(*lengths: int) -> Batch:
    return Batch(np.array(lengths, np.int64), 0, 0)


def operations(plan: Plan) -> list[object]:
    """All that a plan's operations say, whatever numbers its lists have."""
    return [
        *plan.views(plan.forward),
        *plan.views(plan.backward),
        *(getattr(plan.forward, name).dtype for name in COLUMNS),
        *(getattr(plan.blocks, name).tolist() for name in ("seq", "start", "stop", "block", "home")),
        plan.sequences.tolist(),
        plan.lengths.tolist(),
    ]


@pytest.mark.parametrize("system", [Ring, Zeppelin, LocalPacking])
@pytest.mark.parametrize("lengths", [(7, 50, 3, 3, 2, 9), (64, 1), (5,)])
def test_workers_have_their_own_plans_again(system: type[System], lengths: tuple[int, ...]) -> None:
    own = system(worker_cost(COST, SYNC))  # type: ignore[call-arg]
    plans = WorkerPlans(own, 3).plan(batch(*lengths))
    verify_step(batch(*lengths), plans, COST, memory=False)
    seen = []
    for worker in range(3):
        for plan in plans_of_worker(plans, worker, 2):
            verify(plan, worker_cost(COST, SYNC), memory=False)
            assert plan.num_ranks == 2
            seen += plan.sequences.tolist()
            (again,) = plans_of_worker(joined_plans([(), (plan,)]), 1, 2)
            assert operations(again) == operations(plan)
    assert sorted(seen) == list(range(len(lengths)))


def test_sequences_are_dealt_by_tokens() -> None:
    plans = WorkerPlans(LocalPacking(worker_cost(COST, SYNC)), 3).plan(batch(9, 1, 5, 4, 4))
    mine = [sorted(n for one in plans_of_worker(plans, at, 2) for n in one.lengths.tolist()) for at in range(3)]
    assert sorted(mine) == [[1, 5], [4, 4], [9]]


def test_a_plan_that_sends_between_workers_is_refused() -> None:
    plans = Ring(COST).plan(batch(60, 60))
    with pytest.raises(ValueError, match=r"^plans send between workers, or divide a sequence over them: worker 0 has"):
        plans_of_worker(plans, 0, 2)


def test_plans_that_wait_for_other_things_are_not_joined() -> None:
    (plan,) = Ring(worker_cost(COST, SYNC)).plan(batch(8, 8))
    other = plan.with_(in_rounds=not plan.in_rounds)
    assert [one.in_rounds for one in joined_plans([(plan,), (other,), (plan,)])] == [plan.in_rounds, other.in_rounds]
