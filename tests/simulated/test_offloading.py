"""Plans of a system with something of layers on hosts: the best of those made with and without what they wait for, and,
where the number of layers is open, for several numbers."""

from dataclasses import replace
from math import inf
from typing import ClassVar

import numpy as np
import pytest

from tests.cost.test_host_copies import linked
from tests.cost.test_layers_on_hosts import hosted
from zbench.cost.cost import Cost
from zbench.cost.memory.peak import step_bytes
from zbench.describe.batch import Batch
from zbench.interfaces.dealt import BestPlans, undealt
from zbench.interfaces.protocols import System
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.simulated.offloading import NOTE, HostPrices, chosen_offload, planned_on_hosts
from zbench.systems.bytescale.planner import ByteScale
from zbench.systems.local_packing import LocalPacking

BATCH = Batch(np.full(32, 4096), 0, 0)
OF = {"num_layers": 8, "vocab": 1000, "sharding": "zero3", "offload": "activations", "offload_layers": "auto"}


def tight(rate: float, fitting: int = 4) -> Cost:
    """With a link of so many bytes a second, and room for BATCH in one micro-batch with so many layers on hosts."""
    cost = linked(hosted(**OF), rate)
    plans = LocalPacking(hosted(**OF)).plan(BATCH)
    assert len(plans) == 1
    need = step_bytes(plans[0], replace(cost, model=cost.model.offloading(fitting))).max()
    device = replace(cost.cluster.device, memory_bytes=float(need))
    return replace(cost, cluster=replace(cost.cluster, device=device))


@pytest.mark.parametrize(("rate", "layers"), [(1e8, 0), (1e12, 4)])
def test_a_slow_link_takes_more_micro_batches_and_a_quick_one_more_layers(rate: float, layers: int) -> None:
    cost = tight(rate)
    system = planned_on_hosts(LocalPacking, cost)
    assert isinstance(system, BestPlans)
    plans = system.plan(BATCH)
    assert max(chosen_offload(plans, cost, 1, 1)) == layers
    assert (len(plans) > 1) == (layers == 0)
    # By the clock no other of them is quicker.
    clock = Simulated(cost)
    seconds = [clock.step(BATCH, one.plan(BATCH)).seconds for one in system.tried.values()]
    assert clock.step(BATCH, plans).seconds == pytest.approx(min(seconds))
    assert max(seconds) > (1.002 if layers else 1.05) * min(seconds)


def test_notes_tell_what_plans_were_made_for() -> None:
    cost = tight(1e8)
    notes = planned_on_hosts(LocalPacking, cost).plan(BATCH)[0].notes
    assert notes[NOTE] == "0_layers"
    told = {name: notes[f"{NOTE}_{name}_seconds"] for name in ("0_layers", "4_layers", "computed", "copied")}
    assert min(told, key=lambda name: float(told[name])) == "0_layers"


def test_of_a_number_of_layers_plans_are_made_with_what_they_wait_for_and_without() -> None:
    cost = hosted(**{**OF, "offload_layers": 3})
    made: list[Cost] = []

    def make(one: Cost) -> System:
        made.append(one)
        return LocalPacking(one)

    system = planned_on_hosts(make, cost)
    assert isinstance(system, BestPlans)
    assert list(system.tried) == ["computed", "copied"]
    assert [one.waits_for_hosts for one in made] == [True, False]
    assert undealt(system) is system.system
    assert undealt(system) == LocalPacking(cost)


def test_of_plans_that_take_as_long_those_in_the_fewest_micro_batches_are_taken() -> None:
    """All is hidden, so that estimates are sums of the same seconds."""
    cost = linked(hosted(**OF), 1e15)
    one, two = LocalPacking(cost).plan(BATCH), LocalPacking(cost, pack_tokens=4096 * 2).plan(BATCH)
    assert (len(one), len(two)) == (1, 2)
    prices = HostPrices(cost)
    assert prices.price(BATCH, two) != prices.price(BATCH, one)
    same = {"first": two, "second": one, "third": one}
    tied = _Tied(cost)
    assert len(tied.best(BATCH, same)) == 1
    assert tied.best(BATCH, same)[0].notes[NOTE] == "second"


def test_plans_without_waiting_are_left_for_what_an_estimate_knows_to_be_shorter() -> None:
    cost = linked(hosted(**OF), 1e15)
    one, two = LocalPacking(cost).plan(BATCH), LocalPacking(cost, pack_tokens=4096 * 2).plan(BATCH)
    for shorter, taken in ((0.995, "computed"), (0.98, "copied")):
        prices = _Shorter(cost)
        prices.ratio.append(shorter)
        found = prices.best(BATCH, {"computed": one, "copied": two})
        assert found[0].notes[NOTE] == taken
        prices.ratio.clear()


class _Shorter(HostPrices):
    """Plans of two micro-batches have another estimate than those of one."""

    __slots__ = ()
    ratio: ClassVar[list[float]] = []

    def price(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        return self.ratio[0] if len(plans) == 2 else 1.0


class _Tied(HostPrices):
    """Estimates that are the same but for rounding."""

    __slots__ = ()

    def price(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        return 1.0 if len(plans) == 2 else 1.0 + 1e-15


def test_what_fits_by_no_number_is_planned_with_as_many_as_can_be() -> None:
    cost = tight(1e9)
    none = replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=1e6)))
    prices = HostPrices(none)
    plans = {name: LocalPacking(cost).plan(BATCH) for name in ("0_layers", "copied")}
    assert prices.price(BATCH, plans["copied"]) == inf
    found = prices.best(BATCH, plans)
    assert found[0].notes[NOTE] == "copied"


def test_nothing_is_planned_twice_without_hosts_or_by_the_papers_own_choice() -> None:
    here = hosted(num_layers=8)
    assert isinstance(planned_on_hosts(LocalPacking, here), LocalPacking)
    optimizer = hosted(num_layers=8, offload="optimizer", sharding="zero3")
    assert isinstance(planned_on_hosts(LocalPacking, optimizer), LocalPacking)
    cost = hosted(**OF)
    assert isinstance(planned_on_hosts(ByteScale, cost), BestPlans)
    published = planned_on_hosts(lambda one: ByteScale(one, tokens_per_rank="published"), cost)
    assert isinstance(published, ByteScale)
