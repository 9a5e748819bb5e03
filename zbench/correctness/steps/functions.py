"""The functions of a dense layer's formulas, in numpy, for one combination of parts.

Axes: t and s tokens, e hidden, h heads (or kv heads), d their dimension, f columns of the feed-forward, v words, x
logits of experts, k two (keys and values; gate and up). Every function takes what its formula reads, in that order, and
`Where`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.describe.mask import Mask

EPSILON, BASE = 1e-5, 500_000.0  # of the network that processes train


@dataclass(frozen=True)
class Where:
    """The tokens, heads and words of a combination of parts.

    sequence, position, token, target: of the tokens of t, int64 [tokens]; key_sequence, key_position: of s. words:
    [first, last) of v. heads_per_kv: queries a kv head; heads, kv_heads: [first, last) of the parts of h and g.
    temperature: of a router's cosines. mask: what queries see of their sequence.
    """

    sequence: Ints
    position: Ints
    token: Ints
    target: Ints
    key_sequence: Ints
    key_position: Ints
    words: tuple[int, int]
    heads: tuple[int, int]
    kv_heads: tuple[int, int]
    heads_per_kv: int
    temperature: float
    mask: Mask

    @cached_property
    def kv_of_heads(self) -> Ints:
        """The kv head of each head, among those of the part."""
        return np.arange(*self.heads) // self.heads_per_kv - self.kv_heads[0]

    @cached_property
    def seen(self) -> Flags:
        """Whether each token of t sees each of s, [t, s]."""
        same = self.sequence[:, None] == self.key_sequence
        return np.asarray(same & self.mask.sees(self.position[:, None], self.key_position))


def turned_by_position(x: Floats, position: Ints, sign: int = 1) -> Any:
    """Turns neighbours of [t, h, d] by their positions (RoPE), back where sign is -1."""
    half = x.shape[2] // 2
    angle = sign * position[:, None, None] * BASE ** (-np.arange(half) / half)
    a, b = x[..., ::2], x[..., 1::2]
    turned = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return np.stack(turned, axis=3).reshape(x.shape)


def _norm(at: Where, x: Floats, g: Floats) -> Any:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * g


def _norm_d0(at: Where, dy: Floats, x: Floats, g: Floats) -> Any:
    scale = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON)
    inner = dy * g
    return scale * inner - x * scale**3 * (inner * x).mean(axis=1, keepdims=True)


def _norm_d1(at: Where, dy: Floats, x: Floats) -> Any:
    return (dy * x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON)).sum(axis=0)


def _turn(at: Where, n: Floats, w: Floats) -> Any:
    return turned_by_position(np.einsum("te,ehd->thd", n, w), at.position)


def _turn_d0(at: Where, dq: Floats, w: Floats) -> Any:
    return np.einsum("thd,ehd->te", turned_by_position(dq, at.position, -1), w)


def _turn_d1(at: Where, dq: Floats, n: Floats) -> Any:
    return np.einsum("thd,te->ehd", turned_by_position(dq, at.position, -1), n)


def _turn_keys(at: Where, n: Floats, w: Floats) -> Any:
    kv = np.einsum("te,ehkd->thkd", n, w)
    return np.stack([turned_by_position(kv[:, :, 0], at.position), kv[:, :, 1]], axis=2)


def _back_keys(at: Where, dkv: Floats) -> Any:
    return np.stack([turned_by_position(dkv[:, :, 0], at.position, -1), dkv[:, :, 1]], axis=2)


def _turn_keys_d0(at: Where, dkv: Floats, w: Floats) -> Any:
    return np.einsum("thkd,ehkd->te", _back_keys(at, dkv), w)


def _turn_keys_d1(at: Where, dkv: Floats, n: Floats) -> Any:
    return np.einsum("thkd,te->ehkd", _back_keys(at, dkv), n)


def _scores(at: Where, q: Floats, kv: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns scores [h, t, s], -inf where nothing is seen, and keys and values by query head."""
    k, v = kv[:, at.kv_of_heads, 0], kv[:, at.kv_of_heads, 1]
    return np.where(at.seen, np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[2]), -np.inf), k, v


def _attend(at: Where, q: Floats, kv: Floats) -> tuple[Floats, Floats]:
    scores, _, v = _scores(at, q, kv)
    top = np.maximum(scores.max(axis=2, keepdims=True), -1e300)
    p = np.exp(scores - top)
    total = p.sum(axis=2, keepdims=True)
    lse = np.where(total > 0, np.log(np.maximum(total, 1e-300)) + top, -np.inf)[:, :, 0]
    return np.einsum("hts,shd->thd", p / np.maximum(total, 1e-300), v), lse.T


def _row_sums(at: Where, o: tuple[Floats, Floats], do: Floats) -> Any:
    return np.stack([o[1], (o[0] * do).sum(axis=2)], axis=2)


def _attend_d(at: Where, q: Floats, kv: Floats, do: Floats, e: Floats) -> tuple[Floats, Floats]:
    scores, k, v = _scores(at, q, kv)
    p = np.exp(scores - e[:, :, 0].T[:, :, None])
    ds = p * (np.einsum("thd,shd->hts", do, v) - e[:, :, 1].T[:, :, None]) / np.sqrt(q.shape[2])
    dkv = np.zeros_like(kv)
    to_keys, to_values = np.einsum("hts,thd->shd", ds, q), np.einsum("hts,thd->shd", p, do)
    for head, kv_head in enumerate(at.kv_of_heads.tolist()):
        dkv[:, kv_head, 0] += to_keys[:, head]
        dkv[:, kv_head, 1] += to_values[:, head]
    return np.einsum("hts,shd->thd", ds, k), dkv


