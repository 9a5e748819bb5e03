"""Engines that bring weights from training to generation: who gathers what from whom.

ds_chat: DeepSpeed-Chat's hybrid engine. Training has a shard of every weight on each GPU (ZeRO-3), each gathers all.
hybridflow_v: each gathers all weights inside its replica of training; generation groups are consecutive GPUs.
hybridflow: generation groups are GPUs at a stride, so that the shards of consecutive ones, a micro data-parallel group,
    make up what all of them generate with; these gather from each other (HybridFlow, arXiv 2409.19256, section 5).
standalone: generation has GPUs of its own behind those of training. Replica r of generation gets what it generates with
    from replica r of training, counted round; the others take GPUs in turns.
"""

from dataclasses import dataclass
from math import lcm

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.weights import Weight

# Of generation on the GPUs of training; and on GPUs of its own.
DS_CHAT, HYBRIDFLOW_V, HYBRIDFLOW = ENGINES = ("ds_chat", "hybridflow_v", "hybridflow")
STANDALONE = "standalone"
EVERY_ENGINE = (*ENGINES, STANDALONE)
NOWHERE = -1  # the stage of GPUs that have none


@dataclass(frozen=True)
class WeightShards:
    """The weights that every GPU has: of the layers of its stage, and of each that is cut, parts [begins, ends).

    parts: that a cut weight has. num_stages; stages (NOWHERE of GPUs without weights), begins, ends: int64 [GPUs].
    cuts_all: whether norms are cut, too.
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
    """A change from training to generation. groups: GPUs that gather from each other, by group.
    gathers_all: whether all weights, or what their members generate with."""

    train: WeightShards
    generate: WeightShards
    groups: tuple[Ints, ...]
    gathers_all: bool

    @property
    def generation_groups(self) -> list[list[int]]:
        """The GPUs that generate together, which have a slice each: the first of every slice, then the second ones, as
        they are numbered. Of generation without stages."""
        own = self.generate
        gpus = np.flatnonzero(own.stages != NOWHERE)
        slices = [gpus[own.begins[gpus] == begin].tolist() for begin in np.unique(own.begins[gpus])]
        return [list(one) for one in zip(*slices, strict=True)]


def resharding_of(engine: str, train: TrainDegrees, generate: GenerateDegrees, replicas: int = 1) -> Resharding:
    """Returns the change of an engine, one of EVERY_ENGINE. Degrees: those of generation divide those of training,
    unless it has GPUs of its own. replicas: of generation on these."""
    if engine == STANDALONE:
        return _on_own_gpus(train, generate, replicas)
    of_replicas, gpus = train.replicas, train.num_gpus
    stage, slice_ = train.places
    begin = WeightShards(train.tensor, train.pipeline, stage, slice_, slice_ + 1)
    if engine == HYBRIDFLOW:
        of_stage, of_slice = stage // (train.pipeline // generate.pipeline), slice_ // (train.tensor // generate.tensor)
        micro = (
            np.arange(gpus) // train.tensor % train.data * generate.pipeline + of_stage
        ) * generate.tensor + of_slice
        groups = np.argsort(micro, kind="stable").reshape(int(micro.max()) + 1, -1)
        return Resharding(begin, _shards(train.tensor, generate, of_stage, of_slice), tuple(groups), False)
    number = stage * train.tensor + slice_  # of a GPU in its replica
    of_stage, of_slice = number // generate.tensor % generate.pipeline, number % generate.tensor
    if engine == HYBRIDFLOW_V:
        return Resharding(begin, _shards(train.tensor, generate, of_stage, of_slice), tuple(of_replicas), True)
    every = np.arange(gpus)
    begin = WeightShards(gpus, 1, 0 * every, every, every + 1, cuts_all=True)
    return Resharding(begin, _shards(gpus, generate, of_stage, of_slice), (every,), True)


def _on_own_gpus(train: TrainDegrees, generate: GenerateDegrees, replicas: int) -> Resharding:
    """Returns the change to generation on GPUs of its own; replicas of either are told by what they have alone."""
    parts, each = lcm(train.tensor, generate.tensor), generate.pipeline * generate.tensor
    behind = np.arange(replicas * each)
    none = np.full(len(behind), NOWHERE)
    stage, slice_ = train.places
    wide = parts // train.tensor
    begin = WeightShards(
        parts,
        train.pipeline,
        np.concatenate([stage, none]),
        np.concatenate([slice_ * wide, 0 * behind]),
        np.concatenate([(slice_ + 1) * wide, 0 * behind]),
    )
    before = np.zeros(train.num_gpus, np.int64)
    of_stage, of_slice = behind // generate.tensor % generate.pipeline, behind % generate.tensor
    end = _shards(
        parts,
        generate,
        np.concatenate([before + NOWHERE, of_stage]),
        np.concatenate([before, of_slice]),
    )
    asked = behind // each % train.data
    groups = [
        np.concatenate([one, train.num_gpus + np.flatnonzero(asked == number)])
        for number, one in enumerate(train.replicas)
    ]
    return Resharding(begin, end, tuple(groups), False)


def _shards(parts: int, generate: GenerateDegrees, stage: Ints, slice_: Ints) -> WeightShards:
    each = parts // generate.tensor
    return WeightShards(parts, generate.pipeline, stage, slice_ * each, (slice_ + 1) * each)
