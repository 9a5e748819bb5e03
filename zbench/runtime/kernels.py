"""Attention kernels behind one small interface: what one attend computes, for all of its segments.

Shapes: M queries, N keys (rows of all segments, one segment after another), H query heads, K kv heads with
H = K x G, D head_dim. q, do, o [M, H, D]; k, v [N, K, D]; lse [M, H], natural log. Strided inputs are fine as long
as D is contiguous. The backward takes the *final* o and log-sum-exp of each query, over everything it sees
anywhere, which is all that a partial backward needs to be exact (FlashAttention-2, arXiv 2307.08691, section 3.1).
A segment is as in zbench.segments: `queries` against `before` keys, and causally each other where `diagonal`.

Nothing here communicates, and nothing here knows plans.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from zbench.plan import Ints
from zbench.segments import Flags

Triple = tuple[Tensor, Tensor, Tensor]
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
SMALL = 64  # longest whole sequence that is padded and run together with others: its call costs more than its work
FEW = 4  # fewer of them are not worth the padding


class Kernel(Protocol):
    @property
    def name(self) -> str: ...

    def cut(self, queries: Ints, before: Ints, diagonal: Flags) -> Any:
        """Segments ([num_segments] each) as forward and backward want them."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cuts: Any) -> tuple[Tensor, Tensor]:
        """(o, lse) over the keys given."""

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cuts: Any) -> Triple:
        """(dq, dk, dv): what the keys given contribute."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows [q0, q1) of the queries; keys [k0, k1) that all of them see; keys [k1, k2) = the queries themselves."""

    q0: int
    q1: int
    k0: int
    k1: int
    k2: int


def _listed(queries: Ints, before: Ints, diagonal: Flags) -> list[Segment]:
    keys = before + np.where(diagonal, queries, 0)
    q1, k2 = np.cumsum(queries), np.cumsum(keys)
    rows = zip((q1 - queries).tolist(), q1.tolist(), (k2 - keys).tolist(), (k2 - keys + before).tolist(), k2.tolist(),
               strict=True)  # fmt: skip
    return [Segment(*row) for row in rows]


def _per_kv_head(x: Tensor, kv_heads: int) -> Tensor:
    """[M, H, D] -> [K, G, M, D], a view."""
    heads: Tensor = x.unflatten(1, (kv_heads, -1))
    return heads.permute(1, 2, 0, 3)


def _per_query_head(x: Tensor, group: int) -> Tensor:
    """[N, K, D] -> [K, G, N, D], a view that repeats each kv head."""
    return x.permute(1, 0, 2).unsqueeze(1).expand(-1, group, -1, -1)


