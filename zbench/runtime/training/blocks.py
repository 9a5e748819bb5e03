"""Matmuls of the network together with the elementwise work around them, differentiable.

What torch's own operations would keep for the backward is more than is needed: what elementwise work made of a matmul's
output, or makes for its input, is computed again there in the pass over memory that needs it anyway (Chen et al. 2016,
arXiv 1604.06174, section 3; no matmul runs twice). A layer keeps its two inputs, q, k, v, o and gate and up.

Shapes: as in zbench.runtime.kernels.elementwise; weights [out, in] in the dtype of the activations, norms' in any.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zbench.cost.loss import chunk_rows
from zbench.runtime.kernels.elementwise import Elementwise, wide
from zbench.runtime.kernels.span import LOSS, in_span


class Norm(torch.autograd.Function):
    """Applies RMSNorm to x [T, h], differentiably."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, fused: Elementwise) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.fused = fused
        return fused.normed(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        dx, dweight = ctx.fused.normed_back(dy, x, weight)
        return dx, dweight.to(weight.dtype), None


class NormLinear(torch.autograd.Function):
    """Applies RMSNorm and a projection, differentiably: x [T, in] -> [T, out]. Keeps x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, weight: Tensor, fused: Elementwise) -> Tensor:
        ctx.save_for_backward(x, norm, weight)
        ctx.fused = fused
        return fused.normed(x, norm) @ weight.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, norm, weight = ctx.saved_tensors
        dweight = dz.T @ ctx.fused.normed(x, norm)
        dx, dnorm = ctx.fused.normed_back(dz @ weight, x, norm)
        return dx, dnorm.to(norm.dtype), dweight, None


class Split(torch.autograd.Function):
    """Splits the joint projection [T, H + 2 K, D], differentiably: q [T, H, D], k and v [T, K, D], q and k turned by
    RoPE. Keeps nothing."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int, fused: Elementwise
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.fused = fused
        return fused.split(qkv, cos, sin, heads, kv_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        return ctx.fused.split_back(dq, dk, dv, *ctx.saved_tensors), None, None, None, None, None


class GatedLinear(torch.autograd.Function):
    """Applies SwiGLU's product and a projection, added to `base` if there is one: gate and up [T, 2 F], base [T, h] ->
    [T, h].

    Keeps gate and up.
    """

    @staticmethod
    def forward(ctx: Any, base: Tensor | None, gate_up: Tensor, weight: Tensor, fused: Elementwise) -> Tensor:
        ctx.save_for_backward(gate_up, weight)
        ctx.fused = fused
        product = fused.gated(gate_up)
        return product @ weight.T if base is None else torch.addmm(base, product, weight.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        gate_up, weight = ctx.saved_tensors
        dgate_up, product = ctx.fused.gated_back(dz @ weight, gate_up)
        return (dz if ctx.needs_input_grad[0] else None), dgate_up, dz.T @ product, None


class CrossEntropy(torch.autograd.Function):
    """Sums -log softmax(x W^T)[target] over tokens: x [T, h], W [V, h], targets [T] -> scalar in the wide dtype.

    A chunk of tokens at a time, so that no [T, V] is ever there; gradients are made in the forward, where the logits
    are, so that no logits are kept nor computed twice. They are consumed by the one backward.
    """

    @staticmethod
    @in_span(LOSS)
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, fused: Elementwise) -> Tensor:
        table, sums = weight.to(x.dtype), wide(x.dtype)
        total = torch.zeros((), dtype=sums, device=x.device)
        dx, dweight = torch.empty_like(x), torch.zeros_like(weight, dtype=sums)
        rows = chunk_rows(len(x), x.shape[1], len(weight))
        for part, target, dpart in zip(x.split(rows), targets[:, None].split(rows), dx.split(rows), strict=True):
            logs, dlogits = fused.softmaxed(part @ table.T, target)
            total -= logs.sum()
            dlogits.scatter_(1, target, logs.expm1().to(x.dtype))  # not p - 1, of which bfloat16 leaves nothing
            torch.mm(dlogits, table, out=dpart)
            if x.dtype == sums:
                dweight.addmm_(dlogits.T, part)
            else:
                dweight += dlogits.T @ part
        ctx.gradients = dx, dweight.to(weight.dtype)
        return total

    @staticmethod
    @once_differentiable
    @in_span(LOSS)
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx, dweight = ctx.gradients
        del ctx.gradients  # scaled in place: a second backward has to fail
        return dx.mul_(upstream), dweight.mul_(upstream), None, None
