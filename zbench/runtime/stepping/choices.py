"""Choices of routers in a step that processes have run are told to the dense reference, and held to its own logits.

A process tells the logits that it chose by and who is in which seat. Of these come the experts of every token in every
layer, which the dense reference is told. Who has a seat is counted once more here, token after token. That choices are
the largest is then looked at in the dense reference's own logits: these differ from a process's by rounding, so what is
chosen may fall short of what is not by as much, where two are about equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.describe.expert_schedule import TOKEN_CHOICE
from zbench.describe.model import Model
from zbench.runtime.handlers.machine import BatchParts
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.step.layers import CHOICES

Told = dict[tuple[int, int, int], tuple[Floats, Ints]]  # by micro-batch, layer, part of a: logits, tokens by expert


def told_choices(prepared: PreparedStep) -> Told:
    """Returns the choices that a process made in a step: logits of a GPU's tokens, float64 [tokens, experts], and the
    tokens in the seats of each expert, -1 where none is, int64 [experts, seats]."""
    found: Told = {}
    for (number, layer, groups), (logits, seats) in prepared.batches[0].machine.choices.items():
        of = prepared.batches[number].seats
        assert of is not None, "a router chooses"
        own = logits.to(torch.float64).cpu().numpy()
        each = np.split(own, np.cumsum(of.tokens[list(groups)])[:-1])
        for group, scores, table in zip(groups, each, of.tables(groups, seats.cpu().numpy()), strict=True):
            found[number, layer, group] = scores, table
    return found


def counted_seats(prepared: PreparedStep) -> tuple[int, int]:
    """Returns how many seats experts have for the tokens of a process in a step, and how many of these have none."""
    tables = [seats for _, seats in prepared.batches[0].machine.choices.values()]
    return sum(one.numel() for one in tables), sum(int((one < 0).sum()) for one in tables)


def counted_rows(prepared: PreparedStep) -> dict[tuple[int, int, int], tuple[int, ...]]:
    """Returns the rows of seats with a token of every expert, by micro-batch, layer and part of a at home on a process;
    nothing where all seats are rows."""
    if prepared.batches[0].counted is None:
        return {}
    return {key: tuple((table >= 0).sum(axis=1).tolist()) for key, (_, table) in told_choices(prepared).items()}


def gathered_choices(prepared: PreparedStep, model: Model, group: dist.ProcessGroup) -> "RouterChoices | None":
    """Returns the choices of all processes, on process 0; None on others, and where no router chooses. Collective where
    one does."""
    if prepared.batches[0].seats is None:
        return None
    first = dist.get_rank() == 0
    every: list[Told] | None = [{}] * dist.get_world_size() if first else None
    dist.gather_object(told_choices(prepared), every, 0, group)
    if every is None:
        return None
    told = {key: value for one in every for key, value in one.items()}
    return RouterChoices(prepared.batches, told, model.experts_per_token)


def by_sequence(routes: Mapping[int, Ints], logits: Sequence[Tensor]) -> dict[int, Floats]:
    """Returns routers' logits by the number of their sequence. logits: of sequences in the order of their numbers."""
    return {number: one.numpy() for number, one in zip(sorted(routes), logits, strict=True)}


