"""Attention kernels behind one small interface: what one attend computes, for all of its segments.

Shapes: M queries, N keys (rows of all segments, one segment after another), H query heads, K kv heads with
H = K x G, D head_dim. q, do, o [M, H, D]; k, v [N, K, D]; lse [M, H], natural log. Strided inputs are fine as long
as D is contiguous. The backward takes the *final* o and log-sum-exp of each query, over everything it sees
anywhere, which is all that a partial backward needs to be exact (FlashAttention-2, arXiv 2307.08691, section 3.1).
A segment is as in zbench.plans.segments: `queries` against `before` keys, and causally each other where `diagonal`;
under a window each sees only the `left` keys before itself.

Nothing here communicates, and nothing here knows plans.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Flags
from zbench.describe.mask import CAUSAL, Mask
from zbench.plans.plan import Ints

Triple = tuple[Tensor, Tensor, Tensor]


class Kernel(Protocol):
    """An attention kernel."""

    @property
    def name(self) -> str:
        """The kernel's name, one of zbench.runtime.job.job.KERNELS."""

    def cut(self, queries: Ints, before: Ints, diagonal: Flags, left: Ints | None = None) -> Any:
        """Returns segments ([num_segments] each) as forward and backward want them; left: None where there is no
        window."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cuts: Any) -> tuple[Tensor, Tensor]:
        """Returns (o, lse) over the keys given."""

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cuts: Any) -> Triple:
        """Returns (dq, dk, dv), the part of the gradients that the keys given contribute."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of an attend: rows [q0, q1) of the queries; keys [k0, k1) that all of them see; keys [k1, k2) = the
    queries themselves.

    left: under a window, how many keys before itself a query sees of these, -1: all.
    """

    q0: int
    q1: int
    k0: int
    k1: int
    k2: int
    left: int = -1

    def hidden(self, device: torch.device) -> Tensor:
        """Returns which of all keys [k0, k2) a query does not see, where the segment ends causally: bool [queries,
        keys]."""
        queries, keys = torch.arange(self.q1 - self.q0, device=device), torch.arange(self.k2 - self.k0, device=device)
        back = queries[:, None] + (self.k1 - self.k0) - keys
        return (back < 0) | (back > self.left) if self.left >= 0 else back < 0


def listed(queries: Ints, before: Ints, diagonal: Flags, left: Ints | None = None) -> list[Segment]:
    """Lists the segments of an attend one by one."""
    left = 0 * queries - 1 if left is None else left
    keys = before + np.where(diagonal, queries, 0)
    q1, k2 = np.cumsum(queries), np.cumsum(keys)
    rows = zip(
        (q1 - queries).tolist(),
        q1.tolist(),
        (k2 - keys).tolist(),
        (k2 - keys + before).tolist(),
        k2.tolist(),
        left.tolist(),
        strict=True,
    )
    return [Segment(*row) for row in rows]


def per_kv_head(x: Tensor, kv_heads: int) -> Tensor:
    """Views [M, H, D] as [K, G, M, D]."""
    heads: Tensor = x.unflatten(1, (kv_heads, -1))
    return heads.permute(1, 2, 0, 3)


def per_query_head(x: Tensor, group: int) -> Tensor:
    """Views [N, K, D] as [K, G, N, D], which repeats each kv head."""
    return x.permute(1, 0, 2).unsqueeze(1).expand(-1, group, -1, -1)


@dataclass(frozen=True, slots=True)
class Matmul:
    """The reference kernel: scores as one matrix per segment and head. For tests and small lengths; memory is M x N.

    What is narrower than float32 is computed in float32, as flash attention does."""

    name: str = "matmul"

    def cut(self, queries: Ints, before: Ints, diagonal: Flags, left: Ints | None = None) -> list[Segment]:
        return listed(queries, before, diagonal, left)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cuts: list[Segment]) -> tuple[Tensor, Tensor]:
        dtype, q, k, v = q.dtype, *_wide(q, k, v)
        o, lse = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:2])
        for s in cuts:
            scores = self._scores(q, k, s)
            top = scores.logsumexp(-1)
            values = per_query_head(v[s.k0 : s.k2], q.shape[1] // v.shape[1])
            o[s.q0 : s.q1] = ((scores - top[..., None]).exp() @ values).permute(2, 0, 1, 3).flatten(1, 2)
            lse[s.q0 : s.q1] = top.permute(2, 0, 1).flatten(1)
        return o.to(dtype), lse

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cuts: list[Segment]
    ) -> Triple:
        dtype, do, q, k, v, o = q.dtype, *_wide(do, q, k, v, o)
        dq, dk, dv = torch.empty_like(q), k.new_zeros(k.shape), v.new_zeros(v.shape)
        heads, scale = k.shape[1], q.shape[2] ** -0.5
        for s in cuts:
            mine = slice(s.q0, s.q1)
            top = lse[mine].unflatten(1, (heads, -1)).permute(1, 2, 0)
            p = (self._scores(q, k, s) - top[..., None]).exp()
            given = per_kv_head(do[mine], heads)
            delta = (given * per_kv_head(o[mine], heads)).sum(-1, keepdim=True)
            ds = p * (given @ per_query_head(v[s.k0 : s.k2], p.shape[1]).mT - delta) * scale
            dq[mine] = (ds @ per_query_head(k[s.k0 : s.k2], p.shape[1])).permute(2, 0, 1, 3).flatten(1, 2)
            dk[s.k0 : s.k2] = (ds.mT @ per_kv_head(q[mine], heads)).sum(1).permute(1, 0, 2)
            dv[s.k0 : s.k2] = (p.mT @ given).sum(1).permute(1, 0, 2)
        return dq.to(dtype), dk.to(dtype), dv.to(dtype)

    def _scores(self, q: Tensor, k: Tensor, s: Segment) -> Tensor:
        """Returns scores [K, G, m, n] with -inf where nothing is seen."""
        rows, group = per_kv_head(q[s.q0 : s.q1], k.shape[1]), q.shape[1] // k.shape[1]
        scores: Tensor = rows @ per_query_head(k[s.k0 : s.k2], group).mT * q.shape[2] ** -0.5
        return scores.masked_fill_(s.hidden(q.device), -torch.inf) if s.k2 > s.k1 else scores


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x if x.dtype in (torch.float32, torch.float64) else x.float() for x in tensors)


def offered_kernels(device: torch.device, head_dim: int, dtype: torch.dtype) -> dict[str, Kernel]:
    """Returns, by name, the kernels that this device and these packages have for `dtype`, from slowest to fastest."""
    found: dict[str, Kernel] = {"matmul": Matmul()}
    if device.type != "cuda":
        from zbench.runtime.kernels.cpu import FlashCPU

        found["torch-flash-cpu"] = FlashCPU()
    elif dtype in (torch.bfloat16, torch.float16):
        from zbench.runtime.kernels.cuda import available

        found |= available(device, head_dim)
    return found


def choose_kernel(
    name: str,
    device: torch.device,
    head_dim: int,
    dtype: torch.dtype,
    mask: Mask = CAUSAL,
    field: str = "executor.kernel",
) -> Kernel:
    """Returns the kernel of that name, or for "auto" the fastest that this device and these packages have for `dtype`.
    field: how errors call the name.

    Raises:
        ValueError: it cannot run here.
    """
    found = offered_kernels(device, head_dim, dtype)
    if name == "auto":
        return list(found.values())[-1]
    if name not in found:
        what = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        raise ValueError(f"{field} is {name!r}; for {what} here there are auto, {', '.join(found)}")
    if mask.window and name == "cudnn":
        raise ValueError(f"{field} is cudnn, which has no windows; mask={mask} takes auto or another kernel")
    return found[name]
