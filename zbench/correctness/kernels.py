"""A device's attention kernels against Matmul in float64 on the CPU, on random data, forward and backward.

The error that counts is the norm of the difference over the norm of the value, for each of o, log-sum-exp, dq, dk, dv:
in 16 bits the largest single difference of a hundred thousand rounded sums is a matter of luck. It is kept beside it.

Shapes: as in zbench.runtime.kernels.kernels. A layout is what one attend may have: segments of `queries`, keys `before`
them, and whether they see each other causally. The layout "ring" is a ring's: one sequence in chunks, each chunk's
queries against one chunk of keys a call, partial results joined as the executor joins them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Flags
from zbench.plans.plan import Ints
from zbench.runtime.kernels.kernels import Kernel, Matmul
from zbench.runtime.kernels.memory import add

LIMITS = {torch.bfloat16: 1e-2, torch.float32: 1e-4}  # of Errors.norm
HEAD_DIMS = (64, 128)
HEADS = ((4, 4), (8, 2))  # query and kv heads: as many, and grouped
# Odd lengths on purpose: kernels work on tiles of 64 or 128, and the rest of a tile is where masks go wrong.
LAYOUTS: Mapping[str, tuple[Sequence[int], Sequence[int], Sequence[bool]]] = {
    "whole": ((1, 63, 129, 517, 1025), (0, 0, 0, 0, 0), (True, True, True, True, True)),
    "continued": ((65, 300, 1), (130, 7, 999), (True, True, True)),
    "rectangles": ((129, 65), (257, 1001), (False, False)),
    "mixed": ((65, 129, 300), (130, 257, 7), (True, False, True)),
}
RING = (385, 129, 513, 511)  # tokens of each chunk
NAMES = ("o", "lse", "dq", "dk", "dv")
Pieces = Sequence[tuple[slice, slice, bool]]  # rows of queries, rows of keys, whether the keys are the queries' own


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that kernels are tried on: data and layout. shrink: what lengths are divided by."""

    dtype: torch.dtype
    head_dim: int
    heads: tuple[int, int]
    layout: str
    shrink: int = 1

    @property
    def dtype_name(self) -> str:
        """The name of the dtype without "torch."."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def name(self) -> str:
        """The problem in words."""
        grouped = "/".join(map(str, self.heads))
        return f"{self.dtype_name}, dim {self.head_dim}, heads {grouped}, {self.layout}"

    @property
    def ring(self) -> Sequence[int]:
        """The tokens of each chunk of the ring."""
        return _shrunk(RING, self.shrink)

    def segments(self) -> tuple[Ints, Ints, Flags]:
        """Lists a layout's segments: queries, before, diagonal. A ring's sequence is one as a whole."""
        if self.layout == "ring":
            return np.array([sum(self.ring)]), np.array([0]), np.array([True])
        queries, before, diagonal = LAYOUTS[self.layout]
        return np.array(_shrunk(queries, self.shrink)), np.array(_shrunk(before, self.shrink)), np.array(diagonal)

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (do [M, H, D], q [M, H, D], kv [N, 2, K, D]), on the CPU; kv as blocks of it lie in memory."""
        queries, before, diagonal = self.segments()
        rows, keys = int(queries.sum()), int((before + np.where(diagonal, queries, 0)).sum())
        generator = torch.Generator().manual_seed(0)
        shapes = [(rows, self.heads[0]), (rows, self.heads[0]), (keys, 2, self.heads[1])]
        do, q, kv = (torch.randn(*shape, self.head_dim, generator=generator).to(self.dtype) for shape in shapes)
        return do, q, kv


@dataclass(frozen=True, slots=True)
class Errors:
    """A kernel's relative errors of o, lse, dq, dk and dv (NAMES); NaN where a kernel made one.

    norm: the difference's over the value's (Frobenius). largest: the largest difference over the largest value.
    """

    norm: Mapping[str, float]
    largest: Mapping[str, float]


def problems(shrink: int = 1) -> Iterator[Problem]:
    """Yields a problem for every dtype, head size, number of heads and layout."""
    for dtype, head_dim, heads, layout in product(LIMITS, HEAD_DIMS, HEADS, (*LAYOUTS, "ring")):
        yield Problem(dtype, head_dim, heads, layout, shrink)


def reference(problem: Problem) -> tuple[Tensor, ...]:
    """Computes o, lse, dq, dk, dv in float64, on the CPU, of the data as `problem.dtype` has it."""
    do, q, kv = (x.to(torch.float64) for x in problem.draw())
    return _run(Matmul(), do, q, kv[:, 0], kv[:, 1], problem.segments())


def errors(problem: Problem, kernel: Kernel, device: torch.device, wanted: Sequence[Tensor]) -> Errors:
    """Measures the errors of a kernel on `device`; wanted: the problem's reference."""
    do, q, kv = (x.to(device) for x in problem.draw())
    given = (kernel, do, q, kv[:, 0], kv[:, 1])
    found = _ring(*given, problem.ring) if problem.layout == "ring" else _run(*given, problem.segments())
    differences = [(got.cpu().double() - want, want) for got, want in zip(found, wanted, strict=True)]
    norms = [float(off.norm() / want.norm()) for off, want in differences]
    largest = [float(off.abs().max() / want.abs().max()) for off, want in differences]
    return Errors(dict(zip(NAMES, norms, strict=True)), dict(zip(NAMES, largest, strict=True)))


def _shrunk(counts: Sequence[int], by: int) -> list[int]:
    """Divides lengths, so that what was odd stays so, as far as it can; nothing but 0 becomes 0."""
    return [count if by == 1 or count == 0 else 2 * (count // by // 2) + 1 for count in counts]


def _run(
    kernel: Kernel, do: Tensor, q: Tensor, k: Tensor, v: Tensor, cut: tuple[Ints, Ints, Flags]
) -> tuple[Tensor, ...]:
    cuts = kernel.cut(*cut)
    o, lse = kernel.forward(q, k, v, cuts)
    return o, lse, *kernel.backward(do, q, k, v, o, lse, cuts)


def _ring(kernel: Kernel, do: Tensor, q: Tensor, k: Tensor, v: Tensor, chunks: Sequence[int]) -> tuple[Tensor, ...]:
    """Runs every chunk of queries against every chunk of keys up to its own; the backward has the joined o and lse."""
    o = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows, keys, own in _pieces(chunks):
        cuts = _cut(kernel, rows, keys, own)
        part, top = kernel.forward(q[rows], k[keys], v[keys], cuts)
        add((o, lse), rows, (part, top))
    for rows, keys, own in _pieces(chunks):
        cuts = _cut(kernel, rows, keys, own)
        grads = kernel.backward(do[rows], q[rows], k[keys], v[keys], o[rows], lse[rows], cuts)
        for total, place, grad in zip((dq, dk, dv), (rows, keys, keys), grads, strict=True):
            add((total,), place, (grad,))
    return o, lse, dq, dk, dv


def _pieces(chunks: Sequence[int]) -> Pieces:
    spans = [slice(start, stop) for start, stop in pairwise(accumulate(chunks, initial=0))]
    return [(rows, keys, keys is rows) for at, rows in enumerate(spans) for keys in spans[: at + 1]]


def _cut(kernel: Kernel, rows: slice, keys: slice, own: bool) -> object:
    """Returns the cuts of one segment."""
    before = 0 if own else keys.stop - keys.start
    return kernel.cut(np.array([rows.stop - rows.start]), np.array([before]), np.array([own]))
