"""Gradients in a step's contracts: what GPUs have contributed so far, and the reductions of it to where shards are."""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.degrees import WORLD
from zbench.step.lists import PLACE
from zbench.step.operations import GATHER, REDUCE
from zbench.step.passes.parameters.parameter_rows import ParameterRows
from zbench.step.template import AT_HOME, COMPLETE


@dataclass(frozen=True)
class GradientRows(ParameterRows):
    """Makes the operations and contract entries of gradients, too."""

    def reduces(self, last: bool) -> bool:
        """Returns whether a micro-batch reduces gradients. last: of all micro-batches."""
        return last or self.of.degrees.gradients != 1

    def reductions(self, weights: tuple[str, ...], last: bool) -> list[list[int]]:
        """Returns the reductions of gradients at the end of a micro-batch's backward: among the GPUs that have all of
        them together, and in the last one over the rest, to where every GPU of those that update gets them. last: of
        all micro-batches."""
        found = [
            line
            for inner, outer in self.of.reduced_by(last)
            for weight in weights
            for line in self.collectives(REDUCE, f"d{weight}", weight, (outer, inner), transfer="gradients")
        ]
        for weight in weights if last else ():
            found += [] if self.of.is_reduced_home(weight) else self.gathered_sums(weight)
        return found

    def gathered_sums(self, weight: str) -> list[list[int]]:
        """Returns the gathers of a complete gradient from its homes to all GPUs that update, [] where these are the
        homes: values go as they are, or replicas would come apart."""
        degree = self.of.degrees.optimizer
        return [] if degree == WORLD else self.collectives(GATHER, f"d{weight}", weight, (WORLD, degree))

    def gradients(self, weight: str, counts: Ints, last: bool) -> list[list[int]]:
        """Returns the entries of a gradient after some micro-batches, [] if there is nothing of it.

        counts: contributions made so far by every GPU, -1 where it had no part in it; a GPU of whose experts no token
        came has made none, and has zeros. last: after the last micro-batch.
        """
        if counts.max() < 0:
            return []
        found = self._reduced(weight, counts, last)
        return self.told(found, self.hops.reduced(weight, counts >= 0, last)) if self.hops.encodings else found

    def _reduced(self, weight: str, counts: Ints, last: bool) -> list[list[int]]:
        """Returns the entries of `gradients`, without lossy hops."""
        name, totals = f"d{weight}", [total for _, _, total in self._sums(weight, WORLD, counts)]
        degrees = self.of.degrees
        alone = last and self.of.is_reduced_home(weight)
        if last and not alone and self.of.every(weight, degrees.optimizer) < self.of.num_gpus:
            return self._held(name, weight, degrees.optimizer, (0, 0, COMPLETE))
        if last and not alone and degrees.optimizer == 1:
            return self._entries(name, weight, 0, 0, totals)
        if last or (degrees.gradients != 1 and self.of.every(weight, degrees.gradients) == self.of.num_gpus):
            if len(set(totals)) == 1:
                return self.at_home(name, weight, count=totals[0])
            number = self.layout.number[name]
            return [
                [number, 0, AT_HOME, *self._cells(weight, share), count, 0, 0] for share, count in enumerate(totals)
            ]
        found = []
        if degrees.gradients != 1:
            every = self.of.every(weight, degrees.gradients)
            for share, members, total in self._sums(weight, degrees.gradients, counts):
                if (counts[members] >= 0).any():
                    parts = {gpu: self._shards(weight, share, gpu % every, every) for gpu in members.tolist()}
                    found += [self._gradient(weight, gpu, cells, total) for gpu, cells in parts.items() if cells]
            return found
        for share, members in self.of.members(weight):
            for gpu in members[counts[members] >= 0].tolist():
                found.append(self._gradient(weight, gpu, self._cells(weight, share), int(counts[gpu])))
        return found

    def _sums(self, weight: str, degree: int, counts: Ints) -> list[tuple[int, Ints, int]]:
        """Lists (slice, GPUs, contributions of all of them) of a gradient, for every run of GPUs that have all of it
        together by a degree."""
        every, found = self.of.every(weight, degree), []
        for share, members in self.of.members(weight):
            for run in [members] if degree == WORLD else np.split(members, self.of.num_gpus // every):
                found.append((share, run, int(np.maximum(counts[run], 0).sum())))
        return found

    def _shards(self, weight: str, share: int, part: int, every: int, others: bool = False) -> list[int]:
        """Returns the lists of the cells of a slice that GPU `part` of each run of `every` has, or does not have; [] if
        there are none."""
        mine = self.of.home(weight).reshape(self.of.slices(weight)[1], -1)[share] % every == part
        which = np.flatnonzero(mine != others)
        if not len(which):
            return []
        if share < 0:
            return [-1, -1]
        return [self.lists.number(self.of.slices(weight)[0], [share]), self.lists.number(f"z{weight}", which)]

    def _gradient(self, weight: str, gpu: int, cells: list[int], count: int) -> list[int]:
        """Returns the entry of cells of a gradient on a GPU."""
        return [self.layout.number[f"d{weight}"], 0, self.lists.number(PLACE, [gpu]), *cells, count, 0, 0]

    def unreduced(self, weight: str, had: Ints, made: Ints) -> list[list[int]]:
        """Returns the entries of a gradient within a micro-batch before it is reduced: a GPU keeps what it contributed.
        had, made: contributions of every GPU before the micro-batch and in it so far, -1 where it had no part."""
        degree = self.of.degrees.gradients
        if degree == 1:
            return self.gradients(weight, np.where(made < 0, had, np.maximum(had, 0) + made), False)
        found, every = list[list[int]](), self.of.every(weight, degree)
        before = self.hops.reduced(weight, had >= 0, False)
        for share, members, total in self._sums(weight, degree, had):
            reduced = bool((had[members] >= 0).any())
            for gpu in members.tolist():
                takes_part, mine = bool(made[gpu] >= 0), int(max(made[gpu], 0))
                for others, is_there, count in (
                    (False, reduced or takes_part, total + mine),
                    (True, takes_part, mine),
                ):
                    cells = self._shards(weight, share, gpu % every, every, others) if is_there else []
                    lines = [self._gradient(weight, gpu, cells, count)] if cells else []
                    found += lines if others else self.told(lines, before)
        return found
