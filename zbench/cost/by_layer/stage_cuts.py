"""Cuts of layers into the stages of a pipeline: the two balanced ones, and moves of layers between neighbours.

Galvatron-BMW's workload balance has two aims, as stages that hold more micro-batches have more memory to spare for one
and less time for the other (Wang et al. 2023, arXiv 2307.02031, section 5). A cut is the number of layers of every
stage.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import inf

Cut = tuple[int, ...]


def even_cut(layers: int, stages: int) -> Cut:
    """Returns stages of as many layers each as can be, the later ones one more where it does not divide."""
    return tuple((at + 1) * layers // stages - at * layers // stages for at in range(stages))


def balanced_cut(layers: int, stages: int, weight: Callable[[int, int], float]) -> Cut:
    """Returns the cut in which the heaviest stage is lightest. weight: of (stage, its layers), at least one layer."""

    @cache
    def best(stage: int, left: int) -> tuple[float, Cut]:
        if stage + 1 == stages:
            return weight(stage, left), (left,)
        found: tuple[float, Cut] = (inf, ())
        for mine in range(1, left - (stages - stage - 1) + 1):
            heavy, rest = best(stage + 1, left - mine)
            found = min(found, (max(weight(stage, mine), heavy), (mine, *rest)))
        return found

    return best(0, layers)[1]


def balance(weights: Sequence[float]) -> float:
    """Returns the degree of balance, 1 - the heaviest stage's share of all: the higher, the more even."""
    return 1 - max(weights) / sum(weights)


def pipeline_seconds(stages: Sequence[float], micro_batches: int) -> float:
    """Returns the seconds of micro-batches that go through stages of these seconds, one after another; infinite where a
    stage's are."""
    slowest = max(stages)
    return inf if slowest == inf else sum(stages) + (micro_batches - 1) * slowest


def moved_cut(cut: Cut, seconds: Callable[[int, int], float], micro_batches: int) -> Cut:
    """Returns a cut after moves: a layer of the slowest stage goes to a neighbour as long as that then takes less than
    the slowest did, it fits, and the pipeline takes less. seconds: of (stage, its layers), infinite if they do not
    fit."""
    while True:
        times = [seconds(stage, count) for stage, count in enumerate(cut)]
        slowest = max(range(len(cut)), key=times.__getitem__)
        found = (pipeline_seconds(times, micro_batches), cut)
        for other in (slowest - 1, slowest + 1):
            if not 0 <= other < len(cut) or cut[slowest] == 1:
                continue
            changed = list(cut)
            changed[slowest] -= 1
            changed[other] += 1
            theirs = [seconds(stage, count) for stage, count in enumerate(changed)]
            if theirs[other] < times[slowest]:
                found = min(found, (pipeline_seconds(theirs, micro_batches), tuple(changed)))
        if found[1] == cut:
            return cut
        cut = found[1]
