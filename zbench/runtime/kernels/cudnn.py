"""Runs cuDNN's variable-length attention on CUDA as a kernel (zbench.runtime.kernels.kernels), by torch's private
operators.

Its causal mask begins at the top left, so that it fits queries and their own keys alone: keys before them are a call of
their own, all pairs visible, and the two are joined. Whatever the segments, an attend is at most two calls.

torch has cuDNN build a graph for every number of sequences, longest length and number of rows that it meets; the first
two are rounded up to powers of two, sequences by empty ones, so that batches of as many tokens share graphs.

Not what "auto" takes: nobody has seen it on a GPU yet. `python -m zbench.speed` compares it with the others there. With
a torch whose backward is known to be wrong (zbench.runtime.kernels.cuda.TORCH_OF_CUDNN) it is not offered at all.

Shapes: as in zbench.runtime.kernels.kernels; the operators have the log-sum-exp as [M, H, 1], float32; q, k, v
contiguous.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Flags
from zbench.plans.plan import Ints
from zbench.runtime.kernels.cuda import SegmentCall, rows_of_runs
from zbench.runtime.kernels.elementwise import wide
from zbench.runtime.kernels.kernels import Triple
from zbench.runtime.kernels.memory import add, copy, rows_of


@dataclass(frozen=True, slots=True)
class Cudnn:
    """The kernel of cuDNN's attention on `device`. run, run_back: torch's operators."""

    device: torch.device
    run: Callable[..., Any] = torch.ops.aten._cudnn_attention_forward
    run_back: Callable[..., Any] = torch.ops.aten._cudnn_attention_backward
    name: str = field(default="cudnn", init=False)

    def cut(self, queries: Ints, before: Ints, diagonal: Flags, left: Ints | None = None) -> tuple[SegmentCall, ...]:
        assert left is None or (left < 0).all(), (
            "cuDNN's attention has no windows here (zbench.runtime.kernels.kernels.choose_kernel)"
        )
        keys = before + np.where(diagonal, queries, 0)
        q_starts, k_starts = np.cumsum(queries) - queries, np.cumsum(keys) - keys
        own, others = np.flatnonzero(diagonal), np.flatnonzero(before)
        calls = (
            (True, queries[own], q_starts[own], queries[own], (k_starts + before)[own]),
            (False, queries[others], q_starts[others], before[others], k_starts[others]),
        )
        return tuple(self._call(*call) for call in calls if len(call[1]))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cuts: tuple[SegmentCall, ...]) -> tuple[Tensor, Tensor]:
        o = q.new_zeros(q.shape)
        lse = q.new_full(q.shape[:2], -torch.inf, dtype=wide(q.dtype))
        for call in cuts:
            some, top, *_ = self.run(
                *self._rows(call, q, k, v), None, *self._sizes(call), True, 0.0, call.causal, False
            )
            found = (some, top.squeeze(2))
            if len(cuts) == 1:
                return found
            add((o, lse), call.q_rows, found)
        return o, lse

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cuts: tuple[SegmentCall, ...]
    ) -> Triple:
        dq, dk, dv = q.new_zeros(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        random = torch.empty(0, device=q.device)  # the state of dropout's, of which there is none
        for call in cuts:
            given, out, top = (rows_of(x, call.q_rows).contiguous() for x in (do, o, lse))
            rows = self._rows(call, q, k, v)
            grads: Triple = self.run_back(
                given, *rows, out, top[..., None], random, random, None, *self._sizes(call), 0.0, call.causal
            )
            if len(cuts) == 1:
                return grads
            add((dq,), call.q_rows, grads[:1])
            copy((dk, dv), call.k_rows, grads[1:])  # a row of keys is the queries' own or before them: in one call
        return dq, dk, dv

    def _call(self, causal: bool, queries: Ints, q_starts: Ints, keys: Ints, k_starts: Ints) -> SegmentCall:
        sides = []
        for counts, starts in ((queries, q_starts), (keys, k_starts)):
            rows, bounds = rows_of_runs(starts, counts, self.device)
            empty = _power(len(counts)) - len(counts)
            sides.append((rows, torch.cat([bounds, bounds[-1:].expand(empty)]), _power(int(counts.max()))))
        (q_rows, cu_q, max_q), (k_rows, cu_k, max_k) = sides
        return SegmentCall(causal, q_rows, k_rows, cu_q, cu_k, max_q, max_k)

    def _rows(self, call: SegmentCall, q: Tensor, k: Tensor, v: Tensor) -> Triple:
        return (
            rows_of(q, call.q_rows).contiguous(),
            rows_of(k, call.k_rows).contiguous(),
            rows_of(v, call.k_rows).contiguous(),
        )

    def _sizes(self, call: SegmentCall) -> tuple[Tensor, Tensor, int, int]:
        return call.cu_q, call.cu_k, call.max_q, call.max_k


def _power(count: int) -> int:
    """Returns the next power of two."""
    return 1 << (count - 1).bit_length()
