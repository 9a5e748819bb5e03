"""The parameters of all workers that train apart: which GPU has a cell in each worker, and which its outer parameter.

Shards are those of ZeRO over the GPUs of all workers. A worker's GPU number g has those of which number g of every
worker has a share, so that a shard's values come from one GPU of each worker, as collectives in two levels have it.
Tensor-parallel groups, experts over several GPUs and stages are inside each worker, laid out alike, so a slice of a
parameter or of experts is averaged between the GPUs that have it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.degrees import ShardDegrees
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.step.passes.parameters.weights import WHOLE
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.routing import TOGETHER, ExpertParallel


@dataclass(frozen=True)
class OuterParameters(ShardedParameters):
    """The parameters of all workers, of as many `stages` each with `stage_gpus` GPUs. `groups` are those of the first
    stages of all workers, and places are told as they are for their layers. expert_cut: GPUs that each expert is cut
    over."""

    stage_gpus: int = 1
    stages: int = 1
    expert_cut: int = 1

    @staticmethod
    def of(
        model: Model,
        gpus: tuple[int, int],
        stage: str | ShardDegrees,
        experts: ExpertParallel = TOGETHER,
        degrees: tuple[int, int] = (1, 1),
        pieces: int = 1,
    ) -> "OuterParameters":
        """Returns the parameters of workers whose own shards are of a stage of ZeRO. gpus: of all workers, and of one;
        degrees: of tensor parallelism, whose groups have a slice on each of their GPUs, and of stages of a pipeline.
        pieces: as of zbench.step.passes.proven.ProvenSteps."""
        tensor_parallel, stages = degrees
        groups = gpus[0] // tensor_parallel // stages
        workers = gpus[0] // gpus[1]
        cells = lcm(workers, pieces) // workers  # of a share of one worker among all
        more = experts.degree, cells, gpus[1] // stages, stages, experts.tensor_parallel
        return OuterParameters(model, groups, tensor_parallel, stage, StepOverlap(0), *more)

    @property
    def workers(self) -> int:
        """The workers."""
        return self.num_gpus // self.stage_gpus

    @property
    def worker_gpus(self) -> int:
        """The GPUs of a worker, of all stages."""
        return self.stage_gpus * self.stages

    @property
    def places(self) -> Ints:
        """The GPUs of the first stage of every worker, int64 [workers, GPUs]."""
        return np.arange(self.workers)[:, None] * self.worker_gpus + np.arange(self.stage_gpus)

    def inside(self, weight: str) -> Ints:
        """Returns the number that the GPU of every cell has inside each worker's stage."""
        if weight in WHOLE:
            return np.full(1, WHOLE.index(weight) % self.stage_gpus, np.int64)
        return self._of_slices(weight, self.shards[weight][1] // self.workers)

    def home(self, weight: str) -> Ints:
        """Returns the place of every cell's outer parameter."""
        count = self.slices(weight)[1]
        worker = np.full(1, WHOLE.index(weight)) if weight in WHOLE else np.tile(self.shards[weight][1], count)
        return np.asarray(worker % self.workers * self.worker_gpus + self.inside(weight), np.int64)

    def _of_slices(self, weight: str, owner: Ints) -> Ints:
        """Returns the GPUs of a parameter's cells, slice by slice. owner: of each shard of a slice, the group of GPUs
        with one slice each that has it."""
        count = self.slices(weight)[1]
        return np.asarray(owner * count + np.arange(count)[:, None], np.int64).reshape(-1)

    def holders(self, weight: str) -> Iterator[tuple[Ints, Ints]]:
        """Yields (the GPUs that have a slice of a parameter, its cells), of each slice."""
        every, count = self.places.reshape(-1), self.slices(weight)[1]
        cells = np.arange(self.home(weight).size).reshape(count, -1)
        for number in range(count):
            yield every[number::count], cells[number]