@dataclass(frozen=True)
class RouterChoices:
    """The choices of a whole step. batches: of its micro-batches; told: of all processes. per_token: experts that a
    token chooses."""

    batches: Sequence[BatchParts]
    told: Told
    per_token: int

    @property
    def _of_tokens(self) -> bool:
        """Whether tokens choose, and not experts."""
        function = CHOICES[TOKEN_CHOICE]
        return any(term.function == function for one in self.batches[0].layout.formulas for term in one.terms)

    def routes(self) -> dict[int, Ints]:
        """Returns the experts of every token of every sequence, by its number in the batch, int64 [layers, tokens,
        experts a token], ~expert where it is in no seat; where experts choose, of all experts."""
        found: dict[int, Ints] = {}
        layers = 1 + max(layer for _, layer, _ in self.told)
        for (number, layer, group), (logits, seats) in self.told.items():
            chosen = _experts(self._wanted(logits, seats), seats, self.per_token if self._of_tokens else len(seats))
            tokens = self.batches[number].tokens
            sequence, position = self._tokens(number, group)
            for one, at, experts in zip(sequence.tolist(), position.tolist(), chosen, strict=True):
                if one not in found:
                    size = int(tokens.lengths[tokens.numbers == one][0])
                    found[one] = np.zeros((layers, size, chosen.shape[1]), np.int64)
                found[one][layer, at] = experts
        return found

    def faults(self, logits: Mapping[int, Floats]) -> Iterator[tuple[float, str]]:
        """Yields how far choices are from right, and what they are called: infinite where a seat has another token than
        choices say, else by how much a choice falls short of what was not chosen in the dense reference's own logits,
        over the largest of these. logits: of every sequence, float64 [layers, tokens, experts]."""
        for (number, layer, group), (own, seats) in self.told.items():
            wanted = self._wanted(own, seats)
            right = np.array_equal(seats, _seated(wanted, seats.shape[1]))
            yield (0.0 if right else np.inf), f"who is in which seat in layer {layer}"
            scores = self._scores(self._of_group(number, layer, group, logits))
            yield _shortfall(scores, wanted, axis=int(self._of_tokens)), f"the experts chosen in layer {layer}"

    def swapped(self, logits: Mapping[int, Floats]) -> int:
        """Returns how many choices the dense reference's own logits would make otherwise: of equals, but for
        rounding."""
        found = 0
        for (number, layer, group), (own, seats) in self.told.items():
            scores = self._scores(self._of_group(number, layer, group, logits))
            found += int((self._wanted(own, seats) & ~self._largest(scores, seats.shape[1])).sum())
        return found

    def _tokens(self, number: int, group: int) -> tuple[Ints, Ints]:
        """Returns (number of the sequence, position in it) of the tokens of a part of a, in their order."""
        one = self.batches[number]
        assert one.seats is not None, "a router chooses"
        return one.tokens.rows(tuple(np.flatnonzero(one.seats.group == group).tolist()))

    def _of_group(self, number: int, layer: int, group: int, logits: Mapping[int, Floats]) -> Floats:
        """Returns the dense reference's logits of the tokens of a part of a."""
        pairs = zip(*(one.tolist() for one in self._tokens(number, group)), strict=True)
        return np.array([logits[sequence][layer, position] for sequence, position in pairs])

    def _scores(self, logits: Floats) -> Floats:
        """Returns by what is chosen: logits, or an expert's share of a token's softmax where experts choose."""
        if self._of_tokens:
            return logits
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def _largest(self, scores: Floats, room: int) -> Flags:
        """Returns the choices by scores, bool [tokens, experts]; among equals the first."""
        axis, count = (1, self.per_token) if self._of_tokens else (0, room)
        order = np.argsort(-scores, axis=axis, kind="stable")
        found = np.zeros(scores.shape, bool)
        np.put_along_axis(found, order.take(range(min(count, scores.shape[axis])), axis=axis), True, axis=axis)
        return found

    def _wanted(self, logits: Floats, seats: Ints) -> Flags:
        """Returns the choices of a process: by its logits where tokens choose; where experts do by who is in their
        seats, as another softmax has other roundings."""
        if self._of_tokens:
            return self._largest(logits, 0)
        found = np.zeros(logits.shape, bool)
        for expert, tokens in enumerate(seats):
            found[tokens[tokens >= 0], expert] = True
        return found


def _seated(wanted: Flags, room: int) -> Ints:
    """Returns the tokens in the seats of each expert: of those that go there the first ones."""
    found = np.full((wanted.shape[1], room), -1, np.int64)
    for expert, column in enumerate(wanted.T):
        tokens = np.flatnonzero(column)[:room]
        found[expert, : len(tokens)] = tokens
    return found


def _experts(wanted: Flags, seats: Ints, count: int) -> Ints:
    """Returns the experts of tokens, of whom each has as many, int64 [tokens, count], ~expert of those that a token is
    in no seat of; of all experts where it is not a token that chooses."""
    there = np.zeros(wanted.shape, bool)
    for expert, tokens in enumerate(seats):
        there[tokens[tokens >= 0], expert] = True
    every = np.nonzero(wanted)[1] if count < wanted.shape[1] else np.tile(np.arange(count), len(wanted))
    chosen = every.reshape(len(wanted), count)
    return np.where(np.take_along_axis(there, chosen, axis=1), chosen, ~chosen)


def _shortfall(scores: Floats, wanted: Flags, axis: int) -> float:
    """Returns by how much what is chosen falls short of what is not, at most, over the largest score. axis: along which
    there is a choice."""
    least = np.where(wanted, scores, np.inf).min(axis=axis)
    most = np.where(wanted, -np.inf, scores).max(axis=axis)
    return max(0.0, float((most - least).max())) / (float(np.abs(scores).max()) or 1.0)
