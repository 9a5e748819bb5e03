"""Runs flash attention on CUDA as kernels (zbench.runtime.kernels.kernels): all segments of an attend in at most two
calls.

A variable-length call has many segments one after another. Those with a triangle at their end are one causal call:
flash attention aligns its mask to the bottom right (since 2.1), which is just our `before` keys and then a triangle;
plain rectangles are another one. Whose kernels run is an `Op`: torch's own (FlashAttention-2), the package
flash_attn, or the package of FlashAttention-3. The backward is given the final o and log-sum-exp of each query, so
no public function serves, and the calls are the packages' private ones.

Shapes: as in zbench.runtime.kernels.kernels; an Op has the log-sum-exp as [H, M], float32, and bfloat16 or float16
otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Flags
from zbench.plans.plan import Ints
from zbench.runtime.kernels.kernels import Kernel, Triple
from zbench.runtime.kernels.memory import copy, rows_of
from zbench.runtime.program.program import Rows

HEAD_DIM = 256  # the largest that all of them have
LEAST_CUDNN = 9  # compute capability, major: from Hopper on torch itself prefers cuDNN's attention to its own
# Before, torch's backward of variable lengths took head_dim for the longest length, and cuDNN wrote beyond its memory
# (pytorch pull request 186142, of June 2026, when 2.13 was being cut).
TORCH_OF_CUDNN = "2.14"


@dataclass(frozen=True, slots=True)
class SegmentCall:
    """A call of flash attention, for some of an attend's segments. q_rows, k_rows: theirs among all of it. cu_q, cu_k:
    int32 [num_segments + 1], where each begins among these. max_q, max_k: rows of the longest. left: keys before itself
    that a query of a causal call sees, -1: all."""

    causal: bool
    q_rows: Rows
    k_rows: Rows
    cu_q: Tensor
    cu_k: Tensor
    max_q: int
    max_k: int
    left: int = -1

    @property
    def window(self) -> dict[str, int]:
        """The parameters of flash attention for the window, which is aligned to the bottom right as its causal mask is;
        nothing without one."""
        return {"window_size_left": self.left, "window_size_right": 0} if self.left >= 0 else {}


class Op(Protocol):
    """A package's variable-length attention; the mask of a causal call is aligned to the bottom right."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: SegmentCall) -> tuple[Tensor, Tensor]:
        """Returns (o [M, H, D], lse [H, M]) of a call."""

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, call: SegmentCall
    ) -> Triple:
        """Returns (dq, dk, dv) of a call; lse [H, M], contiguous."""


@dataclass(frozen=True, slots=True)
class Flash:
    """A kernel made of an Op, on `device`."""

    name: str
    op: Op
    device: torch.device

    def cut(self, queries: Ints, before: Ints, diagonal: Flags, left: Ints | None = None) -> tuple[SegmentCall, ...]:
        keys = before + np.where(diagonal, queries, 0)
        left = 0 * queries - 1 if left is None else left
        # A call has one window: that of the mask for most segments that it cuts, none for the others.
        kinds = [(True, size, np.flatnonzero(diagonal & (left == size))) for size in np.unique(left[diagonal]).tolist()]
        kinds.append((False, -1, np.flatnonzero(~diagonal)))
        return tuple(self._call(causal, queries, keys, which, size) for causal, size, which in kinds if len(which))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cuts: tuple[SegmentCall, ...]) -> tuple[Tensor, Tensor]:
        if len(cuts) == 1:
            o, lse = self.op.forward(q, k, v, cuts[0])
            return o, lse.t().contiguous()  # small; and o, many times as large, can then be taken as it lies
        o = q.new_empty(q.shape)
        tops = []
        for call in cuts:
            some, top = self.op.forward(*_rows(call, q, k, v), call)
            copy((o,), call.q_rows, (some,))
            tops.append(top.t())
        lse = tops[0].new_empty(q.shape[:2])
        for call, top in zip(cuts, tops, strict=True):
            copy((lse,), call.q_rows, (top,))
        return o, lse

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cuts: tuple[SegmentCall, ...]
    ) -> Triple:
        if len(cuts) == 1:
            return self.op.backward(do, q, k, v, o, lse.t().contiguous(), cuts[0])
        dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        for call in cuts:
            given, out, top = (rows_of(x, call.q_rows) for x in (do, o, lse))
            grads = self.op.backward(given, *_rows(call, q, k, v), out, top.t().contiguous(), call)
            copy((dq,), call.q_rows, grads[:1])
            copy((dk, dv), call.k_rows, grads[1:])
        return dq, dk, dv

    def _call(self, causal: bool, queries: Ints, keys: Ints, which: Ints, left: int) -> SegmentCall:
        """Returns the call for the segments `which`."""
        starts = (np.cumsum(queries) - queries, np.cumsum(keys) - keys)
        q_rows, cu_q = rows_of_runs(starts[0][which], queries[which], self.device)
        k_rows, cu_k = rows_of_runs(starts[1][which], keys[which], self.device)
        longest = int(queries[which].max()), int(keys[which].max())
        return SegmentCall(causal, q_rows, k_rows, cu_q, cu_k, *longest, left)


def rows_of_runs(starts: Ints, counts: Ints, device: torch.device) -> tuple[Rows, Tensor]:
    """Selects runs of rows, from `starts` on: returns all their rows, and where each begins among these, int32
    [num_runs + 1]."""
    ends = np.cumsum(counts)
    bounds = np.concatenate([[0], ends]).astype(np.int32)
    rows: Rows = slice(int(starts[0]), int(starts[0] + ends[-1]))
    if (starts - starts[0] != ends - counts).any():
        each = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
        rows = torch.from_numpy(each).to(device)
    return rows, torch.from_numpy(bounds).to(device)


