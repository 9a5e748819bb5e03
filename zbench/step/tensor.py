"""Tensors of a step: what they are cut along, what may be done with them, and where their cells are at home."""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.index import Index

NATURES = ("copy", "sum", "state")
COPY, SUM, STATE = range(3)
MERGES = ("", "add", "softmax", "max")
# One a layer; one between layers and at both ends; one of the whole step; one a layer of the first ones, which are of
# another kind (zbench.step.template.Step.leading), and one a layer of the others.
LAYERS = LAYER, BORDER, NONE, LEADING, FOLLOWING = ("layer", "border", "none", "leading", "following")


@dataclass(frozen=True)
class Tensor:
    """A tensor that formulas name, cut along at most two indices into cells, the last index running fastest.

    axes: names of indices. A formula that names fewer of them means the whole of the others.
    nature: "copy" is written once a place and may be sent on; "sum" collects contributions, which are taken along
        where it moves, and is complete before anything reads it; "state" is updated in place and has versions.
    merge: how contributions of a sum come together: add, softmax (outputs with their log-sum-exp) or max.
    layers: whether each layer has one, each border between layers (one more), the step as a whole, or layers of one
        kind alone.
    unit: bytes of a cell whose parts have size 1; a cell has that times its parts' sizes, or times `amounts`, int64
        [cells], where these are given: of the tokens of a part, some go to an expert.
    counted_by: the tensor that has, when a step runs, how many of `amounts` there are, cut along the same indices where
        this one is sent; then these are the most that there may be. "": there are as many as `amounts`.
    home: int64 [cells], the place of each cell, from or to which collectives move it. -1: it has none.
    hops: how often values of it were encoded with loss, at most, where they are read.
    """

    name: str
    axes: tuple[str, ...]
    nature: str
    merge: str
    layers: str
    unit: int
    home: Ints
    hops: int = 0
    amounts: Ints | None = None
    counted_by: str = ""

    def cell_bytes(self, indices: dict[str, Index]) -> Ints:
        """Returns the bytes of every cell, int64 [cells]."""
        if self.amounts is not None:
            return self.unit * self.amounts
        size = np.full(1, self.unit, np.int64)
        for axis in self.axes:
            size = np.multiply.outer(size, indices[axis].sizes).reshape(-1)
        return size

    def layers_of(self, first: int, last: int, leading: int) -> tuple[int, int]:
        """Returns the first and the last of some layers, and the border after them, that there is one of; the last is
        before the first where there is none. leading: how many layers are of the first kind."""
        if self.layers == NONE:
            return 0, 0
        if self.layers == LEADING:
            return first, min(last, leading - 1)
        return max(first, leading) if self.layers == FOLLOWING else first, last + (self.layers == BORDER)
