"""Parameters of pipelines side by side: each cuts them for its own tensor-parallel degree and stages.

Slices are as fine as the finest degree needs them (j), so that a GPU of a narrower group has several of them, and
layers have their stage in each pipeline: a slice of a layer is on one GPU of every pipeline. Those GPUs reduce its
gradient and, from ZeRO's stage 1 on, share its optimizer state, each pipeline by its number of GPUs: then every GPU has
as much of it as any other, and of parameters between steps (Li et al. 2024, arXiv 2412.07894, call such collectives
split). Pipelines have different numbers of micro-batches, so parameters and gradients stay for the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.plans.pipelines import Pipelines
from zbench.step.passes.parameters.weights import TABLES, WHOLE, outer_weights, weight_elements
from zbench.step.passes.parameters.zero import ShardedParameters


@dataclass(frozen=True)
class PipelineShapes:
    """The pipelines of a step, by their first places. lead, tp, pp: as in zbench.plans.pipelines."""

    lead: tuple[int, ...]
    tp: tuple[int, ...]
    pp: tuple[int, ...]

    @staticmethod
    def of(pipelines: Pipelines) -> "PipelineShapes":
        """Returns a plan's pipelines.

        Raises:
            ValueError: the first GPU is in none.
        """
        order = np.argsort(pipelines.lead, kind="stable")
        columns = (pipelines.lead[order], pipelines.tp[order], pipelines.pp[order])
        if not len(order) or columns[0][0] != 0:
            raise ValueError(
                f"plan.pipelines begin with ranks {columns[0].tolist()}; the first has to begin with rank 0"
            )
        lead, tp, pp = (tuple(column.tolist()) for column in columns)
        return PipelineShapes(lead, tp, pp)

    def __len__(self) -> int:
        return len(self.lead)

    @property
    def slices(self) -> int:
        """The slices that parameters are cut in, of which every pipeline's are unions."""
        return int(np.lcm.reduce(self.tp))

    @property
    def staged(self) -> Ints:
        """The pipelines of several stages."""
        return np.flatnonzero(np.array(self.pp) > 1)

    def cut(self, model: Model, weights: Sequence[str]) -> Mapping[str, tuple[Ints, Ints]]:
        """Returns the elements and the pipelines of the shards of a slice of every parameter that is cut. Two tables of
        tied embeddings are cut alike, over the pipelines that have both, in halves of each one's share: its first stage
        sums up one of them, its last stage the other."""
        elements, found = weight_elements(model), {}
        for name in weights:
            if name not in WHOLE:
                two = model.has_two_tables and name in TABLES
                owners = np.repeat(self.staged, 2) if two else np.arange(len(self))
                ends = np.cumsum(np.multiply(self.tp, self.pp)[owners])
                sizes = np.diff(ends * (elements[name] // self.slices) // int(ends[-1]), prepend=0)
                found[name] = (sizes[sizes > 0], owners[sizes > 0])
        return found


@dataclass(frozen=True)
class OwnParameters(ShardedParameters):
    """The parameters of a pipeline, on `degree` GPUs of a stage, which have them for the whole step. slices_of_gpu: of
    all that they are cut in; cut: shards of each, as PipelineShapes.cut has them."""

    slices_of_gpu: int = 1
    cut: Mapping[str, tuple[Ints, Ints]] | None = None

    @property
    def outside(self) -> tuple[str, ...]:
        """The parameters of no layer, those among them that other pipelines alone have: all layouts have the same."""
        assert self.cut is not None
        own = outer_weights(self.model.kind_of_head)
        return (*own, *(name for name in TABLES if name in self.cut and name not in own))

    @cached_property
    def shards(self) -> Mapping[str, tuple[Ints, Ints]]:
        """The elements of the shards of a slice of every parameter that is cut, by its name, and their pipelines."""
        assert self.cut is not None
        return self.cut

    def slices(self, weight: str) -> tuple[str, int]:
        """Returns the index of the slices that a parameter is cut in, and how many there are; "" and 1: it is whole."""
        return ("", 1) if weight in WHOLE else ("j", self.degree * self.slices_of_gpu)

    def home(self, weight: str) -> Ints:
        """Returns -1 for every cell of a parameter: a pipeline by itself gathers and reduces none."""
        return np.full(1 if weight in WHOLE else self.slices(weight)[1] * len(self.shards[weight][0]), -1, np.int64)

    def members(self, weight: str) -> list[tuple[int, Ints]]:
        """Lists (slice, the GPU that computes with it) of a parameter; slice -1, all GPUs: it is not cut."""
        if weight in WHOLE:
            return [(-1, np.arange(self.degree))]
        return [(share, np.array([share // self.slices_of_gpu])) for share in range(self.slices(weight)[1])]


@dataclass(frozen=True)
class CommonParameters(OwnParameters):
    """The parameters of all pipelines, on the first stages of each; `degree` is that which slices are cut for. What is
    played across pipelines counts from the stages that have a layer. shapes: the pipelines."""

    shapes: PipelineShapes = PipelineShapes((0,), (1,), (1,))

    @cached_property
    def _gpus(self) -> Ints:
        """The GPU that has each slice in each pipeline, int64 [pipelines, slices]."""
        lead, each = np.array(self.shapes.lead), self.degree // np.array(self.shapes.tp)
        return np.asarray(lead[:, None] + np.arange(self.degree) // each[:, None], np.int64)

    @property
    def places(self) -> Ints:
        """The GPUs of the first stages."""
        return np.unique(self._gpus)

    def home(self, weight: str) -> Ints:
        """Returns the place of every cell of a parameter."""
        if weight in WHOLE:
            return np.array([self.shapes.lead[WHOLE.index(weight) % len(self.shapes)]], np.int64)
        return np.ascontiguousarray(self._gpus[self.shards[weight][1]].T).reshape(-1)

    def members(self, weight: str) -> list[tuple[int, Ints]]:
        """Lists (slice, the GPUs that compute with it) of a parameter; slice -1: it is not cut."""
        if weight in WHOLE:
            return [(-1, self.places)]
        two = self.model.has_two_tables and weight == TABLES[1]
        gpus = self._gpus[self.shapes.staged] if two else self._gpus  # a pipeline of one stage has one table
        return [(share, gpus[:, share]) for share in range(self.degree)]