@dataclass(frozen=True, slots=True)
class Matmul:
    """The reference: scores as one matrix per segment and head. For tests and small lengths; memory is M x N."""

    name: str = "matmul"

    def cut(self, queries: Ints, before: Ints, diagonal: Flags) -> list[Segment]:
        return _listed(queries, before, diagonal)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cuts: list[Segment]) -> tuple[Tensor, Tensor]:
        o, lse = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:2])
        for s in cuts:
            scores = self._scores(q, k, s)
            top = scores.logsumexp(-1)
            values = _per_query_head(v[s.k0 : s.k2], q.shape[1] // v.shape[1])
            o[s.q0 : s.q1] = ((scores - top[..., None]).exp() @ values).permute(2, 0, 1, 3).flatten(1, 2)
            lse[s.q0 : s.q1] = top.permute(2, 0, 1).flatten(1)
        return o, lse

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cuts: list[Segment]
    ) -> Triple:
        dq, dk, dv = torch.empty_like(q), k.new_zeros(k.shape), v.new_zeros(v.shape)
        heads, scale = k.shape[1], q.shape[2] ** -0.5
        for s in cuts:
            mine = slice(s.q0, s.q1)
            top = lse[mine].unflatten(1, (heads, -1)).permute(1, 2, 0)
            p = (self._scores(q, k, s) - top[..., None]).exp()
            given = _per_kv_head(do[mine], heads)
            delta = (given * _per_kv_head(o[mine], heads)).sum(-1, keepdim=True)
            ds = p * (given @ _per_query_head(v[s.k0 : s.k2], p.shape[1]).mT - delta) * scale
            dq[mine] = (ds @ _per_query_head(k[s.k0 : s.k2], p.shape[1])).permute(2, 0, 1, 3).flatten(1, 2)
            dk[s.k0 : s.k2] = (ds.mT @ _per_kv_head(q[mine], heads)).sum(1).permute(1, 0, 2)
            dv[s.k0 : s.k2] = (p.mT @ given).sum(1).permute(1, 0, 2)
        return dq, dk, dv

    def _scores(self, q: Tensor, k: Tensor, s: Segment) -> Tensor:
        """[K, G, m, n] with -inf where nothing is seen."""
        rows, group = _per_kv_head(q[s.q0 : s.q1], k.shape[1]), q.shape[1] // k.shape[1]
        scores: Tensor = rows @ _per_query_head(k[s.k0 : s.k2], group).mT * q.shape[2] ** -0.5
        if s.k2 > s.k1:
            hidden = torch.ones(s.q1 - s.q0, s.k2 - s.k1, dtype=torch.bool, device=q.device).triu(1)
            scores[..., s.k1 - s.k0 :].masked_fill_(hidden, -torch.inf)
        return scores


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
        """[rows, H, ...] -> [num, H, longest, ...], zeros in the padding."""
        out = x.new_zeros(self.num * self.longest, *x.shape[1:])
        out.index_copy_(0, self.places, x.index_select(0, rows))
        padded: Tensor = out.unflatten(0, (self.num, self.longest))
        return padded.transpose(1, 2)

    def take(self, x: Tensor) -> Tensor:
        """[num, H, longest, ...] -> [rows, H, ...]."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.places)


@dataclass(frozen=True, slots=True)
class FlashCPU:
    """torch's fused flash attention for CPU. It takes one segment a call, and no keys before a triangle: such a
    segment is a rectangle and a triangle, joined. Short whole sequences share padded calls."""

    name: str = "torch-flash-cpu"

    def cut(self, queries: Ints, before: Ints, diagonal: Flags) -> tuple[list[Segment], list[Padded]]:
        small = diagonal & (before == 0) & (queries <= SMALL)
        width = 2 ** np.ceil(np.log2(np.maximum(queries, 1))).astype(np.int64)
        groups = [np.flatnonzero(small & (width == size)) for size in np.unique(width[small]).tolist()]
        groups = [group for group in groups if len(group) >= FEW]
        listed = _listed(queries, before, diagonal)
        alone = np.ones(len(queries), bool)
        padded = []
        for group in groups:
            alone[group] = False
            count, longest = queries[group], int(queries[group].max())
            of, at = np.repeat(np.arange(len(group)), count), _ranges(count)
            starts = (np.array([listed[one].q0 for one in group]), np.array([listed[one].k0 for one in group]))
            index = (*(start[of] + at for start in starts), of * longest + at)
            rows, keys, places = map(torch.from_numpy, index)
            padded.append(Padded(rows, keys, places, len(group), longest))
        return [one for one, single in zip(listed, alone.tolist(), strict=True) if single], padded

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
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
        cuts: tuple[list[Segment], list[Padded]],
    ) -> Triple:  # fmt: skip
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
        """(o [m, H, D], lse [m, H]) of one segment."""
        rows, group = _per_kv_head(q[s.q0 : s.q1], k.shape[1]), q.shape[1] // k.shape[1]
        parts = []
        for begin, end, causal in ((s.k0, s.k1, False), (s.k1, s.k2, True)):
            if end > begin:
                keys, values = (_per_query_head(x[begin:end], group) for x in (k, v))
                parts.append(_forward(rows, keys, values, 0.0, causal))
        o, lse = parts[0] if len(parts) == 1 else joined(*parts)
        return o.permute(2, 0, 1, 3).flatten(1, 2), lse.permute(2, 0, 1).flatten(1)

    def _segment_backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, s: Segment
    ) -> Triple:
        heads = k.shape[1]
        given, rows, out = (_per_kv_head(x[s.q0 : s.q1], heads) for x in (do, q, o))
        top = lse[s.q0 : s.q1].unflatten(1, (heads, -1)).permute(1, 2, 0)
        dqs, dks, dvs = [], [], []
        for begin, end, causal in ((s.k0, s.k1, False), (s.k1, s.k2, True)):
            if end > begin:
                keys, values = (_per_query_head(x[begin:end], rows.shape[1]) for x in (k, v))
                dq, dk, dv = _backward(given, rows, keys, values, out, top, 0.0, causal)
                dqs.append(dq)
                dks.append(dk.sum(1).permute(1, 0, 2))
                dvs.append(dv.sum(1).permute(1, 0, 2))
        dq = dqs[0] if len(dqs) == 1 else dqs[0] + dqs[1]
        dk, dv = (x[0] if len(x) == 1 else torch.cat(x) for x in (dks, dvs))
        return dq.permute(2, 0, 1, 3).flatten(1, 2), dk, dv


def joined(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(o, lse) over the keys of both; o [..., D], lse [...]."""
    o, lse = one
    weight = torch.sigmoid(other[1] - lse)
    return torch.lerp(o, other[0], weight[..., None].to(o.dtype)), torch.logaddexp(lse, other[1])


def choose(name: str, device: torch.device, head_dim: int, dtype: torch.dtype) -> Kernel:
    """The kernel of that name, or for "auto" the fastest that this device and these packages have for `dtype`.

    Raises:
        ValueError: it cannot run here.
    """
    found: dict[str, Kernel] = {"matmul": Matmul()}
    if device.type != "cuda":
        found["torch-flash-cpu"] = FlashCPU()
    elif dtype in (torch.bfloat16, torch.float16):
        from zbench.runtime.kernels_cuda import available

        found |= available(device, head_dim)
    if name == "auto":
        return list(found.values())[-1]
    if name not in found:
        what = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        raise ValueError(f"executor.kernel is {name!r}; for {what} here there are auto, {', '.join(found)}")
    return found[name]


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _ranges(counts: Ints) -> Ints:
    """0 ... count - 1 of every count, one after another."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(int(ends[-1])) - np.repeat(ends - counts, counts), np.int64)
