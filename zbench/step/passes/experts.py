"""Experts over ranks: tokens go to where their experts' weights are, and come home as a sum of what these make.

A formula with a slot of e is computed on the GPU that has the expert, for the tokens of its group that go there; what
has a slot of k, a slice of the experts, on the home of the tokens. What one side makes of k and the other reads is
sent, a message for each pair of GPUs (the all-to-all of Lepikhin et al. 2021, arXiv 2006.16668).
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.formula import Formula, Reference
from zbench.step.layers import is_gradient_of_experts, of_experts, of_shared_experts
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import COMPUTE, SEND, operation_row
from zbench.step.passes.parts import PlanParts
from zbench.step.template import COMPLETE


@dataclass
class ExpertModules:
    """Makes the operations of experts' formulas and the messages between homes and experts.

    made: the numbers of the formulas of the template; moved: the tensors that were sent in it so far.
    """

    parts: PlanParts
    layout: StepLayout
    lists: ListTable
    made: Collection[int] = ()
    moved: set[str] = field(default_factory=set)

    def fresh(self, made: Collection[int]) -> "ExpertModules":
        """Returns the same for another template."""
        return replace(self, made=made, moved=set())

    @property
    def degree(self) -> int:
        return self.parts.experts.degree

    def _goes(self, gpu: int, slices: int) -> Ints:
        """Returns the parts of t at home on a GPU that have tokens for a slice of the experts."""
        assert self.parts.routing is not None
        own = self.parts.own[gpu]
        return np.asarray(own[self.parts.routing.to_slices[own, slices] > 0], np.int64)

    def _group(self, gpu: int) -> Ints:
        """Returns the parts of t at home in a GPU's group."""
        first = gpu // self.degree * self.degree
        return np.concatenate([self.parts.own[one] for one in range(first, first + self.degree)])

    def _comes(self, gpu: int) -> Ints:
        """Returns the parts of t that have tokens for the experts of a GPU."""
        assert self.parts.routing is not None
        group = self._group(gpu)
        return np.asarray(group[self.parts.routing.to_slices[group, gpu % self.degree] > 0], np.int64)

    def _experts(self, gpu: int) -> Ints:
        each = self.parts.model.num_experts // self.degree
        return gpu % self.degree * each + np.arange(each)

    def exchange(self, number: int) -> list[Ints]:
        """Returns the messages that go before a formula: of what the template makes on the other side and the formula
        waits for; before one of shared experts, which goes beside them, of all that is made there by then."""
        formula = self.layout.formulas[number]
        if not of_shared_experts(formula):
            return self._awaited(formula)
        found = []
        for later in (self.layout.formulas[at] for at in self.made if at > number):
            if all(at < number for one in later.operands for at in self._makers(one)):
                found += self._awaited(later)
        return found

    def _awaited(self, formula: Formula) -> list[Ints]:
        """Returns the messages of what a formula reads and the template makes on the other side, if not sent so far."""
        found = []
        for one in formula.operands:
            axes = self.layout.tensors[self.layout.number[one.tensor]].axes
            if axes[1:] == ("k",) and one.tensor not in self.moved and self._made_elsewhere(one, formula):
                self.moved.add(one.tensor)
                found += self._messages(one.tensor, home=not of_experts(formula))
        return [np.array(found, np.int64)] if found else []

    def _makers(self, one: Reference) -> list[int]:
        """Returns the numbers of the template's formulas that make what a reference names."""
        return [at for at in self.made if any(ref.tensor == one.tensor for ref in self.layout.formulas[at].results)]

    def _made_elsewhere(self, one: Reference, formula: Formula) -> bool:
        makers = (self.layout.formulas[at] for at in self._makers(one))
        return any(of_experts(other) != of_experts(formula) for other in makers)

    def _messages(self, tensor: str, home: bool) -> list[list[int]]:
        """Returns the sends of a tensor between homes and experts. home: from experts to homes."""
        found = []
        for turn, gpu in product(range(1, self.degree), range(self.parts.num_gpus)):
            other = self._partner(gpu, turn)
            sender, receiver = (other, gpu) if home else (gpu, other)
            tokens = self._goes(gpu, other % self.degree)
            if len(tokens):
                cells = [self.lists.number("t", tokens), self.lists.number("k", [other % self.degree])]
                found.append(operation_row(SEND, self.layout.number[tensor], (sender, receiver), cells, "experts"))
        return found

    def _partner(self, gpu: int, turn: int) -> int:
        """Returns the GPU that another one of its group exchanges with in a turn, so that in each turn every GPU has
        one of its own: pairwise where the group is a power of two, which spreads over nodes as well (Thakur et al.
        2005, doi 10.1177/1094342005051521), else around a ring."""
        place, degree = gpu % self.degree, self.degree
        return gpu - place + (place ^ turn if degree & (degree - 1) == 0 else (place + turn) % degree)

    def rows(self, number: int) -> list[Ints]:
        """Returns the operations of a formula of experts, on every GPU that has tokens for them.

        The gradients of experts without a token are zeros, which somebody has to write: they are computed wherever the
        group has tokens.
        """
        formula, found = self.layout.formulas[number], []
        for gpu in range(self.parts.num_gpus):
            tokens = self._comes(gpu)
            if not len(tokens) and is_gradient_of_experts(formula):
                tokens = self._group(gpu)
            if len(tokens):
                column = {"t": self.lists.number("t", tokens), "e": self.lists.number("e", self._experts(gpu))}
                slots = [column[slot] for slot in formula.slots]
                found.append(operation_row(COMPUTE, number, (gpu, -1), slots, "compute"))
        return [np.array(found, np.int64)]

    def saved(self, name: str) -> list[list[int]]:
        """Returns the entries of a tensor of routed tokens that stays where the experts are."""
        assert self.parts.routing is not None
        number = self.layout.number[name]
        tensor = self.layout.tensors[number]
        count = COMPLETE if tensor.nature == "sum" else 0
        found = []
        for gpu in range(self.parts.num_gpus):
            place, index = self.lists.number(PLACE, [gpu]), tensor.axes[1]
            for part in [gpu % self.degree] if index == "k" else self._experts(gpu).tolist():
                routed = self.parts.routing.to_slices if index == "k" else self.parts.routing.to_experts
                tokens = self._group(gpu)
                tokens = tokens[routed[tokens, part] > 0]
                if len(tokens):
                    cells = [self.lists.number("t", tokens), self.lists.number(index, [part])]
                    found.append([number, 0, place, *cells, count, 0, 0])
        return found

    def contributions(self, formula: Formula) -> Ints:
        """Returns how many contributions every GPU makes to each cell of its slice of a gradient of experts, -1 if no
        token is in its group."""
        assert self.parts.routing is not None
        found = []
        for gpu in range(self.parts.num_gpus):
            group = self._group(gpu)
            met = self.parts.routing.to_experts[np.ix_(group, self._experts(gpu))] > 0
            found.append(int(met.sum()) if len(group) else -1)
        return np.array(found, np.int64)
