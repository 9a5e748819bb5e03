"""Elementwise work of the network and its gradients, as functions of tensors: nothing here is differentiated by torch.

Each reads its inputs once and writes its results once where it is compiled (torch.compile makes one or two kernels of
it); uncompiled it is the same function, operation by operation. Inside, everything is computed in the wide dtype.

Shapes: T rows, h hidden, F ffn_hidden, V vocab, H heads of any kind, D head_dim. Rows vary from call to call.
"""

import inspect
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zbench.describe.model import Model
from zbench.runtime.kernels.span import ELEMENTWISE, in_span

NORM_EPSILON = 1e-5  # of the released Llama 2 and 3 models
LEAST_ROWS = 2  # torch.compile takes the sizes 0 and 1 for constants
HINT = 16384  # rows for which kernels on a GPU are chosen; any other number runs on the same ones
SMALL_HINT = 64  # likewise, on a CPU


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype that parameters are kept in, and sums and softmaxes computed in, where activations are
    `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@in_span(ELEMENTWISE)
def normed(x: Tensor, weight: Tensor) -> Tensor:
    """Computes RMSNorm: x [T, h], weight [h] -> [T, h]."""
    values = x.to(wide(x.dtype))
    return F.rms_norm(values, weight.shape, weight.to(values.dtype), NORM_EPSILON).to(x.dtype)


@in_span(ELEMENTWISE)
def normed_back(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of RMSNorm, (dx [T, h], dweight [h] in the wide dtype)."""
    given, unit, scale = dy.to(wide(x.dtype)), *_unit(x)
    return _normed_back_input(given, unit, scale, weight).to(x.dtype), (given * unit).sum(0)


@in_span(ELEMENTWISE)
def normed_back_input(dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Returns the first of normed_back."""
    return _normed_back_input(dy.to(wide(x.dtype)), *_unit(x), weight).to(x.dtype)


@in_span(ELEMENTWISE)
def normed_back_weight(dy: Tensor, x: Tensor) -> Tensor:
    """Returns the second of normed_back."""
    return (dy.to(wide(x.dtype)) * _unit(x)[0]).sum(0)


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x divided by its root mean square, and the inverse of that, wide [T, 1]."""
    values = x.to(wide(x.dtype))
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return values * scale, scale


def _normed_back_input(given: Tensor, unit: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    weighted = given * weight
    return (weighted - unit * (weighted * unit).mean(-1, keepdim=True)) * scale


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies RoPE, which turns the neighbours (2i, 2i + 1) of every head; x [T, H, D], cos and sin [T, D / 2] wide."""
    wide_x, cos, sin = x.to(cos.dtype), cos[:, None], sin[:, None]
    # Complex numbers are neighbours in memory; what an attention's backward makes of few tokens need not be.
    pairs = (wide_x if wide_x.stride(2) == 1 else wide_x.contiguous()).unflatten(2, (-1, 2))
    if not torch.compiler.is_compiling():  # which makes no kernels of complex numbers
        return torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin)).flatten(2).to(x.dtype)
    even, odd = pairs.unbind(3)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), 3).flatten(2).to(x.dtype)


@in_span(ELEMENTWISE)
def split(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q [T, heads, D] and k [T, kv_heads, D] turned, and v, of the joint projection [T, heads + 2 kv_heads,
    D]."""
    q, k, v = qkv.split((heads, kv_heads, kv_heads), 1)
    return rotate(q, cos, sin), rotate(k, cos, sin), v.clone(memory_format=torch.contiguous_format)


@in_span(ELEMENTWISE)
def split_back(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns the gradient of the joint projection, turned back."""
    return torch.cat((rotate(dq, cos, -sin), rotate(dk, cos, -sin), dv), 1)


@in_span(ELEMENTWISE)
def gated(gate_up: Tensor) -> Tensor:
    """Computes SwiGLU's product: gate and up [T, 2 F] -> silu(gate) * up [T, F]."""
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, 1)
    return (F.silu(gate) * up).to(gate_up.dtype)


@in_span(ELEMENTWISE)
def gated_back(dproduct: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (the gradient of gate and up [T, 2 F], the product again [T, F])."""
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, 1)
    share = gate.sigmoid()
    active = gate * share
    dgate_up = _gated_back_input(dproduct.to(gate.dtype), up, share, active)
    return dgate_up.to(gate_up.dtype), (active * up).to(gate_up.dtype)


@in_span(ELEMENTWISE)
def gated_back_input(dproduct: Tensor, gate_up: Tensor) -> Tensor:
    """Returns the first of gated_back."""
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, 1)
    share = gate.sigmoid()
    return _gated_back_input(dproduct.to(gate.dtype), up, share, gate * share).to(gate_up.dtype)


def _gated_back_input(given: Tensor, up: Tensor, share: Tensor, active: Tensor) -> Tensor:
    return torch.cat((given * up * (share + active * (1 - share)), given * active), 1)


@in_span(ELEMENTWISE)
def softmaxed(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (log softmax at the targets, wide [T, 1]; softmax [T, V]) of logits [T, V] and targets int64 [T, 1]."""
    logs = F.log_softmax(logits, 1, dtype=wide(logits.dtype))
    return logs.gather(1, targets), logs.exp_().to(logits.dtype)


@dataclass(frozen=True)
class Elementwise:
    """The functions of this module, as they are or compiled. lacks: why they are not, where nobody asked for that."""

    lacks: str = ""
    normed: Callable[[Tensor, Tensor], Tensor] = normed
    normed_back: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = normed_back
    split: Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor, Tensor]] = split
    split_back: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = split_back
    gated: Callable[[Tensor], Tensor] = gated
    gated_back: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = gated_back
    softmaxed: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = softmaxed

    @property
    def is_compiled(self) -> bool:
        """Whether the functions are compiled."""
        return self.normed is not normed

    @property
    def name(self) -> str:
        """The name for the record."""
        if self.is_compiled:
            return "compiled"
        return f"uncompiled: {self.lacks}" if self.lacks else "uncompiled"

    @staticmethod
    def compiled(backend: str = "inductor") -> "Elementwise":
        """Compiles the functions by torch.compile, in this process: no other one is started that could outlive it."""
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # of this thread; in others _compiled says it again
        functions = [field for field in fields(Elementwise) if field.name != "lacks"]
        return Elementwise(**{one.name: _compiled(one.default, backend) for one in functions})  # type: ignore[arg-type]

    def warm(self, model: Model, dtype: torch.dtype, device: torch.device, say: Callable[[str], None]) -> None:
        """Calls every function once, so that none is compiled within a step. say: is told which one is next."""
        rows = HINT if device.type == "cuda" else SMALL_HINT
        heads, kv_heads, dim = model.num_heads, model.num_kv_heads, model.head_dim

        def make(*shape: int, as_type: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=as_type, device=device)

        x, weight = make(rows, model.hidden), make(model.hidden, as_type=wide(dtype))
        qkv, turn = make(rows, heads + 2 * kv_heads, dim), make(rows, dim // 2, as_type=wide(dtype))
        dkv = make(rows, 2, kv_heads, dim)  # as zbench.runtime.training.attention gives gradients
        gate_up, product = make(rows, 2 * model.ffn_hidden), make(rows, model.ffn_hidden)
        logits, targets = make(rows // 8, model.vocab), make(rows // 8, 1, as_type=torch.int64)
        calls: dict[str, tuple[Any, ...]] = {
            "normed": (x, weight),
            "normed_back": (x, x, weight),
            "split": (qkv, turn, turn, heads, kv_heads),
            "split_back": (make(rows, heads, dim), dkv[:, 0], dkv[:, 1], turn, turn),
            "gated": (gate_up,),
            "gated_back": (product, gate_up),
            "softmaxed": (logits, targets),
        }
        for name, arguments in calls.items():
            say(f"compiling {name}")
            getattr(self, name)(*arguments)


def _compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Returns `function` compiled for any number of rows: that of its first argument, which others may share."""
    # A backward on a GPU is in a thread of torch's own, and from torch 2.12 on each has a configuration of its own.
    options: dict[str, Any] | None = {"compile_threads": 1} if backend == "inductor" else None
    run = torch.compile(inspect.unwrap(function), fullgraph=True, backend=backend, options=options)

    @in_span(ELEMENTWISE)
    def call(first: Tensor, *others: Any) -> Any:
        rows = len(first)
        if rows < LEAST_ROWS:
            return function(first, *others)
        # Detached and without gradients, so that one graph serves whatever torch differentiates around it.
        given = [x.detach() if isinstance(x, Tensor) else x for x in (first, *others)]
        for x in given:
            if isinstance(x, Tensor) and x.ndim > 1:  # weights of norms have no rows
                torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            return run(*given)

    return call


def choose_elementwise(asked: bool | None, device: torch.device) -> Elementwise:
    """Chooses between the functions as they are and compiled ones. asked: executor.compile; None: compiled on a GPU
    where there is a compiler.

    Raises:
        ValueError: it is asked for, and there is no compiler.
    """
    if asked is False or (asked is None and device.type != "cuda"):
        return Elementwise()
    if (missing := lacks(device)) is None:
        return Elementwise.compiled()
    why = f"torch.compile needs {missing} here, and there is none"
    if asked:
        raise ValueError(f"executor.compile is true; {why}")
    return Elementwise(why)


def lacks(device: torch.device) -> str | None:
    """Returns what torch.compile misses on this machine; None where it has all."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "the package triton"
    variable, names = ("CC", ("gcc", "clang", "cc")) if device.type == "cuda" else ("CXX", ("g++", "clang++"))
    if not any(shutil.which(name) for name in (os.environ.get(variable, ""), *names) if name):
        return f"a C{'' if device.type == 'cuda' else '++'} compiler ({' or '.join(names[:2])}, or {variable})"
    return None
