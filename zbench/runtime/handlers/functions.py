"""The functions of a dense layer's formulas in torch, for all parts of an operation at once; those of an expert layer
are in zbench.runtime.handlers.experts.

Elementwise work and attention are the executor's (zbench.runtime.kernels). Axes as in zbench.runtime.handlers.formats.
A function takes its operands in the formula's order, each as its first field or, of o, e and l, as all of its fields;
it returns fields, of which there are several where the result has them, and one row of fields a result.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from zbench.runtime.handlers.context import Context
from zbench.runtime.handlers.counted import COUNTED_FUNCTIONS
from zbench.runtime.handlers.experts import ROUTED_FUNCTIONS
from zbench.runtime.handlers.formats import Fields
from zbench.runtime.handlers.seats import SEAT_FUNCTIONS
from zbench.runtime.kernels.elementwise import (
    gated,
    gated_back_input,
    normed,
    normed_back_input,
    normed_back_weight,
    rotate,
    wide,
)
from zbench.runtime.kernels.memory import add, output_of


def _norm(at: Context, x: Fields, g: Fields) -> Tensor:
    return normed(x[0], g[0])


def _norm_d0(at: Context, dy: Fields, x: Fields, g: Fields) -> Tensor:
    return normed_back_input(dy[0], x[0], g[0])


def _norm_d1(at: Context, dy: Fields, x: Fields) -> Tensor:
    return normed_back_weight(dy[0], x[0]).to(x[0].dtype)


def _back(x: Tensor, at: Context) -> Tensor:
    return rotate(x, at.turns[0], -at.turns[1])


def _turn(at: Context, n: Fields, w: Fields) -> Tensor:
    return rotate(torch.einsum("tc,hdc->thd", n[0], w[0]), *at.turns)


def _turn_d0(at: Context, dq: Fields, w: Fields) -> Tensor:
    return torch.einsum("thd,hdc->tc", _back(dq[0], at), w[0])


def _turn_d1(at: Context, dq: Fields, n: Fields) -> Tensor:
    return torch.einsum("thd,tc->hdc", _back(dq[0], at), n[0])


def _turn_keys(at: Context, n: Fields, w: Fields) -> Tensor:
    kv = torch.einsum("tc,gkdc->tkgd", n[0], w[0])
    return torch.stack((rotate(kv[:, 0], *at.turns), kv[:, 1]), 1)


def _back_keys(at: Context, dkv: Tensor) -> Tensor:
    return torch.stack((_back(dkv[:, 0], at), dkv[:, 1]), 1)


def _turn_keys_d0(at: Context, dkv: Fields, w: Fields) -> Tensor:
    return torch.einsum("tkgd,gkdc->tc", _back_keys(at, dkv[0]), w[0])


def _turn_keys_d1(at: Context, dkv: Fields, n: Fields) -> Tensor:
    return torch.einsum("tkgd,tc->gkdc", _back_keys(at, dkv[0]), n[0])


def _rows(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else x.index_select(0, rows)


def _placed(like: Tensor, rows: Tensor | None, values: Tensor, start: float = 0.0) -> Tensor:
    """Returns values at their rows of a tensor with as many rows as `like`, which has `start` elsewhere."""
    if rows is None:
        return values
    found = values.new_full((len(like), *values.shape[1:]), start)
    return found.index_copy_(0, rows, values)


def _summed(like: Tensor, rows: Tensor | None, values: Tensor) -> Tensor:
    """Returns `_placed`, with 0 elsewhere, of rows that may be there several times: under a window several segments of
    an attend may see a key."""
    if rows is None:
        return values
    return values.new_zeros(len(like), *values.shape[1:]).index_add_(0, rows, values)


def _attend(at: Context, q: Fields, kv: Fields) -> Fields:
    cuts = at.cuts
    assert cuts is not None, "an attend has a slot of keys"
    if cuts.cuts is None:
        nothing = torch.full(q[0].shape[:2], -torch.inf, dtype=wide(q[0].dtype), device=q[0].device)
        return torch.zeros_like(q[0]), nothing
    keys = _rows(kv[0], cuts.kv_rows)
    k, v = at.heads.spread(keys[:, 0]), at.heads.spread(keys[:, 1])
    o, lse = at.kernel.forward(_rows(q[0], cuts.q_rows), k, v, cuts.cuts)
    return _placed(q[0], cuts.q_rows, o), _placed(q[0], cuts.q_rows, lse, -torch.inf)


def _row_sums(at: Context, o: Fields, do: Fields) -> Fields:
    lse = o[1]  # as it came, both fields are in one message, which would stay as long as these
    if lse.untyped_storage().nbytes() > lse.nbytes:
        lse = lse.clone()
    return lse, (o[0] * do[0]).sum(-1, dtype=lse.dtype)


def _attend_d(at: Context, q: Fields, kv: Fields, do: Fields, e: Fields) -> tuple[Fields, Fields]:
    cuts = at.cuts
    assert cuts is not None, "an attend has a slot of keys"
    if cuts.cuts is None:
        return (torch.zeros_like(q[0]),), (torch.zeros_like(kv[0]),)
    keys = _rows(kv[0], cuts.kv_rows)
    k, v = at.heads.spread(keys[:, 0]), at.heads.spread(keys[:, 1])
    given, lse, sums, rows = (_rows(x, cuts.q_rows) for x in (do[0], *e, q[0]))
    dq, dk, dv = at.kernel.backward(given, rows, k, v, output_of(given, sums), lse, cuts.cuts)
    dkv = torch.stack((at.heads.gather(dk), at.heads.gather(dv)), 1)
    return (_placed(q[0], cuts.q_rows, dq),), (_summed(kv[0], cuts.kv_rows, dkv),)


def _act(at: Context, z: Fields) -> Tensor:
    return gated(z[0].flatten(1))


def _act_d0(at: Context, du: Fields, z: Fields) -> Tensor:
    return gated_back_input(du[0], z[0].flatten(1)).view(z[0].shape)


def _lookup(at: Context, we: Fields) -> Tensor:
    here = at.tokens >= 0
    return we[0].index_select(0, at.tokens.clamp(min=0)) * here[:, None]


def _lookup_d0(at: Context, dx: Fields) -> Tensor:
    here = at.tokens >= 0
    found = dx[0].new_zeros(at.num_words, dx[0].shape[1], dtype=wide(dx[0].dtype))
    return found.index_add_(0, at.tokens[here], dx[0][here].to(found.dtype)).to(dx[0].dtype)


def _score(at: Context, c: Fields, wh: Fields) -> Fields:
    chosen, tops, size = [], [], at.logit_rows(c[0], wh[0])
    for rows, targets in zip(c[0].split(size), at.targets.split(size), strict=True):
        logits = (rows @ wh[0].T).to(wide(rows.dtype))
        found = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        chosen.append(found * (targets >= 0))
        tops.append(logits.logsumexp(1))
    return torch.cat(chosen), torch.cat(tops)


def _lose(at: Context, one: Fields) -> Tensor:
    losses = one[1] - one[0]
    return (losses if at.loss is None else at.loss.values(losses)).sum()


def _errors(at: Context, c: Tensor, wh: Tensor, one: Fields) -> Any:
    """Yields, a chunk of tokens at a time, (tokens, the derivatives of their losses by logits): softmax less one at
    their targets, by the slope of their losses."""
    chosen, top = one
    slopes = None if at.loss is None else at.loss.slopes(top - chosen)
    size = at.logit_rows(c, wh)
    for begin in range(0, len(c), size):
        some = slice(begin, begin + size)
        error = (c[some] @ wh.T).to(top.dtype).sub_(top[some, None]).exp_()  # of the product alone, where it lies
        targets = at.targets[some]
        here = targets >= 0
        error[here.nonzero()[:, 0], targets[here]] -= 1
        if slopes is not None:
            error *= slopes[some, None]
        yield c[some], error.to(c.dtype)


def _score_d0(at: Context, c: Fields, wh: Fields, one: Fields) -> Tensor:
    return torch.cat([error @ wh[0] for _, error in _errors(at, c[0], wh[0], one)])


def _score_d1(at: Context, c: Fields, wh: Fields, one: Fields) -> Tensor:
    return torch.stack([error.T @ rows for rows, error in _errors(at, c[0], wh[0], one)]).sum(0)


def _value(at: Context, c: Fields, vh: Fields) -> Tensor:
    return (c[0] @ vh[0][0]).to(wide(c[0].dtype))


def _regress(at: Context, val: Fields) -> Tensor:
    assert at.loss is not None, "a head of one value is trained, and scores, by losses that are given"
    return at.loss.values(val[0]).sum()


def _errors_of_values(at: Context, val: Fields) -> Tensor:
    assert at.loss is not None, "as of _regress"
    return at.loss.slopes(val[0])


def _value_d0(at: Context, vh: Fields, val: Fields) -> Tensor:
    return _errors_of_values(at, val).to(vh[0].dtype)[:, None] * vh[0]


def _value_d1(at: Context, c: Fields, val: Fields) -> Tensor:
    return _errors_of_values(at, val).to(c[0].dtype)[None] @ c[0]


def _contribute(at: Context, state: Fields, share: Fields) -> Tensor:
    return state[0] * share[0]


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "norm": _norm, "norm_d0": _norm_d0, "norm_d1": _norm_d1, "turn": _turn, "turn_d0": _turn_d0, "turn_d1": _turn_d1,
    "turn_keys": _turn_keys, "turn_keys_d0": _turn_keys_d0, "turn_keys_d1": _turn_keys_d1, "attend": _attend,
    "row_sums": _row_sums, "attend_d": _attend_d, "act": _act, "act_d0": _act_d0, "lookup": _lookup,
    "lookup_d0": _lookup_d0, "score": _score, "lose": _lose, "score_d0": _score_d0, "score_d1": _score_d1,
    "value": _value, "regress": _regress, "value_d0": _value_d0, "value_d1": _value_d1, "contribute": _contribute,
    **ROUTED_FUNCTIONS,
    **SEAT_FUNCTIONS,
    **COUNTED_FUNCTIONS,
})  # fmt: skip


def merge_of(tensor: str, merge: str) -> Callable[[Fields, Fields], Fields]:
    """Returns how contributions to a sum come together. tensor: its name; merge: its word, of zbench.step.tensor."""
    if merge == "max":
        return lambda one, other: tuple(map(torch.maximum, one, other))
    if merge == "softmax":
        return _scores_joined if tensor.rstrip("~") == "l" else _attended_joined
    return lambda one, other: tuple(a + b for a, b in zip(one, other, strict=True))


def _attended_joined(one: Fields, other: Fields) -> Fields:
    """Joins two partial attentions (zbench.runtime.kernels.memory) and leaves both as they are."""
    found = tuple(x.clone() for x in one)
    add(found, slice(None), other)
    return found


def _scores_joined(one: Fields, other: Fields) -> Fields:
    return one[0] + other[0], torch.logaddexp(one[1], other[1])
