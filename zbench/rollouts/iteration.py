"""The seconds of an iteration of rollouts by its schedule, of the seconds that its stages take by themselves.

synchronous: a stage begins when the one before has ended everywhere. streamed: a replica that has generated its
sequences scores these at once, by itself, while others still generate. one_step_off: the next batch is generated on
nodes of its own while this one is scored and trained on; weights are brought when both have ended.
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.job import ONE_STEP_OFF, STREAMED

RESHARD, GENERATE, SCORE, TRAIN = "reshard", "generate", "score", "train"


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """The seconds of an iteration's stages by themselves. generate: of every replica, float64 [replicas]. score_apart:
    of every replica that scores what it has generated. score: of each model, on all GPUs. train: of each model."""

    reshard: float
    generate: Floats
    score_apart: Floats
    score: float
    train: float


@dataclass(frozen=True, slots=True)
class ScheduledIteration:
    """An iteration's seconds. generated: of every replica, until it waits for others, float64 [replicas]; streamed, its
    scores included. waited: the part in which training waits for generation that runs beside it, or before it. beside:
    what the next iteration's generation may hide behind. score, train: of all models."""

    seconds: float
    generated: Floats
    waited: float
    beside: float
    score: float
    train: float


def scheduled(
    schedule: str, stages: StageSeconds, models: tuple[int, int], beside: float
) -> ScheduledIteration:
    """Returns an iteration. models: that score, and that are trained. beside: seconds of the iteration before, in which
    this one's generation was under way; 0 for the first."""
    scoring, training = models
    train, streamed = training * stages.train, schedule == STREAMED
    score = 0.0 if streamed else scoring * stages.score
    generated = stages.generate + (stages.score_apart * scoring if streamed else 0.0)
    hidden = beside if schedule == ONE_STEP_OFF else 0.0
    waited = max(0.0, float(np.max(generated)) - hidden)
    seconds = stages.reshard + waited + score + train
    return ScheduledIteration(seconds, generated, waited, score + train, score, train)
