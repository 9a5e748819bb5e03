"""The functions of an expert layer's formulas, in numpy, for one combination of parts.

Axes as in zbench.correctness.steps.functions; c: the experts that a token chose, ~expert of one that has no room. What
a slice of the experts is sent of a part has the rows of those tokens alone that chose one of it, in the tokens' order;
with padding a row for each choice, expert after expert.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from zbench.correctness.steps.seat_functions import SEAT_FUNCTIONS, Seated
from zbench.describe.arrays import Floats, Ints
from zbench.describe.model import SIGMOID, SOFTMAX_ALL
from zbench.step.layers import SHARES


@dataclass(frozen=True)
class Chosen:
    """The experts of a part's tokens, int64 [tokens, chosen], and the [first, last) experts of a slice, None of all
    that relays pass on together, and of an expert's part. padding: rows of no token by expert, None: there is none.
    node: the spans of experts whose rows relays pass on with the slice's: one, of which a token has a row once, or
    where rows are aligned those of several slices, each with rows of its own. Shares are of all that a token chose."""

    experts: Ints
    slice: tuple[int, int] | None
    expert: tuple[int, int]
    padding: Ints | None = None
    node: tuple[tuple[int, int], ...] = ()

    @property
    def all(self) -> Ints:
        """The experts that tokens chose, with room or not."""
        return np.where(self.experts < 0, ~self.experts, self.experts)

    @property
    def rows(self) -> list[tuple[int, int, set[int]]]:
        """The rows that the slice is sent: a token, -1 of padding; an expert, -1 of all that are the token's; and which
        of the token's choices it is for."""
        if self.slice is None:
            return [row for one in self.node for row in replace(self, slice=one).rows]
        first, last = self.slice
        if self.padding is None:
            mine = [{at for at, one in enumerate(row) if first <= one < last} for row in self.experts.tolist()]
            return [(token, -1, choices) for token, choices in enumerate(mine) if choices]
        found = []
        for expert in range(first, last):
            for token, row in enumerate(self.experts.tolist()):
                found += [(token, expert, {row.index(expert)})] if expert in row else []
            found += [(-1, expert, set[int]())] * int(self.padding[expert])
        return found

    @property
    def in_node(self) -> Ints:
        """The rows of the slice by their numbers among those of its node."""
        if len(self.node) > 1:
            assert self.slice is not None, "a slice's rows are asked for"
            before = self.node[: self.node.index(self.slice)]
            return sum(len(replace(self, slice=one).rows) for one in before) + np.arange(len(self.rows))
        if self.padding is not None:  # GPUs of a node have the same experts then, and rows
            return np.arange(len(self.rows))
        tokens = [token for token, _, _ in replace(self, slice=None).rows]
        return np.array([tokens.index(token) for token, _, _ in self.rows], np.int64)

    @property
    def of_expert(self) -> tuple[Ints, Ints]:
        """The rows of the slice that go to the expert, and as which of their tokens' choices, 0 of padding."""
        found, expert = [], self.expert[0]
        for number, (token, only, choices) in enumerate(self.rows):
            if only in (-1, expert):
                mine = [at for at in choices if self.experts[token, at] == expert]
                found += [(number, mine[0] if mine else 0)] if mine or token < 0 else []
        rows, choice = np.array(found, np.int64).reshape(-1, 2).T
        return rows, choice

    def taken(self, values: Floats) -> Any:
        """Returns the values of the rows' tokens, zeros of padding."""
        none = np.zeros(values.shape[1:])
        return np.array([none if token < 0 else values[token] for token, _, _ in self.rows]).reshape(-1, *none.shape)

    def placed(self, values: Floats) -> Any:
        """Returns what the rows of each token sum to."""
        found = np.zeros((len(self.experts), *values.shape[1:]))
        for (token, _, _), value in zip(self.rows, values, strict=True):
            if token >= 0:
                found[token] += value
        return found

    @property
    def inside(self) -> Any:
        """The choices that each row is for, bool [rows, chosen]."""
        found = np.zeros((len(self.rows), self.experts.shape[1]), bool)
        for number, (_, _, choices) in enumerate(self.rows):
            found[number, list(choices)] = True
        return found


