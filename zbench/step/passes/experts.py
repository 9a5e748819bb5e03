"""Experts over ranks: tokens go to where their experts' weights are, and come home as a sum of what these make.

A formula with a slot of e is computed on the GPU that has the expert, for the tokens of its group that go there; what
has a slot of k, a slice of the experts, on the home of the tokens. What one side makes of k and the other reads is
sent, a message for each pair of GPUs (the all-to-all of Lepikhin et al. 2021, arXiv 2006.16668).

In two levels a node's relay for a home is the GPU of the same number in the node: it has the tokens that go to any of
the node's experts, sends them on inside, and sums what comes back (DeepSeek-V3, arXiv 2412.19437, section 3.2.2).
Shares go to experts directly: they are some bytes a token. By 2DH relays are GPUs of the home's own node, which bring
rows into order and send all of a node's to a GPU of another one together, shares as well
(zbench.step.passes.router.relays).

Where experts are cut over GPUs, these are a node of that kind: what was sent to one of them is sent on to the others,
each of which has all rows, and what they make of their columns is summed there and sent home.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.formula import Formula, Reference
from zbench.step.layers import (
    COUNTS,
    EVERY_COUNT,
    GROUP_COUNTS,
    is_gradient_of_experts,
    of_experts,
    of_relay,
    of_shared_experts,
)
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import COMPUTE, SEND, operation_row
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.router.relays import Relays, partner_in_turn
from zbench.step.template import COMPLETE

HOME, RELAY, EXPERT = _SITES = ("home", "relay", "expert")  # where formulas are computed, in the order of the way out


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

    @property
    def _relays(self) -> Relays:
        """The relays, where rows go in two steps."""
        return self.parts.experts.relays

    @property
    def _tokens(self) -> str:
        """The index that routed rows are cut along."""
        assert self.parts.routing is not None
        return self.parts.routing.index

    def _goes(self, gpu: int, slices: int) -> Ints:
        """Returns the parts at home on a GPU that have tokens for a slice of the experts, of t or of what routed rows
        are cut along."""
        assert self.parts.routing is not None
        own = self.parts.routed_own[gpu]
        return np.asarray(own[self.parts.routing.to_slices[own, slices] > 0], np.int64)

    def _group(self, gpu: int) -> Ints:
        """Returns the parts at home in a GPU's group."""
        first = gpu // self.degree * self.degree
        return np.concatenate([self.parts.routed_own[one] for one in range(first, first + self.degree)])

    def _comes(self, gpu: int) -> Ints:
        """Returns the parts that have tokens for the experts of a GPU."""
        assert self.parts.routing is not None
        group = self._group(gpu)
        return np.asarray(group[self.parts.routing.to_slices[group, gpu % self.degree] > 0], np.int64)

    def _experts(self, gpu: int) -> Ints:
        each = self.parts.experts.cut(self.parts.model.num_experts).each
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
        # Counts go ahead of the rows that they are of.
        for one in sorted(formula.operands, key=lambda one: one.tensor not in EVERY_COUNT):
            axes = self.layout.tensors[self.layout.number[one.tensor]].axes
            if axes[1:] in (("k",), ("n",)) and one.tensor not in self.moved:
                elsewhere = [site for site in self._made_at(one) if site != _site(formula)]
                if elsewhere:
                    self.moved.add(one.tensor)
                    found += self._messages(one.tensor, (elsewhere[0], _site(formula)))
        return [np.array(found, np.int64)] if found else []

    def _makers(self, one: Reference) -> list[int]:
        """Returns the numbers of the template's formulas that make what a reference names."""
        makers = self.layout.makers[one.tensor]
        return [at for at in self.made if at in makers]

    def _made_at(self, one: Reference) -> list[str]:
        """Returns where the template makes what a reference names."""
        return [_site(self.layout.formulas[at]) for at in self._makers(one)]

    def _messages(self, tensor: str, ends: tuple[str, str]) -> list[list[int]]:
        """Returns the sends of a tensor. ends: the site that makes it and the one that reads it."""
        if EXPERT not in ends:
            between, index = self._to_relays(), "n"
        else:
            between, index = self._from_relays() if RELAY in ends else self._between_gpus(), "k"
        outwards = _SITES.index(ends[0]) < _SITES.index(ends[1])
        found = []
        for near, far, part, tokens in between:
            if len(tokens):
                cells = [self.lists.number(self._tokens, tokens), self.lists.number(index, [part])]
                pair = (near, far) if outwards else (far, near)
                found.append(operation_row(SEND, self.layout.number[tensor], pair, cells, "experts"))
        return found

    def _between_gpus(self) -> Iterator[tuple[int, int, int, Ints]]:
        """Yields, turn by turn, a home, a GPU of its group, this one's slice, and the parts that go there."""
        for turn, gpu in product(range(1, self.degree), range(self.parts.num_gpus)):
            part = partner_in_turn(gpu % self.degree, turn, self.degree)
            yield gpu, gpu // self.degree * self.degree + part, part, self._goes(gpu, part)

    def _to_relays(self) -> Iterator[tuple[int, int, int, Ints]]:
        """Yields, turn by turn, a home, its relay for a part of n, this part, and the parts that go there."""
        assert self.parts.routing is not None
        for gpu, relay, part in self._relays.to_relays(self.parts.num_gpus):
            own = self.parts.routed_own[gpu]
            yield gpu, relay, part, np.asarray(own[self.parts.routing.to_nodes[own, part] > 0], np.int64)

    def _from_relays(self) -> Iterator[tuple[int, int, int, Ints]]:
        """Yields, turn by turn, a relay, another GPU that it passes rows on to, this one's slice, and the parts that go
        there of the relay's."""
        assert self.parts.routing is not None
        for gpu, other, part in self._relays.from_relays(self.parts.num_gpus):
            parts = self._relayed(gpu)
            yield gpu, other, part, np.asarray(parts[self.parts.routing.to_slices[parts, part] > 0], np.int64)

    def _relayed(self, gpu: int) -> Ints:
        """Returns the parts that a GPU passes on, of t or of what routed rows are cut along."""
        assert self.parts.routing is not None
        parts = np.concatenate([self.parts.routed_own[one] for one in self._relays.homes(gpu)])
        return np.asarray(parts[self.parts.routing.to_nodes[parts, self._relays.part(gpu)] > 0], np.int64)

    def rows(self, number: int) -> list[Ints]:
        """Returns the operations of a formula of experts, or of relays, on every GPU that has tokens for them.

        The gradients of experts without a token are zeros, which somebody has to write: they are computed wherever the
        group has tokens.
        """
        formula, found = self.layout.formulas[number], []
        relays = _site(formula) == RELAY
        for gpu in range(self.parts.num_gpus):
            tokens = self._relayed(gpu) if relays else self._comes(gpu)
            if not len(tokens) and is_gradient_of_experts(formula):
                tokens = self._group(gpu)
            if len(tokens):
                held = ("k", self._relays.slices(gpu)) if relays else ("e", self._experts(gpu))
                column = {self._tokens: self.lists.number(self._tokens, tokens), held[0]: self.lists.number(*held)}
                slots = [column[slot] for slot in formula.slots]
                found.append(operation_row(COMPUTE, number, (gpu, -1), slots, "compute"))
        return [np.array(found, np.int64)]

    def saved(self, name: str) -> list[list[int]]:
        """Returns the entries of a tensor of routed tokens that stays where the experts are, or where their homes are
        if these alone read it."""
        assert self.parts.routing is not None
        number = self.layout.number[name]
        tensor = self.layout.tensors[number]
        count = COMPLETE if tensor.nature == "sum" else 0
        readers = [one for one in self.layout.formulas if any(ref.tensor == name for ref in one.operands)]
        if not any(map(of_experts, readers)):
            # Numbers of a group's rows are read where these are passed on, and by whoever is sent such rows.
            passed = self._saved_at_relays(number, "n", count) if name == GROUP_COUNTS else []
            return self._saved_at_home(number, count, tensor.axes[1], passed=name == GROUP_COUNTS) + passed
        # Counts are read where experts are, and by whoever is sent rows of theirs: at home, or by relays.
        found, relays = [], "n" in self.layout.index
        if name == COUNTS:
            found = self._saved_at_relays(number, "k", count) if relays else self._saved_at_home(number, count, "k")
        for gpu in range(self.parts.num_gpus):
            place, index = self.lists.number(PLACE, [gpu]), tensor.axes[1]
            known = self._relayed(gpu) if relays and name == COUNTS else self.parts.routed_own[gpu]
            for part in [gpu % self.degree] if index == "k" else self._experts(gpu).tolist():
                routed = self.parts.routing.to_slices if index == "k" else self.parts.routing.to_experts
                tokens = self._group(gpu)
                tokens = tokens[routed[tokens, part] > 0]
                tokens = np.setdiff1d(tokens, known) if name == COUNTS else tokens
                if len(tokens):
                    cells = [self.lists.number(self._tokens, tokens), self.lists.number(index, [part])]
                    found.append([number, 0, place, *cells, count, 0, 0])
        return found

    def _saved_at_home(self, number: int, count: int, index: str, passed: bool = False) -> list[list[int]]:
        """Returns the entries of a tensor of all parts of an index of experts' slices that stays where the tokens'
        homes are. passed: without those that are at a home as it is the relay of its own tokens."""
        found = []
        for gpu in range(self.parts.num_gpus):
            own = self.parts.routed_own[gpu]
            parts = np.arange(len(self.layout.index[index]))
            if passed:
                parts = np.setdiff1d(parts, [self._relays.part(gpu)])
            if len(own) and len(parts):
                cells = [self.lists.number(self._tokens, own), self.lists.number(index, parts)]
                found.append([number, 0, self.lists.number(PLACE, [gpu]), *cells, count, 0, 0])
        return found

    def _saved_at_relays(self, number: int, index: str, count: int) -> list[list[int]]:
        """Returns the entries of a tensor of groups (n) or of slices (k) that stays where rows are passed on."""
        found = []
        for gpu in range(self.parts.num_gpus):
            tokens, node = self._relayed(gpu), self._relays.part(gpu)
            if len(tokens):
                parts = self._relays.slices(gpu) if index == "k" else np.array([node])
                cells = [self.lists.number(self._tokens, tokens), self.lists.number(index, parts)]
                found.append([number, 0, self.lists.number(PLACE, [gpu]), *cells, count, 0, 0])
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


def _site(formula: Formula) -> str:
    """Returns where a formula is computed."""
    return EXPERT if of_experts(formula) else RELAY if of_relay(formula) else HOME
