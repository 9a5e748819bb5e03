"""The functions of an expert layer's formulas in torch, for all parts of an operation at once, grouped by expert.

Rows of routed tokens are those of zbench.runtime.steps.routed: an expert's lie together, and its matmul is of these
alone; those of padding are zeros. A sum over what slices or experts make of a token is added in their order, one after
another, so it has the same bits in every run.

Shapes: t tokens, c hidden, f columns of the feed-forward, x experts, n experts a token; of ez, an expert's gate and up,
[experts, 2, f, c]; of ed, its way down, [experts, f, c]. Operands are in the formula's order, each as its fields.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from zbench.describe.model import SIGMOID, SOFTMAX_ALL
from zbench.runtime.handlers.context import Context, RoutedRows
from zbench.runtime.handlers.formats import Fields
from zbench.step.layers import SHARES


def _rows(at: Context) -> RoutedRows:
    assert at.routed is not None, "a formula of routed tokens has slots of tokens and of experts or their slices"
    return at.routed


def _pick(at: Context, m: Fields) -> Tensor:
    return torch.cat([_taken(m[0], rows) for rows in _rows(at).tokens])


def _taken(values: Tensor, rows: Tensor) -> Tensor:
    """Returns the values of rows' tokens, zeros of padding (-1)."""
    if not len(rows) or not len(values):
        return values.new_zeros(len(rows), *values.shape[1:])
    return values.index_select(0, rows.clamp(min=0)) * (rows >= 0)[:, None]


def _placed(at: Context, like: Tensor, values: Tensor) -> Tensor:
    """Returns the sum, for every token, of what is in rows of routed tokens, one slice after another."""
    routed = _rows(at)
    found = like.new_zeros(len(routed.chosen), *values.shape[1:])
    split = values.split([len(one) for one in routed.tokens])
    for rows, inside, part in zip(routed.tokens, routed.inside, split, strict=True):
        if not routed.repeated:
            found.index_add_(0, rows, part)  # a token is in a slice once
            continue
        for choice in (inside & (inside.cumsum(1) == 1)).unbind(1):  # and once for the first of its choices there
            found.index_add_(0, rows[choice], part[choice])
    return found


def _pick_d0(at: Context, di: Fields) -> Tensor:
    return _placed(at, di[0], di[0])


