"""Experts whose columns are cut over several GPUs (expert tensor parallelism), as parts of a step's index e.

All experts are on a group of GPUs, a slice of them on each. Where experts are whole, a slice is a run of experts, and a
part of e is an expert. Where each is cut over GPUs that follow one another, these have the same run, and each of them
some columns of all of its experts: a part of e is then those columns of an expert, which is an expert of fewer columns
for all formulas, as its output is a sum over columns.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.index import Index


@dataclass(frozen=True)
class ExpertCut:
    """A cut of experts. slices: of all experts, one a GPU of a group. tensor_parallel: GPUs that each expert is cut
    over, 1: none is cut."""

    num_experts: int
    slices: int
    tensor_parallel: int = 1

    @staticmethod
    def of(indices: dict[str, Index], num_experts: int) -> "ExpertCut":
        """Returns the cut that a layout's indices have; without experts, whole ones on every GPU."""
        if "e" not in indices:
            return ExpertCut(num_experts, 1)
        return ExpertCut(num_experts, len(indices["k"]), len(indices["e"]) // num_experts)

    @property
    def runs(self) -> int:
        """The runs of experts, each on as many GPUs as its experts are cut over."""
        return self.slices // self.tensor_parallel

    @property
    def parts(self) -> int:
        """The parts of e."""
        return self.num_experts * self.tensor_parallel

    @property
    def each(self) -> int:
        """The parts of e in a slice: the experts of a run."""
        return self.parts // self.slices

    @cached_property
    def experts(self) -> Ints:
        """The expert that every part of e is of, int64 [parts]."""
        runs = np.arange(self.num_experts).reshape(self.runs, 1, self.each)
        return np.repeat(runs, self.tensor_parallel, axis=1).reshape(-1)

    @cached_property
    def slice_of(self) -> Ints:
        """The slice that every part of e is in, int64 [parts]."""
        return np.repeat(np.arange(self.slices), self.each)