def _act(at: Where, z: Floats) -> Any:
    gate, up = z[..., 0], z[..., 1]
    return gate / (1 + np.exp(-gate)) * up


def _act_d0(at: Where, du: Floats, z: Floats) -> Any:
    gate, up = z[..., 0], z[..., 1]
    share = 1 / (1 + np.exp(-gate))
    return np.stack([du * up * share * (1 + gate * (1 - share)), du * gate * share], axis=2)


def _lookup(at: Where, we: Floats) -> Any:
    here = (at.token >= at.words[0]) & (at.token < at.words[1])
    return np.where(here[:, None], we[np.where(here, at.token - at.words[0], 0)], 0.0)


def _lookup_d0(at: Where, dx: Floats) -> Any:
    found = np.zeros((at.words[1] - at.words[0], dx.shape[1]))
    here = (at.token >= at.words[0]) & (at.token < at.words[1])
    np.add.at(found, at.token[here] - at.words[0], dx[here])
    return found


def _chosen(at: Where) -> Any:
    """Returns 1 where a word is a token's target, [t, v]."""
    return (at.target[:, None] == np.arange(*at.words)).astype(float)


def _score(at: Where, c: Floats, wh: Floats) -> tuple[Floats, Floats]:
    logits = c @ wh.T
    return (logits * _chosen(at)).sum(axis=1), np.logaddexp.reduce(logits, axis=1)


def _lose(at: Where, one: tuple[Floats, Floats]) -> Any:
    return np.asarray((one[1] - one[0]).sum())


def _score_d0(at: Where, c: Floats, wh: Floats, one: tuple[Floats, Floats]) -> Any:
    return np.asarray((np.exp(c @ wh.T - one[1][:, None]) - _chosen(at)) @ wh)


def _score_d1(at: Where, c: Floats, wh: Floats, one: tuple[Floats, Floats]) -> Any:
    return np.asarray((np.exp(c @ wh.T - one[1][:, None]) - _chosen(at)).T @ c)


def _value(at: Where, c: Floats, vh: Floats) -> Any:
    return c @ vh


def _regress(at: Where, val: Floats) -> Any:
    """Half the squares of how far values are from targets, as numbers."""
    return np.asarray(((val - at.target) ** 2).sum() / 2)


def _value_d0(at: Where, vh: Floats, val: Floats) -> Any:
    return np.outer(val - at.target, vh)


def _value_d1(at: Where, c: Floats, val: Floats) -> Any:
    return (val - at.target) @ c


def _cosines(h: Floats, w: Floats) -> Any:
    """Returns the cosines of rows of h with rows of w, and the lengths of both."""
    lengths = np.sqrt((h * h).sum(axis=1))[:, None], np.sqrt((w * w).sum(axis=1))[None]
    return (h @ w.T) / (lengths[0] * lengths[1]), *lengths


def _cosine(at: Where, h: Floats, w: Floats) -> Any:
    return _cosines(h, w)[0] / at.temperature


def _cosine_d0(at: Where, dr: Floats, h: Floats, w: Floats) -> Any:
    cosines, one, other = _cosines(h, w)
    scaled = dr / at.temperature
    return (scaled / (one * other)) @ w - (scaled * cosines).sum(axis=1)[:, None] * h / one**2


def _cosine_d1(at: Where, dr: Floats, h: Floats, w: Floats) -> Any:
    cosines, one, other = _cosines(h, w)
    scaled = dr / at.temperature
    return (scaled / (one * other)).T @ h - (scaled * cosines).sum(axis=0)[:, None] * w / other.T**2


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "norm": _norm, "norm_d0": _norm_d0, "norm_d1": _norm_d1, "turn": _turn, "turn_d0": _turn_d0, "turn_d1": _turn_d1,
    "turn_keys": _turn_keys, "turn_keys_d0": _turn_keys_d0, "turn_keys_d1": _turn_keys_d1, "attend": _attend,
    "row_sums": _row_sums, "attend_d": _attend_d, "act": _act, "act_d0": _act_d0, "lookup": _lookup,
    "lookup_d0": _lookup_d0, "score": _score, "lose": _lose, "score_d0": _score_d0, "score_d1": _score_d1,
    "value": _value, "regress": _regress, "value_d0": _value_d0, "value_d1": _value_d1,
    "cosine": _cosine, "cosine_d0": _cosine_d0, "cosine_d1": _cosine_d1,
}  # fmt: skip


def merged(name: str, one: Any, other: Any) -> Any:
    """Returns two contributions to a sum together: o by log-sum-exp, the loss's l by both its parts, others added."""
    base = name.rstrip("~")
    if base == "o":
        lse = np.logaddexp(one[1], other[1])
        seen = np.where(np.isfinite(lse), lse, 0.0)
        first, second = (np.exp(part - seen)[:, :, None] for part in (one[1], other[1]))
        return one[0] * first + other[0] * second, lse
    if base == "l":
        return one[0] + other[0], np.logaddexp(one[1], other[1])
    return one + other
