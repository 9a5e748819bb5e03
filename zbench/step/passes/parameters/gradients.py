"""Gradients in a step's contracts: what GPUs have contributed so far, and the reductions of it to where shards are."""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.lists import PLACE
from zbench.step.operations import GATHER, REDUCE
from zbench.step.passes.parameters.zero import ParameterRows
from zbench.step.template import AT_HOME, COMPLETE


@dataclass(frozen=True)
class GradientRows(ParameterRows):
    """Makes the operations and contract entries of gradients, too."""

    def reduces(self, last: bool) -> bool:
        """Returns whether a micro-batch reduces gradients. last: of all micro-batches."""
        return last or self.of.stage in ("2", "3")

    def reductions(self, weights: tuple[str, ...], last: bool) -> list[list[int]]:
        """Returns the reductions of gradients at the end of a micro-batch's backward. last: of all micro-batches."""
        if not self.reduces(last):
            return []
        found = [line for weight in weights for line in self.collectives(REDUCE, f"d{weight}", weight)]
        if last and self.of.stage == "none":
            found += [line for weight in weights for line in self.collectives(GATHER, f"d{weight}", weight)]
        return found

    def totals(self, weight: str, counts: Ints) -> list[int]:
        """Returns the contributions of all GPUs to each slice of a gradient. counts: of every GPU, -1: none at all."""
        return [int(np.maximum(counts[members], 0).sum()) for _, members in self.of.members(weight)]

    def gradients(self, weight: str, counts: Ints, last: bool) -> list[list[int]]:
        """Returns the entries of a gradient after some micro-batches, [] if there is nothing of it.

        counts: contributions made so far by every GPU, -1 where it had no part in it; a GPU of whose experts no token
        came has made none, and has zeros. last: after the last micro-batch.
        """
        if counts.max() < 0:
            return []
        name, totals = f"d{weight}", self.totals(weight, counts)
        if last and self.of.stage == "none":
            alone = len(self.of.members(weight)[0][1]) == 1
            return self._entries(name, weight, 0, 0, totals if alone else [COMPLETE] * len(totals))
        if last or self.of.stage in ("2", "3"):
            if len(set(totals)) == 1:
                return self.at_home(name, weight, count=totals[0])
            number = self.layout.number[name]
            return [
                [number, 0, AT_HOME, *self._cells(weight, share), count, 0, 0] for share, count in enumerate(totals)
            ]
        found = []
        for share, members in self.of.members(weight):
            for gpu in members[counts[members] >= 0].tolist():
                found.append(self._gradient(weight, gpu, self._cells(weight, share), int(counts[gpu])))
        return found

    def _gradient(self, weight: str, gpu: int, cells: list[int], count: int) -> list[int]:
        """Returns the entry of cells of a gradient on a GPU."""
        return [self.layout.number[f"d{weight}"], 0, self.lists.number(PLACE, [gpu]), *cells, count, 0, 0]

    def unreduced(self, weight: str, had: Ints, made: Ints) -> list[list[int]]:
        """Returns the entries of a gradient within a micro-batch before it is reduced: a GPU keeps what it contributed.
        had, made: contributions of every GPU before the micro-batch and in it so far, -1 where it had no part."""
        if self.of.stage in ("none", "1"):
            return self.gradients(weight, np.where(made < 0, had, np.maximum(had, 0) + made), False)
        found, home = [], self.of.home(weight).reshape(self.of.slices(weight)[1], -1)
        for (share, members), total in zip(self.of.members(weight), self.totals(weight, had), strict=True):
            index, reduced = self.of.slices(weight)[0], bool((had[members] >= 0).any())
            for gpu in members.tolist():
                takes_part, mine = bool(made[gpu] >= 0), int(max(made[gpu], 0))
                for shards, is_there, count in (
                    (home[share] == gpu, reduced or takes_part, total + mine),
                    (home[share] != gpu, takes_part, mine),
                ):
                    if is_there and shards.any():
                        cells = [-1, -1]
                        if share >= 0:
                            which = np.flatnonzero(shards)
                            cells = [self.lists.number(index, [share]), self.lists.number(f"z{weight}", which)]
                        found.append(self._gradient(weight, gpu, cells, count))
        return found
