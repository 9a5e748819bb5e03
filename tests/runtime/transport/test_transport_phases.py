"""Messages in batches, over gloo: exact, and as many bytes as the simulator charges; also of ranks that stand still in
every batch until it is complete, and with nothing but their order to tell messages apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.variants import SYSTEMS, Variant
from tests.runtime.phased import Seen
from tests.runtime.test_conformance import DEVICE, MODEL
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.passes import order, reverse, route
from zbench.passes.reverse import MODES
from zbench.plans.plan import Plan
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.traffic import Sent, expected
from zbench.systems.ring import Ring

LENGTHS = ((2, 3, 5, 7), (200, *[2] * 12), (40, 9))


@contextmanager
def ranks(
    monkeypatch: pytest.MonkeyPatch, nodes: int, gpus: int, heads: tuple[int, int]
) -> Iterator[tuple[Cost, LocalFleet]]:
    """A NIC for every rank, so that there is something to spread."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = replace(MODEL, num_layers=1, num_heads=heads[0], num_kv_heads=heads[1])
    cost = Cost(Cluster("test", nodes, gpus, gpus, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE), model)
    with LocalFleet(nodes * gpus, "tests.runtime.phased:Phased", cost, timeout=60) as fleet:
        yield cost, fleet


def check(cost: Cost, fleet: LocalFleet, plan: Plan, how: str) -> None:
    seen: list[Seen] = fleet.call("attend", plan, how)
    assert max(one.worst for one in seen) < 1e-12
    inside, across = ([(one.sent[way], one.received[way]) for one in seen] for way in (0, 1))
    assert Sent.of(cost.cluster, inside, across).differs(expected((plan,), cost)) == ""


def plans(cost: Cost, which: Variant) -> Iterator[Plan]:
    for lengths in LENGTHS:
        try:
            system = which.make(cost)
        except (ValueError, pytest.skip.Exception):  # this cluster cannot have it, or its package is absent
            return
        yield from (plan for plan in system.plan(Batch(np.array(lengths), 0, 0)) if not plan.attention)


@pytest.mark.parametrize(("nodes", "gpus", "heads"), [(2, 2, (4, 2)), (2, 3, (6, 2))])
def test_every_system_is_exact_in_batches(
    monkeypatch: pytest.MonkeyPatch, nodes: int, gpus: int, heads: tuple[int, int]
) -> None:
    with ranks(monkeypatch, nodes, gpus, heads) as (cost, fleet):
        done = 0
        for which in SYSTEMS:
            for number, plan in enumerate(plans(cost, which)):
                check(cost, fleet, plan, "standing" if number % 2 else "batches")
                done += 1
        assert done >= 8 * len(LENGTHS)


def test_routed_transfers_are_exact_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(monkeypatch, 2, 3, (4, 4)) as (cost, fleet):
        for mode in MODES:
            (laid,) = Ring(cost).plan(Batch(np.array([250, 1, 31]), 0, 0))
            plan = route(
                reverse(laid.with_(backward=laid.backward.take(np.zeros(0, np.int64)), backward_mode=""), mode), cost
            )
            assert (plan.forward.via >= 0).any()
            assert (plan.backward.via >= 0).any()
            for how, one in (("batches", plan), ("standing", order(plan, cost)), ("threads", plan)):
                check(cost, fleet, one, how)
