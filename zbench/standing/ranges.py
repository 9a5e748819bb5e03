"""Ratios over worlds: their ranges, the order of systems that survives, and the pairs that turn. Pure: no torch.

A ratio is nominal, its range the least and the greatest over all worlds, the nominal one among them. All systems of an
order are compared on the same batches of the same workloads in every world (zbench.describe.worlds).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log

from zbench.describe.worlds import NOMINAL
from zbench.standing.cells import Systems, Worlds, common_workloads, gain

SAME = 1e-9  # of a ratio's logarithm: nearer to each other than that are two systems with the same plans


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a ratio over worlds, and the worlds of its ends."""

    least: float
    least_world: str
    greatest: float
    greatest_world: str


@dataclass(frozen=True, slots=True)
class Reversal:
    """A pair of systems whose order is another in some worlds. nominal: how many times as fast `ahead` is as `behind`.

    worlds: that ratio where it is below 1 (of a pair that is level nominally: where it is not 1), least first.
    """

    ahead: str
    behind: str
    nominal: float
    worlds: Mapping[str, float]


def over_worlds(worlds: Worlds, system: str, over: str) -> Range | None:
    """Returns the range of how many times as fast as `over` a system is; None without a nominal ratio or without other
    worlds.

    A world in which one of the two lacks a workload that the nominal ratio has, or its memory, is not counted.
    """
    found = {name: ratio for name in worlds if (ratio := _ratio(worlds, name, system, over)) is not None}
    if NOMINAL not in found or len(found) < 2:
        return None
    least, greatest = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    return Range(found[least], least, found[greatest], greatest)


def uncounted(worlds: Worlds, over: str) -> list[str]:
    """Lists, as 'SYSTEM in WORLD', what over_worlds does not count of systems that have a nominal ratio."""
    nominal = [name for name in worlds.get(NOMINAL, {}) if _ratio(worlds, NOMINAL, name, over) is not None]
    return [f"{name} in {world}" for world in worlds for name in nominal if _ratio(worlds, world, name, over) is None]


def _ratio(worlds: Worlds, world: str, system: str, over: str) -> float | None:
    nominal, systems = worlds.get(NOMINAL, {}), worlds[world]
    if not (system in systems and over in systems and system in nominal and over in nominal):
        return None
    wanted = common_workloads(nominal[system], nominal[over])
    if set(wanted) - set(common_workloads(systems[system], systems[over])):
        return None
    for name in wanted:
        if nominal[system][name].digests != systems[system][name].digests:
            raise ValueError(f"world {world} saw other batches of {name} than the nominal one; they cannot be compared")
    found = gain(*({name: systems[one][name] for name in wanted} for one in (system, over)))
    return None if found is None else found[0]


def scores(worlds: Worlds, workloads: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns, by world and system, the mean over workloads of the logarithm of summed seconds: who has less is ahead.

    Of systems that fit the memory on all `workloads` in every world.
    """
    whole = [name for name in worlds[NOMINAL] if all(_fits(systems, name, workloads) for systems in worlds.values())]
    return {
        world: {name: sum(log(sum(systems[name][w].seconds)) for w in workloads) / len(workloads) for name in whole}
        for world, systems in worlds.items()
    }


def _fits(systems: Systems, name: str, workloads: Sequence[str]) -> bool:
    cells = systems.get(name, {})
    return all(workload in cells and not cells[workload].out_of_memory for workload in workloads)


def surviving_order(found: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Returns the order that survives every world, first ahead: groups, each system of which is ahead of all in later
    groups whatever the world. In a group, in nominal order, are systems of which pairs turn or are level.

    found: as of `scores`.
    """
    names = sorted(found[NOMINAL], key=found[NOMINAL].__getitem__)
    groups: list[list[str]] = [[]]
    for at, name in enumerate(names):
        groups[-1].append(name)
        if all(
            of[later] - of[here] > SAME
            for of in found.values()
            for here in names[: at + 1]
            for later in names[at + 1 :]
        ):
            groups.append([])
    return [group for group in groups if group]


def reversals(found: Mapping[str, Mapping[str, float]]) -> list[Reversal]:
    """Returns every pair that does not keep its order in all worlds. found: as of `scores`."""
    names = sorted(found[NOMINAL], key=found[NOMINAL].__getitem__)
    out = []
    for ahead, behind in combinations(names, 2):
        ratios = {world: of[behind] - of[ahead] for world, of in found.items()}
        level = abs(ratios[NOMINAL]) <= SAME
        other = {world: value for world, value in ratios.items() if value < -SAME or (level and value > SAME)}
        if other:
            turned = {world: exp(value) for world, value in sorted(other.items(), key=lambda one: one[1])}
            out.append(Reversal(ahead, behind, exp(ratios[NOMINAL]), turned))
    return out
