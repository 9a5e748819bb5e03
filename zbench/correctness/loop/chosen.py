"""Chooses loops: of all layouts, algorithms, schedules and systems every one, each layout once, or few with every pair
of an engine, an algorithm, a schedule, a system and a placement."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

from zbench.correctness.loop.cases import Loop
from zbench.describe.job import ONE_STEP_OFF, STREAMED, SYNCHRONOUS
from zbench.describe.rollouts.stages import ACTOR, COLOCATE, PLACEMENTS, SPLIT, placed_sets
from zbench.describe.rollouts.stages import STANDALONE as STANDALONE_MODELS
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW, HYBRIDFLOW_V, STANDALONE
from zbench.rollouts.experience import GRPO

SYSTEMS = ("verl_balance", "dynamic_cp", "flexsp", "zeppelin", "nodewise")
# engine, training's degrees, generation's, replicas of it, which models share processes, processes of each set behind
# the actor's: four together at most, but for Safe RLHF with six models by themselves
LAYOUTS = (
    (DS_CHAT, "1-2-2", "1-2", 1, COLOCATE, 0),
    (DS_CHAT, "1-4-1", "1-1", 1, COLOCATE, 0),
    (HYBRIDFLOW_V, "1-2-2", "1-2", 1, COLOCATE, 0),
    (HYBRIDFLOW_V, "1-4-1", "1-2", 1, COLOCATE, 0),
    (HYBRIDFLOW_V, "2-2-1", "1-1", 1, COLOCATE, 0),
    (HYBRIDFLOW, "1-2-2", "1-1", 1, COLOCATE, 0),
    (HYBRIDFLOW, "1-4-1", "1-2", 1, COLOCATE, 0),
    (HYBRIDFLOW, "2-2-1", "1-2", 1, COLOCATE, 0),
    (HYBRIDFLOW, "2-1-2", "1-1", 1, COLOCATE, 0),
    (STANDALONE, "1-2-1", "1-1", 2, COLOCATE, 0),
    (STANDALONE, "1-2-1", "1-2", 1, COLOCATE, 0),
    (STANDALONE, "1-1-3", "1-1", 1, COLOCATE, 0),
    (HYBRIDFLOW, "1-2-1", "1-1", 1, SPLIT, 2),
    (DS_CHAT, "1-2-1", "1-2", 1, SPLIT, 1),
    (STANDALONE, "1-1-1", "1-1", 2, SPLIT, 1),
    (HYBRIDFLOW, "1-1-1", "1-1", 1, STANDALONE_MODELS, 1),
)


def every_loop(
    systems: Sequence[str],
    algorithms: Sequence[str] = (GRPO,),
    schedules: Sequence[str] = (SYNCHRONOUS,),
    placements: Sequence[str] = PLACEMENTS,
) -> list[Loop]:
    """Lists the loops of every layout of some placements with every algorithm, schedule and system; one step off policy
    of those alone whose generation has GPUs of its own, streamed of those whose reference has none. Where sets of
    models have GPUs of their own, a model gives rewards."""
    return [
        _loop(*one)
        for one in product(algorithms, LAYOUTS, schedules, systems)
        if one[1][4] in placements
        and (one[2] != ONE_STEP_OFF or one[1][0] == STANDALONE)
        and (one[2] != STREAMED or one[1][4] != STANDALONE_MODELS)
    ]


def _loop(algorithm: str, layout: tuple[str, str, str, int, str, int], schedule: str, system: str) -> Loop:
    engine, train, generate, replicas, placement, each = layout
    degrees = TrainDegrees.of(train), GenerateDegrees.of(generate)
    alone = Loop(engine, *degrees, replicas, system, algorithm, schedule, placement, (), placement != COLOCATE)
    sets = placed_sets(placement, (ACTOR, *alone.others))
    return replace(alone, beside=(each,) * (len(sets) - 1))


def each_layout(*given: Sequence[str]) -> list[Loop]:
    """Lists a loop of each layout, with algorithms, schedules and systems in turns. given: as of `every_loop`."""
    every, found = every_loop(*given), list[Loop]()
    for layout in dict.fromkeys(map(_layout, every)):
        some = [one for one in every if _layout(one) == layout]
        found.append(min(some, key=lambda one: _uses(one, found)))
    return found


def paired_loops(*given: Sequence[str]) -> list[Loop]:
    """Lists few loops that have every layout, and every pair of an engine, an algorithm, a schedule, a system and a
    placement that there is. They are chosen one by one, each with the most that is still missing. given: as of
    `every_loop`."""
    every = every_loop(*given)
    missing, found = {pair for one in every for pair in _pairs(one)}, list[Loop]()
    while missing:
        best = max(every, key=lambda one: len(missing & _pairs(one)))
        missing -= _pairs(best)
        found.append(best)
    return found


def _layout(one: Loop) -> tuple[object, ...]:
    return one.engine, one.train, one.generate, one.replicas, one.placement


def _pairs(one: Loop) -> set[tuple[object, ...]]:
    """Returns the pairs that a loop has, and its layout."""
    return {*combinations((one.engine, one.algorithm, one.schedule, one.system, one.placement), 2), _layout(one)}


def _uses(one: Loop, found: Sequence[Loop]) -> int:
    """Counts what loops that were found have in common with one."""
    return sum(
        sum(getattr(one, name) == getattr(other, name) for name in ("algorithm", "schedule", "system"))
        for other in found
    )
