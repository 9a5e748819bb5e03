"""Tensor parallelism with sequence parallelism, inside the groups of a plan: matmuls by slices, tokens between them.

A formula with a slot of h, g, f or v is computed on every GPU of a group for all the group's tokens and the GPU's
slice (column- and row-parallel matmuls); one of tokens alone, on each GPU for its own tokens. Between them tokens are
gathered over the group, and sums over slices are reduced to the tokens' homes (Korthikanti et al. 2022, arXiv
2205.05198). In a group of one GPU none of this is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from zbench.describe.arrays import Ints
from zbench.plans.columns import Lists
from zbench.step.formula import Formula, Reference
from zbench.step.layers import is_sliced
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import GATHER, REDUCE, compute_table, operation_row
from zbench.step.passes.parameters.kept_tables import KeptTables
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.router.seats import TOGETHER


@dataclass
class LinearModules:
    """Makes the operations of linear and elementwise formulas, and what is exchanged in groups between them.

    moved: what was gathered or reduced in the template so far. columns: the lists of a slot, by GPU, that were made so
    far, by (index, whether tokens are the group's); made: contributions, by (whether tokens are the group's, how many
    for each part of them).
    """

    parts: PlanParts
    layout: StepLayout
    lists: ListTable
    moved: set[tuple[int, str, bool]] = field(default_factory=set)
    columns: dict[tuple[str, bool], Ints] = field(default_factory=dict)
    made: dict[tuple[bool, int], Ints] = field(default_factory=dict)

    def fresh(self) -> "LinearModules":
        """Returns the same for another template, in which nothing was exchanged so far."""
        return replace(self, moved=set())

    def rows(self, number: int) -> list[Ints]:
        """Returns the operations of a formula as tables, after the exchanges of what it reads."""
        formula = self.layout.formulas[number]
        sliced = is_sliced(formula)
        found = [table for one in formula.operands for table in self._exchange(one, sliced)]
        gpus = self.gpus(sliced)
        slots = [self.lists_of(self.layout.index_of(slot), sliced)[gpus] for slot in formula.slots]
        found.append(compute_table(number, gpus, slots))
        return found

    def runs(self, numbers: Sequence[int], between: Sequence[int], tables: KeptTables) -> tuple[Ints, ...]:
        """Returns the operations of a template's formulas but for some of them, which are attention's: those before the
        first of these as a table, those between it and the next one, and so on. tables: that are kept of the job."""
        key = "linear", tuple(numbers), tuple(between), self._named
        return tables.of_numbers(key, lambda: self.fresh()._made_runs(numbers, between))

    def _made_runs(self, numbers: Sequence[int], between: Sequence[int]) -> list[Ints]:
        found: list[list[Ints]] = [[compute_table(0, np.zeros(0, np.int64), [])]]
        for number in numbers:
            if number in between:
                found.append(found[0][:1])
            else:
                found[-1] += self.rows(number)
        return [np.concatenate(tables) for tables in found]

    @cached_property
    def _named(self) -> tuple[bytes, ...]:
        """The numbers of GPUs and of lists that operations of linear modules name."""
        size, degree = self.parts.num_gpus, self.parts.degree
        rows = [*self.parts.gpus, self.lists_of("t", False), self.lists_of("t", True)]
        rows += [self.lists_of(index, False) for index in ("h", "g", "f", "v", "w") if index in self.layout.index]
        if degree > 1:
            rows.append(self.lists.all_of(PLACE, Lists(np.arange(0, size + 1, degree), np.arange(size))))
        return tuple(one.tobytes() for one in rows)

    def gpus(self, sliced: bool) -> Ints:
        """Returns the GPUs that have tokens, of their own or in their group."""
        return self.parts.gpus[sliced]

    def lists_of(self, index: str, sliced: bool) -> Ints:
        """Returns the list of an index that each GPU computes with, -1 where it has no tokens."""
        key = (index, sliced and index == "t")
        if key not in self.columns:
            alike = index not in ("t", TOGETHER)  # in all groups
            gpus = self.parts.degree if alike else self.parts.num_gpus
            if index == "t":
                found = self._tokens(sliced)
            else:
                found = np.array([self._list(index, gpu, sliced) for gpu in range(gpus)], np.int64)
            self.columns[key] = np.tile(found, self.parts.num_gpus // self.parts.degree) if alike else found
        return self.columns[key]

    def _tokens(self, sliced: bool) -> Ints:
        """Returns the list of each GPU's tokens, or of its group's, -1 where it has none."""
        rows = self.parts.together if sliced else self.parts.own
        some = rows.lengths > 0
        found = np.full(len(rows), -1, np.int64)
        found[some] = self.lists.all_of("t", Lists(np.cumsum([0, *rows.lengths[some]]), rows.items))
        return np.repeat(found, self.parts.degree) if sliced else found

    def _list(self, index: str, gpu: int, sliced: bool) -> int:
        if index == TOGETHER:
            own = self.parts.routed_own[gpu]
            return self.lists.number(index, own) if len(own) else -1
        return self.lists.whole(index) if index in ("k", "n") else self.lists.number(index, self.of_slice(index, gpu))

    def _exchange(self, one: Reference, sliced: bool) -> list[Ints]:
        """Returns what brings tokens together or sums home before they are read for the first time."""
        tensor = self.layout.number[one.tensor]
        if self.parts.degree == 1 or self.layout.tensors[tensor].axes != ("t",):
            return []
        found = []
        makers = (self.layout.formulas[at] for at in self.layout.makers[one.tensor])
        if any(other.action == "+=" and is_sliced(other) for other in makers):
            found += self._collective(REDUCE, tensor, one)
        if sliced:
            found += self._collective(GATHER, tensor, one)
        return found

    def _collective(self, kind: int, tensor: int, one: Reference) -> list[Ints]:
        if (kind, one.tensor, one.after) in self.moved:
            return []
        self.moved.add((kind, one.tensor, one.after))
        found = []
        for first in range(0, self.parts.num_gpus, self.parts.degree):
            cells = [int(self.lists_of("t", True)[first])]
            if cells[0] >= 0:
                members = self.lists.number(PLACE, first + np.arange(self.parts.degree))
                found.append(operation_row(kind, tensor, (-1, members), cells, "tensor_parallel", int(one.after)))
        return [np.array(found, np.int64)]

    def own(self, gpu: int) -> Ints:
        """Returns the parts of t at home on a GPU."""
        return self.parts.own[gpu]

    def group(self, gpu: int) -> Ints:
        """Returns the parts of t at home in a GPU's group."""
        return self.parts.together[gpu // self.parts.degree]

    def of_slice(self, index: str, gpu: int) -> Ints:
        """Returns the parts of an index on a GPU."""
        return self.parts.of_slice(index, gpu % self.parts.degree)

    def contributions(self, formula: Formula) -> Ints:
        """Returns how many contributions every GPU makes to each cell of its slice of a gradient, -1 if it has no part
        in it."""
        sliced = is_sliced(formula)
        indices = [self.layout.index_of(slot) for slot in formula.slots]
        each = [len(self.of_slice(index, 0)) // self.parts.slices_of_gpu for index in indices if index != "t"]
        return self._contributions(sliced, prod(each))

    def _contributions(self, sliced: bool, each: int) -> Ints:
        """Returns so many contributions for each part of tokens of a GPU, or its group, -1 where there is none."""
        if (sliced, each) not in self.made:
            tokens = self.parts.parts_by_gpu(sliced)
            self.made[sliced, each] = np.where(tokens > 0, tokens * each, -1)
        return self.made[sliced, each]