def _scores(gate: str, at: Chosen, r: Floats) -> Any:
    """Returns scores, of which shares are parts, of all experts, 0 of those that are not counted; and the derivatives
    of their logarithms, float64 [tokens, experts] each."""
    counted = np.ones_like(r, bool)
    if gate != SOFTMAX_ALL:
        counted = np.zeros_like(r, bool)
        np.put_along_axis(counted, at.all, True, axis=1)
    if gate == SIGMOID:
        return counted / (1 + np.exp(-r)), 1 / (1 + np.exp(r))
    return counted * np.exp(r - r.max(axis=1, keepdims=True)), np.ones_like(r)


def _share(gate: str, at: Chosen, r: Floats) -> Any:
    scores, _ = _scores(gate, at, r)
    share = np.take_along_axis(scores / scores.sum(axis=1, keepdims=True), at.all, axis=1)
    return at.taken(share) * at.inside


def _share_d0(gate: str, at: Chosen, dp: Floats, r: Floats) -> Any:
    scores, slope = _scores(gate, at, r)
    share, given = scores / scores.sum(axis=1, keepdims=True), np.zeros_like(r)
    np.put_along_axis(given, at.all, at.placed(dp * at.inside), axis=1)
    return slope * share * (given - (given * share).sum(axis=1, keepdims=True))


def _pick(at: Chosen, m: Floats) -> Any:
    return at.taken(m)


def _pick_d0(at: Chosen, di: Floats) -> Any:
    return at.placed(di)


def _enter(at: Chosen | Seated, i: Floats, w: Floats) -> Any:
    return np.einsum("te,efk->tfk", i[at.of_expert[0]], w[0])


def _enter_d0(at: Chosen | Seated, dz: Floats, w: Floats) -> Any:
    found = np.zeros((len(at.rows), w.shape[1]))
    found[at.of_expert[0]] = np.einsum("tfk,efk->te", dz, w[0])
    return found


def _enter_d1(at: Chosen | Seated, dz: Floats, i: Floats) -> Any:
    return np.einsum("tfk,te->efk", dz, i[at.of_expert[0]])[None]


def _leave(at: Chosen | Seated, p: Floats, u: Floats, w: Floats) -> Any:
    rows, choice = at.of_expert
    found = np.zeros((len(p), w.shape[2]))
    found[rows] = p[rows, choice][:, None] * (u @ w[0])
    return found


def _leave_d0(at: Chosen | Seated, dv: Floats, u: Floats, w: Floats) -> Any:
    rows, choice = at.of_expert
    found = np.zeros((len(dv), at.experts.shape[1]))
    found[rows, choice] = (dv[rows] * (u @ w[0])).sum(axis=1)
    return found


def _leave_d1(at: Chosen | Seated, dv: Floats, p: Floats, w: Floats) -> Any:
    rows, choice = at.of_expert
    return p[rows, choice][:, None] * (dv[rows] @ w[0].T)


def _leave_d2(at: Chosen | Seated, dv: Floats, p: Floats, u: Floats) -> Any:
    rows, choice = at.of_expert
    return ((p[rows, choice][:, None] * u).T @ dv[rows])[None]


def _settle(at: Chosen, v: Floats) -> Any:
    return at.placed(v)


def _settle_d0(at: Chosen, dx: Floats) -> Any:
    return at.taken(dx)


def _relay(at: Chosen, ni: Floats) -> Any:
    return ni[at.in_node]


def _relay_d0(at: Chosen, di: Floats) -> Any:
    found = np.zeros((len(replace(at, slice=None).rows), *di.shape[1:]))
    found[at.in_node] = di
    return found


EXPERT_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    **{name: partial(_share, gate) for gate, name in SHARES.items()},
    **{f"{name}_d0": partial(_share_d0, gate) for gate, name in SHARES.items()},
    "pick": _pick, "pick_d0": _pick_d0, "enter": _enter, "enter_d0": _enter_d0,
    "enter_d1": _enter_d1, "leave": _leave, "leave_d0": _leave_d0, "leave_d1": _leave_d1, "leave_d2": _leave_d2,
    "settle": _settle, "settle_d0": _settle_d0, "relay": _relay, "relay_d0": _relay_d0, "together": _relay_d0,
    "together_d0": _relay, "align": _relay, "align_d0": _relay_d0, "realign": _relay_d0, "realign_d0": _relay,
    **SEAT_FUNCTIONS,
})  # fmt: skip
