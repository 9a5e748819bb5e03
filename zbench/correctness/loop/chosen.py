"""Chooses loops: of all layouts, algorithms, schedules and systems every one, each layout once, or few with every pair
of an engine, an algorithm, a schedule and a system."""

from collections.abc import Sequence
from itertools import combinations, product

from zbench.correctness.loop.cases import Loop
from zbench.describe.job import ONE_STEP_OFF, SYNCHRONOUS
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW, HYBRIDFLOW_V, STANDALONE
from zbench.rollouts.experience import GRPO

SYSTEMS = ("verl_balance", "dynamic_cp", "flexsp", "zeppelin", "nodewise")
# engine, training's degrees, generation's, replicas of it: on up to four processes
LAYOUTS = (
    (DS_CHAT, "1-2-2", "1-2", 1),
    (DS_CHAT, "1-4-1", "1-1", 1),
    (HYBRIDFLOW_V, "1-2-2", "1-2", 1),
    (HYBRIDFLOW_V, "1-4-1", "1-2", 1),
    (HYBRIDFLOW_V, "2-2-1", "1-1", 1),
    (HYBRIDFLOW, "1-2-2", "1-1", 1),
    (HYBRIDFLOW, "1-4-1", "1-2", 1),
    (HYBRIDFLOW, "2-2-1", "1-2", 1),
    (HYBRIDFLOW, "2-1-2", "1-1", 1),
    (STANDALONE, "1-2-1", "1-1", 2),
    (STANDALONE, "1-2-1", "1-2", 1),
    (STANDALONE, "1-1-3", "1-1", 1),
)


def every_loop(
    systems: Sequence[str], algorithms: Sequence[str] = (GRPO,), schedules: Sequence[str] = (SYNCHRONOUS,)
) -> list[Loop]:
    """Lists the loops of every layout with every algorithm, schedule and system; one step off policy of those alone
    whose generation has GPUs of its own."""
    layouts = [(engine, TrainDegrees.of(p), GenerateDegrees.of(g), replicas) for engine, p, g, replicas in LAYOUTS]
    return [
        Loop(*layout, system, algorithm, schedule)
        for algorithm, layout, schedule, system in product(algorithms, layouts, schedules, systems)
        if schedule != ONE_STEP_OFF or layout[0] == STANDALONE
    ]


def each_layout(*given: Sequence[str]) -> list[Loop]:
    """Lists a loop of each layout, with algorithms, schedules and systems in turns. given: as of `every_loop`."""
    every, found = every_loop(*given), list[Loop]()
    for layout in dict.fromkeys(map(_layout, every)):
        some = [one for one in every if _layout(one) == layout]
        found.append(min(some, key=lambda one: _uses(one, found)))
    return found


def paired_loops(*given: Sequence[str]) -> list[Loop]:
    """Lists few loops that have every layout, and every pair of an engine, an algorithm, a schedule and a system that
    there is. They are chosen one by one, each with the most that is still missing. given: as of `every_loop`."""
    every = every_loop(*given)
    missing, found = {pair for one in every for pair in _pairs(one)}, list[Loop]()
    while missing:
        best = max(every, key=lambda one: len(missing & _pairs(one)))
        missing -= _pairs(best)
        found.append(best)
    return found


def _layout(one: Loop) -> tuple[object, ...]:
    return one.engine, one.train, one.generate, one.replicas


def _pairs(one: Loop) -> set[tuple[object, ...]]:
    """Returns the pairs that a loop has, and its layout."""
    return {*combinations((one.engine, one.algorithm, one.schedule, one.system), 2), _layout(one)}


def _uses(one: Loop, found: Sequence[Loop]) -> int:
    """Counts what loops that were found have in common with one."""
    return sum(
        sum(getattr(one, name) == getattr(other, name) for name in ("algorithm", "schedule", "system"))
        for other in found
    )
