"""Engines that bring weights from training to generation on the same GPUs: who gathers what from whom.

ds_chat: DeepSpeed-Chat's hybrid engine. Training has a shard of every weight on each GPU (ZeRO-3), each gathers all.
hybridflow_v: each gathers all weights inside its replica of training; generation groups are consecutive GPUs.
hybridflow: generation groups are GPUs at a stride, so that the shards of consecutive ones, a micro data-parallel group,
    make up what all of them generate with; these gather from each other (HybridFlow, arXiv 2409.19256, section 5).
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.weights import Weight

DS_CHAT, HYBRIDFLOW_V, HYBRIDFLOW = ENGINES = ("ds_chat", "hybridflow_v", "hybridflow")


@dataclass(frozen=True)
class WeightShards:
    """The weights that every GPU has: of the layers of its stage, and of each that is cut, parts [begins, ends).

    parts: that a cut weight has. num_stages; stages, begins, ends: int64 [GPUs]. cuts_all: whether norms are cut, too.
    """

    parts: int
    num_stages: int
    stages: Ints
    begins: Ints
    ends: Ints
    cuts_all: bool = False

    def holds(self, weight: Weight, num_layers: int) -> Flags:
        """Returns which parts of a weight each GPU has, bool [GPUs, parts]."""
        here = self.stages == weight.layer * self.num_stages // num_layers
        every = np.arange(self.parts)
        mine = (self.begins[:, None] <= every) & (every < self.ends[:, None])
        held: Flags = here[:, None] & (mine | (not weight.is_cut and not self.cuts_all))
        return held


@dataclass(frozen=True)
class Resharding:
    """A change from training to generation. groups: int64 [groups, GPUs of one], GPUs that gather from each other.
    gathers_all: whether all weights, or what their members generate with."""

    train: WeightShards
    generate: WeightShards
    groups: Ints
    gathers_all: bool


def resharding_of(engine: str, train: TrainDegrees, generate: GenerateDegrees) -> Resharding:
    """Returns the change of an engine, one of ENGINES. Degrees: those of generation divide those of training."""
    replicas, gpus = train.replicas, train.num_gpus
    stage, slice_ = np.empty((2, gpus), np.int64)
    stage[replicas] = np.repeat(np.arange(train.pipeline), train.tensor)
    slice_[replicas] = np.tile(np.arange(train.tensor), train.pipeline)
    begin = WeightShards(train.tensor, train.pipeline, stage, slice_, slice_ + 1)
    if engine == HYBRIDFLOW:
        of_stage, of_slice = stage // (train.pipeline // generate.pipeline), slice_ // (train.tensor // generate.tensor)
        micro = (
            np.arange(gpus) // train.tensor % train.data * generate.pipeline + of_stage
        ) * generate.tensor + of_slice
        groups = np.argsort(micro, kind="stable").reshape(int(micro.max()) + 1, -1)
        return Resharding(begin, _shards(train.tensor, generate, of_stage, of_slice), groups, False)
    number = stage * train.tensor + slice_  # of a GPU in its replica
    of_stage, of_slice = number // generate.tensor % generate.pipeline, number % generate.tensor
    if engine == HYBRIDFLOW_V:
        return Resharding(begin, _shards(train.tensor, generate, of_stage, of_slice), replicas, True)
    every = np.arange(gpus)
    begin = WeightShards(gpus, 1, 0 * every, every, every + 1, cuts_all=True)
    return Resharding(begin, _shards(gpus, generate, of_stage, of_slice), every[None], True)


def _shards(parts: int, generate: GenerateDegrees, stage: Ints, slice_: Ints) -> WeightShards:
    each = parts // generate.tensor
    return WeightShards(parts, generate.pipeline, stage, slice_ * each, (slice_ + 1) * each)
