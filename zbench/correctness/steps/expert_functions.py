"""The functions of an expert layer's formulas, in numpy, for one combination of parts.

Axes as in zbench.correctness.steps.functions; c: the experts that a token chose. What a slice of the experts is sent of
a part has the rows of those tokens alone that chose one of it, in the tokens' order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from zbench.describe.arrays import Floats, Ints


@dataclass(frozen=True)
class Chosen:
    """The experts of a part's tokens, int64 [tokens, chosen], and the [first, last) experts of a slice and of an
    expert's part."""

    experts: Ints
    slice: tuple[int, int]
    expert: tuple[int, int]

    @property
    def rows(self) -> Ints:
        """The tokens that chose an expert of the slice."""
        return np.flatnonzero(_inside(self.experts, self.slice).any(axis=1))

    @property
    def of_expert(self) -> tuple[Ints, Ints]:
        """The rows of the slice's tokens that chose the expert, and as which of their choices."""
        rows, choice = np.nonzero(_inside(self.experts[self.rows], self.expert))
        return rows, choice


def _inside(experts: Ints, span: tuple[int, int]) -> np.ndarray:
    return (experts >= span[0]) & (experts < span[1])


def _shares(at: Chosen, r: Floats) -> Any:
    """Returns the shares of all chosen experts, [rows, c], and which of them are of the slice."""
    logits = np.take_along_axis(r, at.experts, axis=1)[at.rows]
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    return share / share.sum(axis=1, keepdims=True), _inside(at.experts[at.rows], at.slice)


def _share(at: Chosen, r: Floats) -> Any:
    share, mine = _shares(at, r)
    return share * mine


def _share_d0(at: Chosen, dp: Floats, r: Floats) -> Any:
    share, mine = _shares(at, r)
    inner = dp * mine
    found = np.zeros_like(r)
    gradient = share * (inner - (inner * share).sum(axis=1, keepdims=True))
    np.put_along_axis(found, at.experts, _spread(at, gradient, len(r)), axis=1)
    return found


def _spread(at: Chosen, values: Floats, tokens: int) -> Any:
    """Returns rows of the slice's tokens as rows of all tokens, zeros elsewhere."""
    found = np.zeros((tokens, *values.shape[1:]))
    found[at.rows] = values
    return found


def _pick(at: Chosen, m: Floats) -> Any:
    return m[at.rows]


def _pick_d0(at: Chosen, di: Floats) -> Any:
    return _spread(at, di, len(at.experts))


def _enter(at: Chosen, i: Floats, w: Floats) -> Any:
    return np.einsum("te,efk->tfk", i[at.of_expert[0]], w[0])


def _enter_d0(at: Chosen, dz: Floats, w: Floats) -> Any:
    found = np.zeros((len(at.rows), w.shape[1]))
    found[at.of_expert[0]] = np.einsum("tfk,efk->te", dz, w[0])
    return found


def _enter_d1(at: Chosen, dz: Floats, i: Floats) -> Any:
    return np.einsum("tfk,te->efk", dz, i[at.of_expert[0]])[None]


def _leave(at: Chosen, p: Floats, u: Floats, w: Floats) -> Any:
    rows, choice = at.of_expert
    found = np.zeros((len(p), w.shape[2]))
    found[rows] = p[rows, choice][:, None] * (u @ w[0])
    return found


def _leave_d0(at: Chosen, dv: Floats, u: Floats, w: Floats) -> Any:
    rows, choice = at.of_expert
    found = np.zeros((len(dv), at.experts.shape[1]))
    found[rows, choice] = (dv[rows] * (u @ w[0])).sum(axis=1)
    return found


def _leave_d1(at: Chosen, dv: Floats, p: Floats, w: Floats) -> Any:
    rows, choice = at.of_expert
    return p[rows, choice][:, None] * (dv[rows] @ w[0].T)


def _leave_d2(at: Chosen, dv: Floats, p: Floats, u: Floats) -> Any:
    rows, choice = at.of_expert
    return ((p[rows, choice][:, None] * u).T @ dv[rows])[None]


def _settle(at: Chosen, v: Floats) -> Any:
    return _spread(at, v, len(at.experts))


def _settle_d0(at: Chosen, dx: Floats) -> Any:
    return dx[at.rows]


EXPERT_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "share": _share, "share_d0": _share_d0, "pick": _pick, "pick_d0": _pick_d0, "enter": _enter, "enter_d0": _enter_d0,
    "enter_d1": _enter_d1, "leave": _leave, "leave_d0": _leave_d0, "leave_d1": _leave_d1, "leave_d2": _leave_d2,
    "settle": _settle, "settle_d0": _settle_d0,
})  # fmt: skip
