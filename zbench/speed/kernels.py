"""Measures attention kernels of this device on the same batches, and a ring's step against one causal call of the same
area.

Shapes: as in zbench.runtime.kernels.kernels, of one layer of the model, on random data in its dtype.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, isqrt
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zbench.cost.kernel import BACKWARD_FLOPS, FORWARD_FLOPS
from zbench.describe.model import Model
from zbench.runtime.clocks.times import Times
from zbench.runtime.kernels.kernels import Kernel, offered_kernels
from zbench.runtime.kernels.memory import DTYPES, add
from zbench.speed.table import SDPA

REFERENCE = "matmul"  # for short lengths: it is no rival
REPEATS = 10  # calls that count, after as many that do not; the median does

Calls = tuple[Callable[[], Any], Callable[[], Any], tuple[Tensor, ...]]  # forward, backward; o, dq, dk, dv


@dataclass(frozen=True, slots=True)
class KernelSubject:
    """The subject of measurements: one layer's attention of `model` on `device`."""

    model: Model
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's activations."""
        return DTYPES[self.model.element_bytes]

    def draw(self, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draws do, q [queries, H, D], and k, v [keys, K, D] as blocks of kv lie."""
        model = self.model
        generator = torch.Generator(self.device).manual_seed(0)

        def make(*shape: int) -> Tensor:
            return torch.randn(*shape, model.head_dim, generator=generator, device=self.device).to(self.dtype)

        kv = make(keys, 2, model.num_kv_heads)
        return make(queries, model.num_heads), make(queries, model.num_heads), kv[:, 0], kv[:, 1]

    def rivals(self) -> dict[str, Kernel]:
        """Returns, by name, all variable-length kernels that there are; the first one is what kernel=auto takes."""
        kernels = offered_kernels(self.device, self.model.head_dim, self.dtype)
        return {name: kernel for name, kernel in reversed(kernels.items()) if name != REFERENCE}

    def seconds(self, call: Callable[[], Any], repeats: int = REPEATS) -> float:
        """Returns the seconds of one call, by the device's clock."""
        clock = Times.on(self.device).clock
        spans = []
        for _ in range(2 * repeats):
            began = clock.now()
            call()
            spans.append((began, clock.now()))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return statistics.median(clock.between(began, ended) for began, ended in spans[repeats:])


def on_batch(subject: KernelSubject, lengths: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Measures every kernel: forward and backward seconds of whole causal sequences, the rates of the pairs that are
    visible, and how far what is farthest of o, dq, dk and dv is from the first kernel's; or why it did not run."""
    do, q, k, v = subject.draw(sum(lengths), sum(lengths))
    queries = np.array(lengths)
    cut = (queries, np.zeros_like(queries), np.ones(len(lengths), bool))
    pairs = sum(length * (length + 1) // 2 for length in lengths) * subject.model.num_heads * subject.model.head_dim
    found: dict[str, dict[str, Any]] = {}
    first: tuple[Tensor, ...] = ()

    def note(name: str, run: Callable[[], Calls]) -> None:
        nonlocal first
        try:
            forward, backward, results = run()
            first = first or results
            spent = (subject.seconds(forward), subject.seconds(backward))
            differences = [_difference(*pair) for pair in zip(results, first, strict=True)]
        except RuntimeError as error:  # of torch: this kernel does not take these shapes, or has no room
            found[name] = {"refused": str(error).splitlines()[0]}
            return
        if not all(map(isfinite, differences)):  # which JSON does not have
            found[name] = {"refused": "its results are not finite"}
            return
        rates = (pairs * FORWARD_FLOPS / spent[0], pairs * BACKWARD_FLOPS / spent[1])
        found[name] = {"seconds": spent, "flops": rates, "difference": max(differences)}

    calls: list[tuple[str, Callable[[], Calls]]] = [
        (name, partial(kernel_calls, kernel, (do, q, k, v), kernel.cut(*cut)))
        for name, kernel in subject.rivals().items()
    ]
    if subject.device.type == "cuda":
        calls.insert(1, (SDPA, partial(sdpa_calls, (do, q, k, v), lengths)))
    for name, call in calls:
        note(name, call)
    return found


def kernel_calls(kernel: Kernel, tensors: tuple[Tensor, Tensor, Tensor, Tensor], cuts: Any) -> Calls:
    """Returns a kernel's forward and backward as calls without arguments, and what they compute: o, and gradients.

    tensors: do, q, k, v. cuts: what the kernel's `cut` made of the lengths.
    """
    do, q, k, v = tensors
    o, lse = kernel.forward(q, k, v, cuts)
    backward = partial(kernel.backward, do, q, k, v, o, lse, cuts)
    return partial(kernel.forward, q, k, v, cuts), backward, (o, *backward())


def _difference(some: Tensor, first: Tensor) -> float:
    """Returns the norm of the difference over the norm."""
    return float((some.double() - first.double()).norm() / first.double().norm())


def sdpa_calls(tensors: tuple[Tensor, Tensor, Tensor, Tensor], lengths: Sequence[int]) -> Calls:
    """Returns calls of torch's own attention by cuDNN, sequences of one length in one call. Calls keep their graph for
    the backward."""
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths)
    groups = [(length, order[np.array(lengths)[order] == length]) for length in sorted(set(lengths))]
    rows = [np.concatenate([np.arange(ends[i] - size, ends[i]) for i in which]) for size, which in groups]
    parts = []
    for (size, _), row in zip(groups, rows, strict=True):
        at = torch.from_numpy(row).to(tensors[0].device)
        do, q, k, v = (x.index_select(0, at).unflatten(0, (-1, size)).transpose(1, 2) for x in tensors)
        parts.append((do, *(x.detach().requires_grad_() for x in (q, k, v))))

    def forward() -> list[Tensor]:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return [
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
                for _, q, k, v in parts
            ]

    outs = forward()

    def backward() -> list[tuple[Tensor, ...]]:
        return [
            torch.autograd.grad(out, (q, k, v), do, retain_graph=True)
            for out, (do, q, k, v) in zip(outs, parts, strict=True)
        ]

    place = torch.from_numpy(np.concatenate(rows)).to(tensors[0].device)

    def in_order(some: Sequence[Tensor]) -> Tensor:
        whole = torch.cat([x.detach().transpose(1, 2).flatten(0, 1) for x in some])
        return torch.empty_like(whole).index_copy_(0, place, whole)

    grads = zip(*backward(), strict=True)
    return forward, backward, (in_order(outs), *(in_order(one) for one in grads))


def ring_step(subject: KernelSubject, kernel: Kernel, chunk: int) -> dict[str, Any]:
    """Measures the seconds of a ring's step, `chunk` queries against as many keys that all of them see, its results
    added to what there is already; of the kernel in it alone; and of one causal sequence with the same number of
    visible pairs.

    shares: what the step does in a second over what the causal call does, forward and backward.
    """
    whole = (isqrt(8 * chunk * chunk + 1) - 1) // 2  # s (s + 1) / 2 pairs
    causal = kernel.cut(np.array([whole]), np.array([0]), np.array([True]))
    forward, backward, _ = kernel_calls(kernel, subject.draw(whole, whole), causal)
    one_call = (subject.seconds(forward), subject.seconds(backward))
    do, q, k, v = subject.draw(chunk, chunk)
    cuts = kernel.cut(np.array([chunk]), np.array([chunk]), np.array([False]))
    alone = kernel_calls(kernel, (do, q, k, v), cuts)
    o, lse = kernel.forward(q, k, v, cuts)
    sums = (torch.zeros_like(q), torch.zeros(chunk, 2, *k.shape[1:], dtype=k.dtype, device=k.device))
    everything = slice(0, chunk)

    def forward_step() -> None:
        add((o, lse), everything, kernel.forward(q, k, v, cuts))

    def backward_step() -> None:
        dq, dk, dv = kernel.backward(do, q, k, v, o, lse, cuts)
        add(sums[:1], everything, (dq,))
        add(sums[1:], everything, (torch.stack((dk, dv), 1),))

    step = (subject.seconds(forward_step), subject.seconds(backward_step))
    area = chunk * chunk / (whole * (whole + 1) / 2)
    return {
        "chunk": chunk,
        "causal_tokens": whole,
        "step_seconds": step,
        "kernel_seconds": (subject.seconds(alone[0]), subject.seconds(alone[1])),
        "causal_seconds": one_call,
        "shares": tuple(area * causal_s / step_s for causal_s, step_s in zip(one_call, step, strict=True)),
        "share": area * sum(one_call) / sum(step),
    }