def _rows(call: SegmentCall, q: Tensor, k: Tensor, v: Tensor) -> Triple:
    return rows_of(q, call.q_rows), rows_of(k, call.k_rows), rows_of(v, call.k_rows)


def available(device: torch.device, head_dim: int) -> dict[str, Kernel]:
    """Returns the kernels that this GPU and the packages that are here have for bfloat16 and float16, from slowest to
    fastest."""
    major, _ = torch.cuda.get_device_capability(device)
    if major < 8 or head_dim % 8 or head_dim > HEAD_DIM:
        return {}
    ops: dict[str, Op | None] = {}
    if torch.backends.cuda.is_flash_attention_available():
        ops["torch-flash-cuda"] = TorchFlash()
    ops["flash-attn-2"] = Flash2.of()
    ops["flash-attn-3"] = Flash3.of() if major == 9 else None
    kernels: dict[str, Kernel] = {name: Flash(name, op, device) for name, op in ops.items() if op is not None}
    if major < LEAST_CUDNN or torch.__version__ < TORCH_OF_CUDNN or not kernels:
        return kernels
    from zbench.runtime.kernels.cudnn import Cudnn

    return {"cudnn": Cudnn(device), **kernels}  # first, so that nobody takes it without asking


@dataclass(frozen=True, slots=True)
class TorchFlash:
    """The flash attention of torch itself; without dropout the state of its random numbers is not read."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: SegmentCall) -> tuple[Tensor, Tensor]:
        sizes = (call.cu_q, call.cu_k, call.max_q, call.max_k)
        o, lse, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *sizes, 0.0, call.causal, False, **call.window)
        return o, lse

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, call: SegmentCall
    ) -> Triple:
        sizes = (call.cu_q, call.cu_k, call.max_q, call.max_k)
        state = torch.empty(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            do, q, k, v, o, lse, *sizes, 0.0, call.causal, state, torch.empty(0, device=q.device), **call.window
        )
        return dq, dk, dv


@dataclass(frozen=True, slots=True)
class Flash2:
    """The flash attention of the package flash_attn, from 2.7 on: before, these functions had other parameters."""

    run: Callable[..., tuple[Tensor, ...]]
    run_back: Callable[..., Tensor]

    @staticmethod
    def of() -> "Flash2 | None":
        """Returns the package's operators; None if the package is not here, is older, or was built for another
        torch."""
        if find_spec("flash_attn") is None:
            return None
        try:
            module = import_module("flash_attn.flash_attn_interface")
        except ImportError:
            return None
        version = import_module("flash_attn").__version__
        if tuple(map(int, version.split(".")[:2])) < (2, 7):
            return None
        return Flash2(module._flash_attn_varlen_forward, module._flash_attn_varlen_backward)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: SegmentCall) -> tuple[Tensor, Tensor]:
        sizes = (call.cu_q, call.cu_k, call.max_q, call.max_k)
        scale = q.shape[2] ** -0.5
        o, lse, *_ = self.run(q, k, v, *sizes, dropout_p=0.0, softmax_scale=scale, causal=call.causal, **call.window)
        return o, lse

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, call: SegmentCall
    ) -> Triple:
        dq, dk, dv = _like(q, k, v)
        sizes = (call.cu_q, call.cu_k, call.max_q, call.max_k)
        self.run_back(
            do,
            q,
            k,
            v,
            o,
            lse,
            dq,
            dk,
            dv,
            *sizes,
            dropout_p=0.0,
            softmax_scale=q.shape[2] ** -0.5,
            causal=call.causal,
            softcap=0.0,
            alibi_slopes=None,
            deterministic=False,
            **(call.window or {"window_size_left": -1, "window_size_right": -1}),
        )
        return dq, dk, dv


@dataclass(frozen=True, slots=True)
class Flash3:
    """FlashAttention-3 (Hopper only): the operators that its package registers with torch."""

    run: Callable[..., tuple[Tensor, ...]]
    run_back: Callable[..., tuple[Tensor, ...]]

    @staticmethod
    def of() -> "Flash3 | None":
        """Returns the package's operators; None if the package is not here, was built for another torch, or is from
        before its parameters were final."""
        if find_spec("flash_attn_interface") is None:
            return None
        try:
            import_module("flash_attn_interface")
        except ImportError:
            return None
        ops = torch.ops.flash_attn_3
        if not (hasattr(ops, "fwd") and hasattr(ops, "bwd")):
            return None
        schemas = ((ops.fwd.default._schema, 3), (ops.bwd.default._schema, 6))
        final = all(one.has_default_value() for schema, given in schemas for one in schema.arguments[given:])
        return Flash3(ops.fwd, ops.bwd) if final else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: SegmentCall) -> tuple[Tensor, Tensor]:
        o, lse, *_ = self.run(q, k, v, **_named(q, call), num_splits=1)
        return o, lse

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, call: SegmentCall
    ) -> Triple:
        dq, dk, dv = _like(q, k, v)
        self.run_back(do, q, k, v, o, lse, dq=dq, dk=dk, dv=dv, **_named(q, call))
        return dq, dk, dv


def _named(q: Tensor, call: SegmentCall) -> dict[str, Tensor | float | bool]:
    return {
        "cu_seqlens_q": call.cu_q, "cu_seqlens_k": call.cu_k, "max_seqlen_q": call.max_q, "max_seqlen_k": call.max_k,
        "softmax_scale": q.shape[2] ** -0.5, "is_causal": call.causal,
        **call.window,
    }  # fmt: skip


def _like(q: Tensor, k: Tensor, v: Tensor) -> Triple:
    """Returns memory for the gradients of q, k and v, contiguous whatever they are."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
