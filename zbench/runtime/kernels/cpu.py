"""Runs torch's fused CPU flash attention as a kernel (zbench.runtime.kernels.kernels), a segment or several short ones
a call.

Shapes: as in zbench.runtime.kernels.kernels; the operators take and give [batch, heads, rows, D] and [batch, heads,
rows].
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Flags
from zbench.plans.plan import Ints
from zbench.runtime.kernels.kernels import Segment, Triple, listed, per_kv_head, per_query_head

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
SMALL = 64  # longest whole sequence that is padded and run together with others: its call costs more than its work
FEW = 4  # fewer of them are not worth the padding


@dataclass(frozen=True, slots=True)
class Padded:
    """Short whole sequences run as one call: rows of each in [num, longest], padding after it.

    rows, key_rows: their rows among queries and keys; places: where those go in the padded buffer.
    Causality keeps padding from being seen; its gradient is zero because its do is.
    """

    rows: Tensor
    key_rows: Tensor
    places: Tensor
    num: int
    longest: int

    def put(self, x: Tensor, rows: Tensor) -> Tensor:
        """Puts [rows, H, ...] into [num, H, longest, ...], with zeros in the padding."""
        out = x.new_zeros(self.num * self.longest, *x.shape[1:])
        out.index_copy_(0, self.places, x.index_select(0, rows))
        padded: Tensor = out.unflatten(0, (self.num, self.longest))
        return padded.transpose(1, 2)

    def take(self, x: Tensor) -> Tensor:
        """Takes [rows, H, ...] out of [num, H, longest, ...]."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.places)


