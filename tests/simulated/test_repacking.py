"""Rows that all-to-alls lay out anew: attention's kernels do it, and a step's account tells it apart."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.oracles import small
from tests.helpers.strategies import batches, cases
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import RECOMPUTE
from zbench.interfaces.result import StepResult
from zbench.plans.area import work
from zbench.plans.plan import ATTEND, Plan
from zbench.simulated.executor import Simulated
from zbench.systems.mesh import Mesh
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses

BOOKED = ("attention_seconds", "communication_seconds", "exposed_seconds", "seconds_for")


def without_repacking(cost: Cost, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
    """A step's result with repacking as part of attention."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulated, "_repacked", lambda *_: np.zeros(cost.cluster.num_ranks))
        return Simulated(cost).step(batch, plans)


@given(cases(nodes=2, gpus=4))
def test_repacking_is_a_part_of_attends_of_some_heads_alone(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        attend, amount = work(plan, ops)
        repacking = cost.repacking_seconds(plan, ops, attend)
        whole = (ops.head_hi - ops.head_lo)[attend] == plan.num_heads
        assert (repacking[whole] == 0).all()
        assert (repacking >= 0).all()
        kernel = cost.attend_seconds(plan, ops, attend, amount, backward) - repacking
        assert (kernel >= cost.cluster.device.call_seconds * (1 - 1e-12)).all()


@settings(max_examples=20)
@given(st.data(), st.sampled_from(RECOMPUTE))
def test_only_what_is_booked_changes(data: st.DataObject, recompute: str) -> None:
    """The step takes as long to the last bit, and what attention is less, communication and exposed time are more."""
    cost = small(2, 2)
    cost = replace(cost, model=replace(cost.model, recompute=recompute))
    batch = data.draw(batches(2000))
    plans = Ulysses(cost).plan(batch)
    before, now = without_repacking(cost, batch, plans), Simulated(cost).step(batch, plans)
    for name in type(now).__dataclass_fields__:
        assert name in BOOKED or getattr(now, name) == getattr(before, name)
    less = np.array(before.attention_seconds) - np.array(now.attention_seconds)
    assert (less > 0).all()
    more = np.array(now.exposed_seconds) - np.array(before.exposed_seconds)
    assert more == pytest.approx(less, rel=1e-9, abs=1e-15)
    moving = np.minimum(np.array(before.communication_seconds) + less, now.seconds)
    assert now.communication_seconds == pytest.approx(moving, rel=1e-9)


def test_repacking_of_ulysses_by_hand() -> None:
    """Per layer and direction q and o of a rank's heads, k and v of its kv heads, all tokens, at the strided rate."""
    cost = small(1, 4)
    batch = Batch(np.array([4000, 200]), 0, 0)
    plans = Ulysses(cost).plan(batch)
    model = cost.model
    rows = 2 * model.num_heads / 4 + 2 * model.num_kv_heads / 4
    size = 4200 * rows * model.head_dim * model.element_bytes
    seconds = 2 * model.num_layers * size / cost.cluster.device.strided_rate
    found = Simulated(cost).step(batch, plans)
    assert found.seconds_for["repacking"] == pytest.approx(np.full(4, seconds))
    less = np.array(without_repacking(cost, batch, plans).attention_seconds) - found.attention_seconds
    assert less == pytest.approx(np.full(4, seconds))


@pytest.mark.parametrize("system", [Ring, lambda cost: Mesh(cost, "allgather", 4)])
def test_a_ring_and_an_all_gather_repack_nothing(system: type[Ring]) -> None:
    cost, batch = small(1, 4), Batch(np.array([4000, 200]), 0, 0)
    plans = system(cost).plan(batch)
    assert all((plan.forward.kind == ATTEND).any() for plan in plans)
    assert "repacking" not in Simulated(cost).step(batch, plans).seconds_for
