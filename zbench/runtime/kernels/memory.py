"""Memory that ranks hold and send: blocks of one tensor for some query heads, and how partial sums join.

Shapes: T rows, h query heads, k kv heads of theirs, D head_dim. Fields by tensor, each [T, ...]:
q, dq: [T, h, D]. kv, dkv: [T, 2, k, D] (key, then value). o: [T, h, D] and its log-sum-exp [T, h].
do: [T, h, D], log-sum-exp [T, h], and the row sum of do * o [T, h], which the backward of softmax needs.
A message is its fields one after another, so its size is zbench.describe.model.Model.message_bytes_per_token.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.describe.model import DKV, DO, KV, Model, O
from zbench.runtime.program.program import Rows

DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model's tensors in memory, on `device`."""

    model: Model
    device: torch.device

    def kv_heads(self, lo: int, hi: int) -> tuple[int, int]:
        """Returns the kv heads [first, last) that query heads [lo, hi) read."""
        group = self.model.num_heads // self.model.num_kv_heads
        return lo // group, -(-hi // group)

    def empty(self, tensor: int, lo: int, hi: int, rows: int, start: bool = False) -> "Memory":
        """Returns memory for one message.
        start: as a sum of nothing, zeros with a log-sum-exp of minus infinity."""
        model, make = self.model, torch.zeros if start else torch.empty
        first, last = self.kv_heads(lo, hi)
        heads = (2, last - first) if tensor in (KV, DKV) else (hi - lo,)
        shape = (rows, *heads, model.head_dim)
        extra = {O: 1, DO: 2}.get(tensor, 0)
        main, step = math.prod(shape) * model.element_bytes, rows * (hi - lo) * model.lse_bytes
        whole = make(main + extra * step, dtype=torch.uint8, device=self.device)
        fields = [whole[:main].view(DTYPES[model.element_bytes]).view(shape)]
        for at in range(extra):
            part = whole[main + at * step : main + (at + 1) * step]
            fields.append(part.view(DTYPES[model.lse_bytes]).view(rows, hi - lo))
        if start and tensor == O:
            fields[1].fill_(-torch.inf)
        return Memory(tensor, lo, hi, tuple(fields), whole)

    def taken(self, tensor: int, lo: int, hi: int, fields: tuple[Tensor, ...]) -> "Memory | None":
        """Takes the results of a kernel as they lie, as the memory of what they are; None where they would have to be
        copied."""
        dtypes = (DTYPES[self.model.element_bytes], DTYPES[self.model.lse_bytes])
        if all(x.is_contiguous() and x.dtype == dtype for x, dtype in zip(fields, dtypes, strict=False)):
            return Memory(tensor, lo, hi, fields, bytes_of(fields[0]) if len(fields) == 1 else None)
        return None

    def in_one_piece(self, memory: "Memory") -> "Memory":
        """Returns the memory with all of its bytes in one piece, copied if they are not."""
        if memory.whole is not None:
            return memory
        one = self.empty(memory.tensor, memory.lo, memory.hi, len(memory.fields[0]))
        copy(one.fields, slice(None), memory.fields)
        return one

    def heads(self, memory: "Memory", lo: int, hi: int) -> tuple[Tensor, ...]:
        """Returns the fields of `memory` for query heads [lo, hi), as views."""
        if (lo, hi) == (memory.lo, memory.hi):
            return memory.fields
        if memory.tensor in (KV, DKV):
            first = self.kv_heads(memory.lo, memory.hi)[0]
            begin, end = self.kv_heads(lo, hi)
            return (memory.fields[0][:, :, begin - first : end - first],)
        return tuple(field[:, lo - memory.lo : hi - memory.lo] for field in memory.fields)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of `tensor` for query heads [lo, hi), field by field. whole: all of their bytes in one piece, None if
    they are not."""

    tensor: int
    lo: int
    hi: int
    fields: tuple[Tensor, ...]
    whole: Tensor | None

    def part(self, start: int, rows: int) -> "Memory":
        """Returns some rows of a tensor of one field."""
        field = self.fields[0][start : start + rows]
        return Memory(self.tensor, self.lo, self.hi, (field,), bytes_of(field))


def bytes_of(field: Tensor) -> Tensor:
    """Views a contiguous field as bytes."""
    return field.view(-1).view(torch.uint8)


def rows_of(field: Tensor, rows: Rows) -> Tensor:
    """Returns some rows of a field."""
    return field[rows] if isinstance(rows, slice) else field.index_select(0, rows)


def copy(target: tuple[Tensor, ...], rows: Rows, source: tuple[Tensor, ...]) -> None:
    """Copies `source` to the `rows` of `target`, field by field."""
    for to, given in zip(target, source, strict=True):
        if isinstance(rows, slice):
            to[rows].copy_(given)
        else:
            to.index_copy_(0, rows, given)


def add(target: tuple[Tensor, ...], rows: Rows, source: tuple[Tensor, ...]) -> None:
    """Adds partial sums to the `rows` of target: o by its log-sum-exp, dq and dkv plainly."""
    if len(target) == 2:
        _merge(target[0], target[1], rows, source[0], source[1])
    elif isinstance(rows, slice):
        target[0][rows].add_(source[0])
    else:
        target[0].index_add_(0, rows, source[0])


def _merge(o: Tensor, lse: Tensor, rows: Rows, other: Tensor, other_lse: Tensor) -> None:
    """Joins two partial attentions: each weighs as much as the exponentials it summed (Milakov and Gimelshein 2018,
    arXiv 1805.02867). A row that has seen nothing on either side has minus infinity on both, and stays as it is."""
    before = rows_of(lse, rows)
    after = torch.logaddexp(before, other_lse)
    weight = torch.exp(other_lse - after).nan_to_num_(nan=0.0).to(o.dtype)[..., None]
    if isinstance(rows, slice):
        o[rows].lerp_(other, weight)
        before.copy_(after)
    else:
        o.index_copy_(0, rows, torch.lerp(o.index_select(0, rows), other, weight))
        lse.index_copy_(0, rows, after)


def output_of(do: Tensor, delta: Tensor) -> Tensor:
    """Returns a tensor [T, h, D] whose row sums of its product with `do` are `delta` [T, h]: all that a backward takes
    o for.

    do x delta / |do|^2, computed from do over its largest element so that no square under- or overflows.
    """
    wide = do.to(delta.dtype)
    top = wide.abs().amax(-1, keepdim=True)
    unit = wide / torch.where(top > 0, top, 1)
    square = (unit * unit).sum(-1, keepdim=True)
    return (unit * (delta[..., None] / torch.where(top > 0, top * square, 1))).to(do.dtype)


@dataclass(frozen=True, slots=True)
class KvHeads:
    """The kv head that each query head reads; None where each of them has the same number of query heads, in order."""

    index: Tensor | None
    num: int

    @staticmethod
    def of(shape: Shape, lo: int, hi: int) -> "KvHeads":
        """Returns the kv heads of query heads [lo, hi)."""
        group = shape.model.num_heads // shape.model.num_kv_heads
        first, last = shape.kv_heads(lo, hi)
        even = last - first == 1 or (lo % group == 0 and hi % group == 0)
        index = None if even else torch.arange(lo, hi, device=shape.device) // group - first
        return KvHeads(index, last - first)

    def spread(self, x: Tensor) -> Tensor:
        """Returns kv heads [N, k, D] as a kernel takes them."""
        return x if self.index is None else x.index_select(1, self.index)

    def gather(self, x: Tensor) -> Tensor:
        """Sums the gradients of what `spread` gave by kv head."""
        if self.index is None:
            return x
        return x.new_zeros(x.shape[0], self.num, x.shape[2]).index_add_(1, self.index, x)
