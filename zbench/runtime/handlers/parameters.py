"""Whole parameters and their cells: a slice of tensor parallelism, or of the experts, lies flat, cut into shards where
the step says. A slice of experts that are cut over GPUs has some columns of all experts of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from operator import mul

import numpy as np
import torch
from torch import Tensor

from zbench.runtime.handlers.formats import WHOLE, base_name
from zbench.runtime.steps.instructions import Parts
from zbench.step.expert_cut import ExpertCut
from zbench.step.layout import StepLayout
from zbench.step.tensor import Tensor as StepTensor

_OF_AN_EXPERT = "i"  # the axis of its columns


@cache
def _cut_axis(name: str) -> tuple[int, str]:
    letter = next(one for one in WHOLE[name] if one in "ehgfvw")
    return WHOLE[name].index(letter), letter


@dataclass(frozen=True)
class ParameterSlices:
    """The slices and shards of a layout's parameters. dims: sizes of the axes of zbench.runtime.handlers.formats."""

    layout: StepLayout
    dims: dict[str, int]
    _shapes: dict[str, tuple[int, ...]] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def are_cut(self) -> tuple[bool, ...]:
        """Whether each tensor is a parameter, its gradient or its state in slices and shards.

        Raises:
            ValueError: one is cut another way than in slices j and their shards.
        """
        return tuple(map(self._is_cut, self.layout.tensors))

    def _is_cut(self, one: StepTensor) -> bool:
        name = base_name(one.name)
        if name not in WHOLE or not one.axes:
            return False
        slices = "k" if "e" in WHOLE[name] else "j"
        if one.axes != (slices, f"z{name}"):
            cut = ", ".join(one.axes)
            raise ValueError(
                f"tensor {one.name} is cut along {cut}; parameters that run take slices {slices} and shards z{name}"
            )
        return True

    @cached_property
    def _cut(self) -> ExpertCut:
        return ExpertCut.of(self.layout.index, self.dims["e"])

    @cached_property
    def _ends(self) -> dict[str, list[int]]:
        """Where the parts of every index end, by its name; first where the first one begins."""
        return {one.name: [0, *one.sizes.cumsum().tolist()] for one in self.layout.indices}

    def axis(self, name: str) -> tuple[int, str]:
        """Returns the axis of a whole parameter that parts of the formula's index are cut along, and its letter."""
        return _cut_axis(name)

    def _counts(self, name: str) -> tuple[int, ...]:
        """Returns in how many slices a whole parameter is cut along each of its axes: of all slices one after another
        the last axis that is cut changes first."""
        degree = len(self.layout.index[self.layout.tensors[self.layout.number[name]].axes[0]])
        letter = self.axis(name)[1]
        if letter != "e":
            return tuple(degree if one == letter else 1 for one in WHOLE[name])
        cut = {letter: degree // self._cut.tensor_parallel, _OF_AN_EXPERT: self._cut.tensor_parallel}
        return tuple(cut.get(one, 1) for one in WHOLE[name])

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a slice."""
        if name not in self._shapes:
            self._shapes[name] = self._shape(name)
        return self._shapes[name]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.dims[one] // count for one, count in zip(WHOLE[name], self._counts(name), strict=True))

    def _slice(self, name: str, whole: Tensor, share: int) -> Tensor:
        """Returns a slice of a whole parameter, a view; of what has its first axes alone, along these."""
        place = np.unravel_index(share, self._counts(name))
        for axis, (at, size) in enumerate(zip(place[: whole.ndim], self.shape(name), strict=False)):
            whole = whole.narrow(axis, int(at) * size, size)
        return whole

    def cells(self, name: str, whole: Tensor, first: Parts, second: Parts) -> Tensor:
        """Returns the shards of slices of a whole parameter, [slices, elements]; of one that is not cut, itself."""
        if not self.layout.tensors[self.layout.number[name]].axes:
            return whole
        rows = [self._slice(name, whole, share).reshape(-1) for share in first]
        return torch.stack([self._shards(name, row, second) for row in rows])

    def whole(self, name: str, pieces: Sequence[tuple[Parts, Parts, Tensor]]) -> Tensor:
        """Returns a whole parameter of pieces with all of its cells, (slices, shards, what `cells` gives of them)."""
        tensor = self.layout.tensors[self.layout.number[name]]
        if not tensor.axes:
            return pieces[0][2]
        ends = self._ends[f"z{name}"]
        flat = pieces[0][2].new_empty(len(self.layout.index[tensor.axes[0]]), ends[-1])
        for slices, shards, value in pieces:
            for row, share in enumerate(slices):
                at = 0
                for shard in shards:
                    size = ends[shard + 1] - ends[shard]
                    flat[share, ends[shard] : ends[shard + 1]] = value[row, at : at + size]
                    at += size
        found = flat.new_empty([self.dims[letter] for letter in WHOLE[name]])
        for share, row in enumerate(flat):
            self._slice(name, found, share).copy_(row.view(self.shape(name)))
        return found

    def spans(self, name: str, slices: Parts, shards: Parts) -> list[tuple[int, int]]:
        """Lists the elements of a whole parameter, flat, that cells have, as they lie in what `cells` gives of them:
        (the first, the one after the last)."""
        if not self.layout.tensors[self.layout.number[name]].axes:
            return [(0, prod(self.dims[letter] for letter in WHOLE[name]))]
        counts, size, found = self._counts(name), self.shape(name), list[tuple[int, int]]()
        last = max((axis for axis, count in enumerate(counts) if count > 1), default=0)
        whole = torch.arange(prod(counts[:last]) * prod(size[:last])).view([*map(mul, counts[:last], size[:last])])
        together = prod(size[last:])  # elements of a slice that lie together in the whole
        ends = self._ends[f"z{name}"]
        for share in slices:
            rows = self._slice(name, whole, share).reshape(-1).tolist()
            place = share % counts[last]
            for shard in shards:
                at, end = ends[shard], ends[shard + 1]
                while at < end:
                    row, to = at // together, min(end, (at // together + 1) * together)
                    begin = (rows[row] * counts[last] + place) * together + at % together
                    found.append((begin, begin + to - at))
                    at = to
        return found

    def _shards(self, name: str, flat: Tensor, shards: Parts) -> Tensor:
        sizes = self.layout.index[f"z{name}"].sizes.tolist()
        if len(shards) == len(sizes):
            return flat
        split = flat.split(sizes)
        return torch.cat([split[shard] for shard in shards])

    def sides(self, name: str, slices: Parts, parts: Parts) -> list[tuple[int, int, int]]:
        """Lists, for parts of the formula's index, (place of the slice among `slices`, first, last) along the axis
        inside the slice; neighbours are one."""
        axis, letter = self.axis(name)
        size, ends = self.shape(name)[axis], self._ends[letter]
        found: list[tuple[int, int, int]] = []
        for part in parts:
            begin, end = ends[part], ends[part + 1]
            place = slices.index(begin // size)
            one = (place, begin % size, begin % size + end - begin)
            if found and found[-1][0] == place and found[-1][2] == one[1]:
                found[-1] = (place, found[-1][1], one[2])
            else:
                found.append(one)
        return found

    def read(self, name: str, flat: Tensor, slices: Parts, parts: Parts) -> Tensor:
        """Returns parts of a parameter as formulas take them. flat: [slices, elements]; a view where they lie so."""
        axis, shape = self.axis(name)[0], self.shape(name)
        pieces = [
            flat[place].view(shape).narrow(axis, begin, end - begin)
            for place, begin, end in self.sides(name, slices, parts)
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)

    def written(self, name: str, value: Tensor, slices: Parts, parts: Parts) -> Tensor:
        """Returns contributions to parts of a gradient as [slices, elements], with zeros in the rest of a slice."""
        axis, shape = self.axis(name)[0], self.shape(name)
        if len(slices) == 1 and value.shape == torch.Size(shape):
            return value.reshape(1, -1)
        found = value.new_zeros(len(slices), prod(shape))
        at = 0
        for place, begin, end in self.sides(name, slices, parts):
            found[place].view(shape).narrow(axis, begin, end - begin).copy_(value.narrow(axis, at, end - begin))
            at += end - begin
        return found
