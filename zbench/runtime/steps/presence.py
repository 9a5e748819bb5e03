"""Follows which places hold contributions to sums through a template: a reduction moves what there is. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.runtime.steps.instructions import Cells
from zbench.step.form import ADD
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, REDUCE, SEND, homes_among
from zbench.step.template import AT_HOME, Step, Template
from zbench.step.tensor import NATURES, SUM


def pairs_of(layout: StepLayout, tensor: int, lists: Sequence[int]) -> Ints:
    """Returns the numbers of the cells that two lists have, int64 [cells], the second axis running fastest."""
    sides = [layout.lists[which] if which >= 0 else np.zeros(1, np.int64) for which in lists]
    width = layout.shape(tensor)[1]
    return np.asarray((sides[0][:, None] * width + sides[1]).reshape(-1), np.int64)


@dataclass
class Presence:
    """The places that hold some of each cell of sums, by (tensor, offset of its layer): bool [places, cells]."""

    step: Step
    layout: StepLayout
    held: dict[tuple[int, int], Flags] = field(default_factory=dict)

    @staticmethod
    def of(step: Step, template: Template) -> "Presence":
        """Returns what is there when a template begins."""
        found = Presence(step, step.layouts[template.layout])
        for tensor, layer, places, list0, list1, *_ in template.needs.rows():
            if found.is_sum(tensor):
                cells = pairs_of(found.layout, tensor, (list0, list1))
                home = found.layout.tensors[tensor].home[cells]
                for place in [home] if places == AT_HOME else found.layout.lists[places].tolist():
                    found.of_tensor(tensor, layer)[place, cells] = True
        return found

    def is_sum(self, tensor: int) -> bool:
        """Returns whether a tensor is a sum."""
        return NATURES.index(self.layout.tensors[tensor].nature) == SUM

    def of_tensor(self, tensor: int, layer: int) -> Flags:
        """Returns the flags of a tensor, which are its own and may be changed."""
        key = (tensor, 0 if self.layout.tensors[tensor].layers == "none" else layer)
        if key not in self.held:
            self.held[key] = np.zeros((self.step.num_places, int(np.prod(self.layout.shape(tensor)))), bool)
        return self.held[key]

    def follow(self, row: Sequence[int], writes: Sequence[Cells]) -> None:
        """Follows an operation, as its row of columns has it. writes: cells of its results, of a compute."""
        kind, what, src, dst, list0, list1, _, layer = row[:8]
        if kind == COMPUTE:
            bound = self.layout.bound
            rows = bound.rows[bound.offsets[what] : bound.offsets[what + 1]]
            for cells, does in zip(writes, [int(one[0]) for one in rows if one[0] != 0], strict=True):
                if does == ADD:
                    width = self.layout.shape(cells.tensor)[1]
                    numbers = [a * width + b for a, b in cells.pairs()]
                    self.of_tensor(cells.tensor, cells.layer)[src, numbers] = True
            return
        if not self.is_sum(what):
            return
        held, cells_ = self.of_tensor(what, layer), pairs_of(self.layout, what, (list0, list1))
        home = self.layout.tensors[what].home[cells_]
        if kind in (GATHER, REDUCE):
            home = homes_among(home, self.layout.lists[dst], src)
        if kind == DROP:
            held[src, cells_] = False
        elif kind in (SEND, MOVE):
            held[dst, cells_] = True
            if kind == MOVE:
                held[src, cells_] = False
        elif kind == GATHER:
            for member in self.layout.lists[dst].tolist():
                held[member, cells_] = True
        elif kind == REDUCE:
            for member in self.layout.lists[dst].tolist():
                moved = held[member, cells_] & (home != member)
                held[member, cells_[moved]] = False
                held[home[moved], cells_[moved]] = True
