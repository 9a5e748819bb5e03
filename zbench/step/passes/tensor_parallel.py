"""Tensor parallelism with sequence parallelism, inside the groups of a plan: matmuls by slices, tokens between them.

A formula with a slot of h, g, f or v is computed on every GPU of a group for all the group's tokens and the GPU's
slice (column- and row-parallel matmuls); one of tokens alone, on each GPU for its own tokens. Between them tokens are
gathered over the group, and sums over slices are reduced to the tokens' homes (Korthikanti et al. 2022, arXiv
2205.05198). In a group of one GPU none of this is there.
"""

from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.formula import Formula, Reference
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import COMPUTE, GATHER, REDUCE, operation_row
from zbench.step.passes.parts import PlanParts

SLICED = ("h", "g", "f", "v")


@dataclass
class LinearModules:
    """Makes the operations of linear and elementwise formulas, and what is exchanged in groups between them.

    moved: what was gathered or reduced in the template so far.
    """

    parts: PlanParts
    layout: StepLayout
    lists: ListTable
    moved: set[tuple[int, str, bool]] = field(default_factory=set)

    def rows(self, formula: Formula) -> list[list[int]]:
        """Returns the operations of a formula, after the exchanges of what it reads."""
        number = self.layout.formulas.index(formula)
        sliced = is_sliced(formula)
        found = [line for one in formula.operands for line in self._exchange(one, sliced)]
        for gpu in range(self.parts.num_gpus):
            tokens = self.group(gpu) if sliced else self.own(gpu)
            if len(tokens):
                slots = [self._list(slot, tokens, gpu) for slot in formula.slots]
                found.append(operation_row(COMPUTE, number, (gpu, -1), slots, "compute"))
        return found

    def _list(self, slot: str, tokens: Ints, gpu: int) -> int:
        index = self.layout.index_of(slot)
        return self.lists.number(index, tokens if index == "t" else self.of_slice(index, gpu))

    def _exchange(self, one: Reference, sliced: bool) -> list[list[int]]:
        """Returns what brings tokens together or sums home before they are read for the first time."""
        tensor = self.layout.number[one.tensor]
        if self.parts.degree == 1 or self.layout.tensors[tensor].axes != ("t",):
            return []
        found = []
        makers = [other for other in self.layout.formulas if any(ref.tensor == one.tensor for ref in other.results)]
        if any(other.action == "+=" and is_sliced(other) for other in makers):
            found += self._collective(REDUCE, tensor, one)
        if sliced:
            found += self._collective(GATHER, tensor, one)
        return found

    def _collective(self, kind: int, tensor: int, one: Reference) -> list[list[int]]:
        if (kind, one.tensor, one.after) in self.moved:
            return []
        self.moved.add((kind, one.tensor, one.after))
        found = []
        for first in range(0, self.parts.num_gpus, self.parts.degree):
            tokens = self.group(first)
            if len(tokens):
                members = self.lists.number(PLACE, first + np.arange(self.parts.degree))
                cells = [self.lists.number("t", tokens)]
                found.append(operation_row(kind, tensor, (-1, members), cells, "tensor_parallel", int(one.after)))
        return found

    def own(self, gpu: int) -> Ints:
        """Returns the parts of t at home on a GPU."""
        return self.parts.own[gpu]

    def group(self, gpu: int) -> Ints:
        """Returns the parts of t at home in a GPU's group."""
        return self.parts.together[gpu // self.parts.degree]

    def of_slice(self, index: str, gpu: int) -> Ints:
        """Returns the parts of an index on a GPU."""
        return self.parts.of_slice(index, gpu % self.parts.degree)


def is_sliced(formula: Formula) -> bool:
    """Returns whether GPUs of a group compute a slice of a formula each."""
    return any(slot in SLICED for slot in formula.slots)