def _shares(gate: str, at: Context, r: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the shares of all that a token chose, [t, n]."""
    chosen = _rows(at).chosen
    if gate == SOFTMAX_ALL:
        return r.softmax(1, dtype=dtype).gather(1, chosen)
    if gate == SIGMOID:
        scores = r.gather(1, chosen).to(dtype).sigmoid()
        return scores / scores.sum(1, keepdim=True)
    return r.gather(1, chosen).softmax(1, dtype=dtype)


def _share(gate: str, at: Context, r: Fields) -> Tensor:
    rows = _rows(at)
    shares = _shares(gate, at, r[0], rows.dtype)
    each = zip(rows.tokens, rows.inside, strict=True)
    return torch.cat([_taken(shares, tokens) * inside for tokens, inside in each])


def _share_d0(gate: str, at: Context, dp: Fields, r: Fields) -> Tensor:
    rows, shares = _rows(at), _shares(gate, at, r[0], dp[0].dtype)
    given = _placed(at, dp[0], dp[0] * torch.cat(rows.inside))
    mean = (given * shares).sum(1, keepdim=True)
    if gate == SOFTMAX_ALL:
        found = -mean * r[0].softmax(1, dtype=dp[0].dtype)
        return found.scatter_add_(1, rows.chosen, shares * given).to(r[0].dtype)  # of a token none twice
    inner = shares * (given - mean)
    if gate == SIGMOID:
        inner = inner * (-r[0].gather(1, rows.chosen).to(inner.dtype)).sigmoid()
    return torch.zeros_like(r[0]).scatter_(1, rows.chosen, inner.to(r[0].dtype))


def _each(at: Context, *of_experts: Tensor) -> Iterator[tuple[int, Tensor, Tensor, tuple[Tensor, ...]]]:
    """Yields, expert after expert: its number among those of the operation; of its rows, the rows of what its slice was
    sent and the choices; its rows of each tensor of experts."""
    each = _rows(at).experts
    split = [one.split([len(rows) for rows, _ in each]) for one in of_experts]
    for number, (rows, choice) in enumerate(each):
        yield number, rows, choice, tuple(one[number] for one in split)


def _enter(at: Context, i: Fields, w: Fields) -> Tensor:
    made = [torch.einsum("tc,kfc->tkf", i[0].index_select(0, rows), w[0][one]) for one, rows, _, _ in _each(at)]
    return torch.cat(made)


def _enter_d0(at: Context, dz: Fields, w: Fields) -> Tensor:
    found = dz[0].new_zeros(_rows(at).num_sent, w[0].shape[-1])
    for one, rows, _, (mine,) in _each(at, dz[0]):
        found.index_add_(0, rows, torch.einsum("tkf,kfc->tc", mine, w[0][one]))
    return found


def _enter_d1(at: Context, dz: Fields, i: Fields) -> Tensor:
    made = [torch.einsum("tkf,tc->kfc", mine, i[0].index_select(0, rows)) for _, rows, _, (mine,) in _each(at, dz[0])]
    return torch.stack(made)


def _weighed(p: Tensor, rows: Tensor, choice: Tensor, values: Tensor) -> Tensor:
    """Returns rows times the shares of their choices."""
    return (values * p[rows, choice][:, None]).to(values.dtype)


def _leave(at: Context, p: Fields, u: Fields, w: Fields) -> Tensor:
    found = u[0].new_zeros(_rows(at).num_sent, w[0].shape[-1])
    for one, rows, choice, (mine,) in _each(at, u[0]):
        found.index_add_(0, rows, _weighed(p[0], rows, choice, mine @ w[0][one]))
    return found


def _leave_d0(at: Context, dv: Fields, u: Fields, w: Fields) -> Tensor:
    routed = _rows(at)
    found = dv[0].new_zeros(routed.num_sent, routed.chosen.shape[1], dtype=routed.dtype)
    for one, rows, choice, (mine,) in _each(at, u[0]):
        found[rows, choice] = (dv[0].index_select(0, rows) * (mine @ w[0][one])).sum(1, dtype=routed.dtype)
    return found


def _leave_d1(at: Context, dv: Fields, p: Fields, w: Fields) -> Tensor:
    return torch.cat(
        [_weighed(p[0], rows, choice, dv[0].index_select(0, rows) @ w[0][one].T) for one, rows, choice, _ in _each(at)]
    )


def _leave_d2(at: Context, dv: Fields, p: Fields, u: Fields) -> Tensor:
    return torch.stack(
        [
            _weighed(p[0], rows, choice, mine).T @ dv[0].index_select(0, rows)
            for _, rows, choice, (mine,) in _each(at, u[0])
        ]
    )


def _settle(at: Context, v: Fields) -> Tensor:
    return _placed(at, v[0], v[0])


def _settle_d0(at: Context, dx: Fields) -> Tensor:
    return _pick(at, dx)


def _relay(at: Context, ni: Fields) -> Tensor:
    return torch.cat([ni[0].index_select(0, rows) for rows in _rows(at).in_nodes])


def _relay_d0(at: Context, di: Fields) -> Tensor:
    """Returns what a node's slices have of each of its rows, summed slice after slice; one of them where rows are
    aligned."""
    routed = _rows(at)
    found = di[0].new_zeros(routed.num_in_nodes, *di[0].shape[1:])
    for rows, part in zip(routed.in_nodes, di[0].split([len(one) for one in routed.in_nodes]), strict=True):
        found.index_add_(0, rows, part)  # a token is in a slice once
    return found


def _directions(h: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns rows over their lengths, of both, and the lengths of the first."""
    length = h.norm(dim=1, keepdim=True)
    return h / length, w / w.norm(dim=1, keepdim=True), length


def _cosine(at: Context, h: Fields, w: Fields) -> Tensor:
    tokens, experts, _ = _directions(h[0], w[0])
    return tokens @ experts.T / at.temperature


def _cosine_d0(at: Context, dr: Fields, h: Fields, w: Fields) -> Tensor:
    tokens, experts, length = _directions(h[0], w[0])
    given = dr[0] @ experts
    return (given - (given * tokens).sum(1, keepdim=True) * tokens) / (at.temperature * length)


def _cosine_d1(at: Context, dr: Fields, h: Fields, w: Fields) -> Tensor:
    experts, tokens, length = _directions(w[0], h[0])
    given = dr[0].T @ tokens
    return (given - (given * experts).sum(1, keepdim=True) * experts) / (at.temperature * length)


ROUTED_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    **{name: partial(_share, gate) for gate, name in SHARES.items()},
    **{f"{name}_d0": partial(_share_d0, gate) for gate, name in SHARES.items()},
    "cosine": _cosine, "cosine_d0": _cosine_d0, "cosine_d1": _cosine_d1,
    "pick": _pick, "pick_d0": _pick_d0, "enter": _enter, "enter_d0": _enter_d0,
    "enter_d1": _enter_d1, "leave": _leave, "leave_d0": _leave_d0, "leave_d1": _leave_d1, "leave_d2": _leave_d2,
    "settle": _settle, "settle_d0": _settle_d0, "relay": _relay, "relay_d0": _relay_d0, "together": _relay_d0,
    "together_d0": _relay, "align": _relay, "align_d0": _relay_d0, "realign": _relay_d0, "realign_d0": _relay,
})  # fmt: skip