@dataclass(frozen=True, slots=True)
class FlashCPU:
    """The kernel of torch's fused flash attention for CPU. It takes one segment a call, and no keys before a triangle:
    such a segment is a rectangle and a triangle, joined. Short whole sequences share padded calls; what a window cuts
    is one call with a mask."""

    name: str = "torch-flash-cpu"

    def cut(
        self, queries: Ints, before: Ints, diagonal: Flags, left: Ints | None = None
    ) -> tuple[list[Segment], list[Padded]]:
        small = diagonal & (before == 0) & (queries <= SMALL) & (True if left is None else left < 0)
        width = 2 ** np.ceil(np.log2(np.maximum(queries, 1))).astype(np.int64)
        groups = [np.flatnonzero(small & (width == size)) for size in np.unique(width[small]).tolist()]
        groups = [group for group in groups if len(group) >= FEW]
        one_by_one = listed(queries, before, diagonal, left)
        alone = np.ones(len(queries), bool)
        padded = []
        for group in groups:
            alone[group] = False
            count, longest = queries[group], int(queries[group].max())
            of, at = np.repeat(np.arange(len(group)), count), _ranges(count)
            starts = (np.array([one_by_one[one].q0 for one in group]), np.array([one_by_one[one].k0 for one in group]))
            index = (*(start[of] + at for start in starts), of * longest + at)
            rows, keys, places = map(torch.from_numpy, index)
            padded.append(Padded(rows, keys, places, len(group), longest))
        return [one for one, single in zip(one_by_one, alone.tolist(), strict=True) if single], padded

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cuts: tuple[list[Segment], list[Padded]]
    ) -> tuple[Tensor, Tensor]:
        segments, padded = cuts
        if len(segments) == 1 and not padded:
            return self._segment(q, k, v, segments[0])
        o, lse = q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=_lse_dtype(q))
        for s in segments:
            o[s.q0 : s.q1], lse[s.q0 : s.q1] = self._segment(q, k, v, s)
        for p in padded:
            group = q.shape[1] // k.shape[1]
            keys, values = (p.put(x, p.key_rows).repeat_interleave(group, 1) for x in (k, v))
            some, top = _forward(p.put(q, p.rows), keys, values, 0.0, True)
            o.index_copy_(0, p.rows, p.take(some))
            lse.index_copy_(0, p.rows, p.take(top))
        return o, lse

    def backward(
        self,
        do: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        lse: Tensor,
        cuts: tuple[list[Segment], list[Padded]],
    ) -> Triple:
        segments, padded = cuts
        if len(segments) == 1 and not padded:
            return self._segment_backward(do, q, k, v, o, lse, segments[0])
        dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        for s in segments:
            mine, keys = slice(s.q0, s.q1), slice(s.k0, s.k2)
            dq[mine], dk[keys], dv[keys] = self._segment_backward(do, q, k, v, o, lse, s)
        for p in padded:
            group = q.shape[1] // k.shape[1]
            keys_, values = (p.put(x, p.key_rows).repeat_interleave(group, 1) for x in (k, v))
            given, rows, out, top = (p.put(x, p.rows) for x in (do, q, o, lse))
            grads = _backward(given, rows, keys_, values, out, top, 0.0, True)
            dq.index_copy_(0, p.rows, p.take(grads[0]))
            for total, grad in ((dk, grads[1]), (dv, grads[2])):
                total.index_copy_(0, p.key_rows, p.take(grad.unflatten(1, (-1, group)).sum(2)))
        return dq, dk, dv

    def _segment(self, q: Tensor, k: Tensor, v: Tensor, s: Segment) -> tuple[Tensor, Tensor]:
        """Returns (o [m, H, D], lse [m, H]) of one segment."""
        rows, group = per_kv_head(q[s.q0 : s.q1], k.shape[1]), q.shape[1] // k.shape[1]
        parts = []
        for begin, end, causal, mask in _calls(s, q):
            keys, values = (per_query_head(x[begin:end], group) for x in (k, v))
            parts.append(_forward(rows, keys, values, 0.0, causal, attn_mask=mask))
        o, lse = parts[0] if len(parts) == 1 else joined(*parts)
        return o.permute(2, 0, 1, 3).flatten(1, 2), lse.permute(2, 0, 1).flatten(1)

    def _segment_backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, s: Segment
    ) -> Triple:
        heads = k.shape[1]
        given, rows, out = (per_kv_head(x[s.q0 : s.q1], heads) for x in (do, q, o))
        top = lse[s.q0 : s.q1].unflatten(1, (heads, -1)).permute(1, 2, 0)
        dqs, dks, dvs = [], [], []
        for begin, end, causal, mask in _calls(s, q):
            keys, values = (per_query_head(x[begin:end], rows.shape[1]) for x in (k, v))
            dq, dk, dv = _backward(given, rows, keys, values, out, top, 0.0, causal, attn_mask=mask)
            dqs.append(dq)
            dks.append(dk.sum(1).permute(1, 0, 2))
            dvs.append(dv.sum(1).permute(1, 0, 2))
        dq = dqs[0] if len(dqs) == 1 else dqs[0] + dqs[1]
        dk, dv = (x[0] if len(x) == 1 else torch.cat(x) for x in (dks, dvs))
        return dq.permute(2, 0, 1, 3).flatten(1, 2), dk, dv


def _calls(s: Segment, q: Tensor) -> Iterator[tuple[int, int, bool, Tensor | None]]:
    """Yields the calls of a segment, (from which key, to which, causal?, mask); a mask is added to scores, in their
    dtype."""
    if s.left >= 0:
        yield s.k0, s.k2, False, q.new_zeros(s.q1 - s.q0, s.k2 - s.k0).masked_fill_(s.hidden(q.device), -torch.inf)
        return
    if s.k1 > s.k0:
        yield s.k0, s.k1, False, None
    if s.k2 > s.k1:
        yield s.k1, s.k2, True, None


def joined(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Joins partial results: returns (o, lse) over the keys of both; o [..., D], lse [...]."""
    o, lse = one
    weight = torch.sigmoid(other[1] - lse)
    return torch.lerp(o, other[0], weight[..., None].to(o.dtype)), torch.logaddexp(lse, other[1])


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _ranges(counts: Ints) -> Ints:
    """Returns 0 ... count - 1 of every count, one after another."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(int(ends[-1])) - np.repeat(ends - counts, counts), np.int64)
