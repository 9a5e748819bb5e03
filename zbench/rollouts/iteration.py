"""The seconds of an iteration of rollouts by its schedule, of the seconds that its stages take by themselves.

synchronous: a stage begins when the one before has ended everywhere. streamed: replicas that have generated all of
theirs score sequences that have ended, whosever they were, one after another, while others still generate.
one_step_off: the next batch is generated on nodes of its own while this one is scored and trained on; weights are
brought when both have ended.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.job import ONE_STEP_OFF

RESHARD, GENERATE, SCORE, TRAIN = "reshard", "generate", "score", "train"


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """The seconds of an iteration's stages by themselves. generated: until all sequences have ended, and are scored
    where they are meanwhile. score, train: of all models together."""

    reshard: float
    generated: float
    score: float
    train: float


@dataclass(frozen=True, slots=True)
class ScheduledIteration:
    """An iteration's seconds. waited: those of generation that nothing hides. beside: what the next iteration's
    generation may hide behind."""

    seconds: float
    waited: float
    beside: float


def scheduled_iteration(schedule: str, stages: StageSeconds, beside: float) -> ScheduledIteration:
    """Returns an iteration. beside: seconds of the iteration before, in which this one's generation was under way; 0
    for the first."""
    waited = max(0.0, stages.generated - (beside if schedule == ONE_STEP_OFF else 0.0))
    after = stages.score + stages.train
    return ScheduledIteration(stages.reshard + waited + after, waited, after)


def scored_meanwhile(ends: Floats, free: Floats, seconds: Floats) -> tuple[float, Floats]:
    """Scores sequences on replicas that are free, in the order in which they ended, each on the one that is free first.

    ends, seconds: when each sequence has ended and what scoring it takes, float64 [sequences]; free: when each replica
    is, float64 [replicas]. Returns (when all is scored, the seconds in which each replica scores).
    """
    ready, spent, last = [(time, number) for number, time in enumerate(free.tolist())], np.zeros(len(free)), 0.0
    heapq.heapify(ready)
    for one in np.argsort(ends, kind="stable").tolist():
        time, number = ready[0]
        end = max(time, float(ends[one])) + float(seconds[one])
        heapq.heapreplace(ready, (end, number))
        spent[number] += seconds[one]
        last = max(last, end)
    return max(last, float(free.max())), spent
