"""The functions of formulas of routers that choose while a step runs, in numpy, for one combination of parts.

Seats are those of zbench.step.passes.router.seats: of a slice of the experts a row for each seat, expert after expert.
What a part of a GPU's tokens adds to them is zeros but where one of its own is. Choices are made by sorting, token
after token and expert after expert. Axes as in zbench.correctness.steps.functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.describe.model import SIGMOID, SOFTMAX, SOFTMAX_ALL
from zbench.step.layers import SHARES


@dataclass(frozen=True)
class Seated:
    """The seats of a combination. room: of an expert; slice, expert: the [first, last) experts of a slice and of an
    expert's part. tokens: [first, last) of the part's among its GPU's; count: of these. per_token: experts of a
    token."""

    room: int
    slice: tuple[int, int]
    expert: tuple[int, int]
    tokens: tuple[int, int]
    count: int
    per_token: int

    experts = np.zeros((0, 1), np.int64)  # of rows of seats each is for one expert

    @property
    def rows(self) -> range:
        """The rows of the slice."""
        return range((self.slice[1] - self.slice[0]) * self.room)

    @property
    def of_expert(self) -> tuple[Ints, Ints]:
        """The rows of the slice that are the expert's, and the number of their share."""
        first = (self.expert[0] - self.slice[0]) * self.room
        return first + np.arange(self.room), np.zeros(self.room, np.int64)

    def seated(self, wanted: Flags) -> Ints:
        """Returns the tokens in the slice's seats, -1 where none is: of those that go to an expert the first ones.
        wanted: bool [tokens, experts]."""
        found = []
        for expert in range(*self.slice):
            tokens = [token for token in range(len(wanted)) if wanted[token, expert]][: self.room]
            found += tokens + [-1] * (self.room - len(tokens))
        return np.array(found, np.int64)

    def of_part(self, to: Ints) -> list[tuple[int, int, int]]:
        """Lists (row, token of the part, expert) of the seats that have a token of the part."""
        first, last = self.tokens
        return [
            (row, token - first, self.slice[0] + row // self.room)
            for row, token in enumerate(to.tolist())
            if first <= token < last
        ]


def _collect(at: Seated, r: Floats) -> Any:
    found = np.zeros((at.count, r.shape[1]))
    found[slice(*at.tokens)] = r
    return found


def _largest(values: Floats, count: int) -> set[int]:
    """Returns the places of the largest values, the first among equal ones."""
    return set(sorted(range(len(values)), key=lambda at: (-values[at], at))[:count])


def _tops(at: Seated, logits: Floats) -> Flags:
    """Returns which experts tokens choose, bool [tokens, experts]."""
    every = [_largest(row, at.per_token) for row in logits]
    return np.array([[expert in chosen for expert in range(logits.shape[1])] for chosen in every], bool)


def _choose_experts(at: Seated, ra: Floats) -> Any:
    return at.seated(_tops(at, ra))


def _choose_tokens(at: Seated, ra: Floats) -> Any:
    scores = _softmax(ra)
    every = [_largest(column, at.room) for column in scores.T]
    return at.seated(np.array([[token in chosen for chosen in every] for token in range(len(scores))], bool))


def _seat(at: Seated, m: Floats, to: Ints) -> Any:
    found = np.zeros((len(to), m.shape[1]))
    for row, token, _ in at.of_part(to):
        found[row] = m[token]
    return found


def _unseat(at: Seated, v: Floats, to: Ints) -> Any:
    found = np.zeros((at.tokens[1] - at.tokens[0], v.shape[1]))
    for row, token, _ in at.of_part(to):
        found[token] += v[row]
    return found


def _softmax(x: Floats) -> Any:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _shares(gate: str, at: Seated, r: Floats) -> Any:
    """Returns shares of all experts, 0 of those that a token did not choose, and the derivatives of the logarithms of
    what they are parts of."""
    if gate == SOFTMAX_ALL:
        return _softmax(r), np.ones_like(r)
    scores = 1 / (1 + np.exp(-r)) if gate == SIGMOID else np.exp(r - r.max(axis=1, keepdims=True))
    scores = scores * _tops(at, r)
    slope = {SIGMOID: 1 / (1 + np.exp(r)), SOFTMAX: np.ones_like(r)}
    return scores / scores.sum(axis=1, keepdims=True), slope[gate]


def _share(gate: str, at: Seated, r: Floats, to: Ints) -> Any:
    share, found = _shares(gate, at, r)[0], np.zeros((len(to), 1))
    for row, token, expert in at.of_part(to):
        found[row] = share[token, expert]
    return found


def _share_d0(gate: str, at: Seated, dp: Floats, r: Floats, to: Ints) -> Any:
    (share, slope), given = _shares(gate, at, r), np.zeros_like(r)
    for row, token, expert in at.of_part(to):
        given[token, expert] = dp[row, 0]
    return slope * share * (given - (given * share).sum(axis=1, keepdims=True))


def _same(at: Seated, rows: Any, *numbers: Ints) -> Any:
    """Returns a group's rows as each of its GPUs has them, or what one of these adds to a sum of the group."""
    return rows


_BETWEEN_GROUP = [f"{name}{back}" for name in ("replicate", "sum_parts", "replicate_counted", "sum_parts_counted")
                  for back in ("", "_d0")]  # fmt: skip
SEAT_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    **{f"{name}_of_seats": partial(_share, gate) for gate, name in SHARES.items()},
    **{f"{name}_of_seats_d0": partial(_share_d0, gate) for gate, name in SHARES.items()},
    "collect": _collect, "choose_experts": _choose_experts, "choose_tokens": _choose_tokens, "seat": _seat,
    "seat_d0": _unseat, "unseat": _unseat, "unseat_d0": _seat, "replicate_counts": _same,
    **dict.fromkeys(_BETWEEN_GROUP, _same),
})  # fmt: skip
