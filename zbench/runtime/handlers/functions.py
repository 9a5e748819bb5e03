"""The functions of a dense layer's formulas in torch, for all parts of an operation at once; those of an expert layer
are in zbench.runtime.handlers.experts.

Elementwise work and attention are the executor's (zbench.runtime.kernels). Axes as in zbench.runtime.handlers.formats.
A function takes its operands in the formula's order, each as its first field or, of o, e and l, as all of its fields;
it returns fields, of which there are several where the result has them, and one row of fields a result.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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


def _logits(at: Context, rows: Tensor, words: Tensor) -> Tensor:
    """Returns logits in the wide dtype, [rows, words]; the narrow product is gone then."""
    product = rows @ words.T
    found = product.to(wide(rows.dtype))
    at.logits.note(product, found)
    return found


def _score(at: Context, c: Fields, wh: Fields) -> Fields:
    chosen, tops, size = [], [], at.logit_rows(c[0], wh[0])
    for rows, targets in zip(c[0].split(size), at.targets.split(size), strict=True):
        logits = _logits(at, rows, wh[0])
        found = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        chosen.append(found * (targets >= 0))
        tops.append(_log_sum_exps(logits))
        del logits  # before the next chunk has its own
    return torch.cat(chosen), torch.cat(tops)


def _log_sum_exps(logits: Tensor) -> Tensor:
    """Returns torch's logsumexp of each row to the bit, where it needs no second array: logits are gone afterwards."""
    most = logits.amax(1)
    most.masked_fill_(most.abs() == torch.inf, 0.0)
    return logits.sub_(most[:, None]).exp_().sum(1).log_().add_(most)


def _lose(at: Context, one: Fields) -> Tensor:
    losses = one[1] - one[0]
    return (losses if at.loss is None else at.loss.values(losses)).sum()


class _Errors(NamedTuple):
    """The derivatives of tokens' losses by logits: softmax less one at targets, by the slope of the losses. one: of
    each token the logit of its target and the log-sum-exp of its logits. slopes: None where they are 1."""

    at: Context
    c: Tensor
    wh: Tensor
    one: Fields
    slopes: Tensor | None

    @staticmethod
    def of(at: Context, c: Fields, wh: Fields, one: Fields) -> "_Errors":
        """Returns those of a compute."""
        chosen, top = one
        return _Errors(at, c[0], wh[0], one, None if at.loss is None else at.loss.slopes(top - chosen))

    def part(self, tokens: slice, words: slice) -> Tensor:
        """Returns those of some tokens by the logits of some words, [tokens, words], in the hidden states' dtype."""
        error = _logits(self.at, self.c[tokens], self.wh[words])
        error.sub_(self.one[1][tokens, None]).exp_()  # where the product lies
        targets = self.at.targets[tokens] - words.start
        here = (targets >= 0) & (targets < error.shape[1])
        error[here.nonzero()[:, 0], targets[here]] -= 1
        if self.slopes is not None:
            error *= self.slopes[tokens, None]
        return error.to(self.c.dtype)


def _score_d0(at: Context, c: Fields, wh: Fields, one: Fields) -> Tensor:
    errors, found, all_words = _Errors.of(at, c, wh, one), torch.empty_like(c[0]), slice(0, len(wh[0]))
    for some in _slices(len(found), at.logit_rows(c[0], wh[0])):
        torch.matmul(errors.part(some, all_words), wh[0], out=found[some])
    return found


def _score_d1(at: Context, c: Fields, wh: Fields, one: Fields) -> Tensor:
    """By chunks of words, of all tokens: no chunk adds to what another one makes, which would be another gradient."""
    errors, found, all_tokens = _Errors.of(at, c, wh, one), torch.empty_like(wh[0]), slice(0, len(c[0]))
    for some in _slices(len(found), at.logit_words(c[0], wh[0])):
        torch.matmul(errors.part(all_tokens, some).T, c[0], out=found[some])
    return found


def _slices(count: int, size: int) -> list[slice]:
    """Returns slices of so many rows, `size` each."""
    return [slice(begin, begin + size) for begin in range(0, count, size)]


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
