"""What systems, workloads and executors may offer besides what is asked of all of them."""

import inspect

import numpy as np
import pytest

from zbench.cost.cost import Cost
from zbench.interfaces import abilities
from zbench.interfaces.dealt import Dealt
from zbench.systems.allgather import AllGather
from zbench.systems.bytescale.planner import ByteScale
from zbench.systems.dp_balanced import DpBalanced
from zbench.systems.static_best.planner import StaticBest
from zbench.workloads.fixed import Fixed

SYSTEMS = {"UsesPackages", "PlansStages", "Chooses", "HasLimits", "HasSize"}
ALL = {name for name, one in inspect.getmembers(abilities, inspect.isclass) if one.__module__ == abilities.__name__}


def held(part: object) -> set[str]:
    return {name for name in ALL if isinstance(part, getattr(abilities, name))}


@pytest.mark.parametrize(
    ("system", "has"),
    [
        (AllGather, {"HasSize"}),
        (ByteScale, {"PlansStages"}),
        (DpBalanced, {"HasLimits"}),
    ],
)
def test_systems_have_the_abilities_that_they_offer(system: type, has: set[str], uneven: Cost) -> None:
    assert held(system(uneven)) & SYSTEMS == has
    assert held(Dealt(system(uneven), 2)) == {"UsesPackages"}  # those of the system inside, of which there are none
    assert Dealt(system(uneven), 2).packages == ()


def test_a_system_that_chooses_before_a_run_is_told_by_choose_and_planner(uneven: Cost) -> None:
    assert held(StaticBest(uneven)) & SYSTEMS == {"Chooses"}

    class Undecided:
        def choose(self, study: object) -> None: ...

    assert held(Undecided()) == set()


def test_workloads_have_the_abilities_that_they_offer() -> None:
    workload = Fixed(seed=0, tokens=64, length=8)
    assert held(workload) == {"HasContextLimit", "DrawsLengths"}
    assert np.asarray(workload.draw(np.random.default_rng(0), 3)).tolist() == [8, 8, 8]


def test_every_ability_says_what_it_is_for() -> None:
    assert ALL >= SYSTEMS
    for name in ALL:
        assert inspect.getdoc(getattr(abilities, name)), name
