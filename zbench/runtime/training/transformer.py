"""The network that trains: a Llama-like decoder over a flat run of tokens, dense or mixture of experts.

Not attention across ranks: `attend` is given by the caller and may communicate. Not where parameters
live: see parameters.py. Parts: RMSNorm (arXiv 1910.07467), RoPE (2104.09864), grouped-query attention
(2305.13245), SwiGLU (2002.05202), experts chosen as in Mixtral (2401.04088, section 2.1).

Shapes: T tokens of this rank, which may be 0, of any sequences in any order; h hidden, H query heads,
Hkv kv heads, D head_dim, F ffn_hidden, V vocab, E experts, k experts per token.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zbench.describe.model import COSINE, SIGMOID, SOFTMAX_ALL, Model
from zbench.runtime.kernels.elementwise import Elementwise, wide
from zbench.runtime.training.blocks import CrossEntropy, GatedLinear, Norm, NormLinear, Split

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q [T, H, D], k, v [T, Hkv, D] -> o [T, H, D]
LocalAttend = Callable[[Tensor, Tensor, Tensor], Tensor]  # the same, of a layer

ROPE_BASE = 500_000.0  # Llama 3 report (arXiv 2407.21783), section 3.2
INITIAL_STD = 0.02  # GPT (Radford et al. 2018), section 4.1; kept by GPT-2 and by public Llama code
COMPUTE = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}  # dtype of activations by model.element_bytes
MOST_DRAWN = 8  # whole parameters that threads draw at once, each of which takes its memory: a judgement


class Transformer(nn.Module):
    """The decoder of `model`, its initial weights a function of (seed, parameter name) alone.

    Parameters are float32, also where activations are bfloat16 (they are cast at every use), and float64
    where activations are. On device "meta" they have no values; draw() gives them one at a time.
    fused: how elementwise work is computed.
    recompute: what runs again in a layer's backward (zbench.runtime.job.footprint.LEVELS); model.recompute at first. It
    has to give the same bits then, or tokens may choose other experts.
    Raises ValueError for an element_bytes or a head_dim that cannot be computed with.
    """

    def __init__(
        self, model: Model, seed: int, device: torch.device | str = "cpu", fused: Elementwise | None = None
    ) -> None:
        super().__init__()
        if model.element_bytes not in COMPUTE:
            raise ValueError(
                f"model.element_bytes is {model.element_bytes}; training takes 2 (bfloat16), 4 (float32) or 8 (float64)"
            )
        if model.head_dim % 2:
            raise ValueError(f"model.head_dim is {model.head_dim}; RoPE turns pairs, so it has to be even")
        self.model, self.seed, self.dtype = model, seed, COMPUTE[model.element_bytes]
        self.fused = fused or Elementwise()
        self.recompute: str = model.recompute

        def make(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=wide(self.dtype), device=device))

        self.embedding = make(model.vocab, model.hidden)
        kinds = [model.dense_layer for _ in range(model.dense_layers)]
        kinds += [model] * (model.num_layers - model.dense_layers)
        self.layers = nn.ModuleList(DecoderLayer(one, make) for one in kinds)
        self.norm = make(model.hidden)
        self.head = None if model.tied_embeddings else make(model.vocab, model.hidden)
        if torch.device(device).type != "meta":
            with torch.no_grad():
                for parameter, value in self.drawn():
                    parameter.copy_(value)

    def drawn(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yields every parameter with its initial value, in order; threads draw a few of them ahead, as a large table
        keeps one of them busy for seconds."""
        every, count = list(self.named_parameters()), min(MOST_DRAWN, torch.get_num_threads())
        with ThreadPoolExecutor(count) as threads:
            ahead = deque[Future[Tensor]]()
            for at, (_, parameter) in enumerate(every):
                while len(ahead) < count and at + len(ahead) < len(every):
                    ahead.append(threads.submit(self.draw, every[at + len(ahead)][0]))
                yield parameter, ahead.popleft().result()

    def draw(self, name: str) -> Tensor:
        """Draws the whole initial value of a parameter, float32 on the CPU: the same on every rank and for every dtype.

        Projections into the residual stream are drawn smaller by sqrt(2 layers), so that its variance does
        not grow with depth (GPT-2, Radford et al. 2019, section 2.3).
        """
        shape = tuple(self.get_parameter(name).shape)
        if len(shape) == 1:
            return torch.ones(shape)
        into_residual = name.endswith((".out", ".down", ".shared_down"))
        std = INITIAL_STD / (2 * self.model.num_layers) ** 0.5 if into_residual else INITIAL_STD
        rng = np.random.default_rng([self.seed, *name.encode()])
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).mul_(std)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        targets: Tensor,
        attend: Attend,
        num_labels: int,
        counted: Tensor | None = None,
    ) -> Tensor:
        """Returns the sum of the next-token cross-entropy of these tokens over `num_labels`, those that count of the
        whole global batch.

        tokens, positions (inside the sequence), targets: int64 [T]. counted: int64, the rows whose loss counts; None:
        all. Returns a scalar, float32 or float64.
        `attend` is called once a layer, in order, and its backward runs once a layer, in reverse order,
        whatever T: with T = 0 the loss is 0 and every parameter gets a gradient of zeros.
        """
        turns = tuple(x.to(wide(self.dtype)) for x in rope(positions, self.model.head_dim))
        # Looked up in the wide dtype: the gradient of a frequent token sums thousands of rows.
        x = F.embedding(tokens, self.embedding.to(wide(self.dtype))).to(self.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, turns, partial(attend, index), self.fused, self.recompute)
        if counted is not None:
            x, targets = x[counted], targets[counted]
        head = self.embedding if self.head is None else self.head
        total: Tensor = CrossEntropy.apply(Norm.apply(x, self.norm, self.fused), head, targets, self.fused)
        return total / num_labels


class DecoderLayer(nn.Module):
    """One decoder layer: x [T, h] -> [T, h]. q, k, v are one weight, gate and up are one, experts one below another,
    and shared ones one feed-forward."""

    def __init__(self, model: Model, make: Callable[..., nn.Parameter]) -> None:
        super().__init__()
        self.model = model
        self.attention_norm = make(model.hidden)
        self.qkv = make((model.num_heads + 2 * model.num_kv_heads) * model.head_dim, model.hidden)
        self.out = make(model.hidden, model.num_heads * model.head_dim)
        self.ffn_norm = make(model.hidden)
        self.gate_up = make(model.num_experts * 2 * model.ffn_hidden, model.hidden)
        self.down = make(model.num_experts * model.hidden, model.ffn_hidden)
        width = model.router_dim if model.router == COSINE else model.hidden
        self.router = make(model.num_experts, width) if model.num_experts > 1 else None
        self.router_projection = make(model.router_dim, model.hidden) if model.router == COSINE else None
        shared = model.shared_experts * model.ffn_hidden  # columns of one feed-forward
        self.shared_gate_up = make(2 * shared, model.hidden) if shared else None
        self.shared_down = make(model.hidden, shared) if shared else None

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: LocalAttend, fused: Elementwise, recompute: str
    ) -> Tensor:
        """Returns the layer's output, [T, h]; `recompute` says what runs again in the backward."""
        if not torch.is_grad_enabled():
            recompute = "none"
        if recompute == "none":
            return self._run(x, turns, attend, fused)
        out: Tensor
        if recompute == "full":
            out = again(self._run, x, turns, attend, fused)
        elif recompute == "selective":
            o = attend(*self._project(x, turns, fused))
            out = again(self._feed_forward, self._attended(x, o), fused)
        else:
            o = attend(*again(self._project, x, turns, fused))
            out = again(self._after, x, o, fused)
        return out

    def _run(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: LocalAttend, fused: Elementwise) -> Tensor:
        return self._after(x, attend(*self._project(x, turns, fused)), fused)

    def _project(self, x: Tensor, turns: tuple[Tensor, Tensor], fused: Elementwise) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what attends: q [T, H, D], k and v [T, Hkv, D]."""
        heads, kv_heads = self.model.num_heads, self.model.num_kv_heads
        qkv: Tensor = NormLinear.apply(x, self.attention_norm, self.qkv.to(x.dtype), fused)
        parts: tuple[Tensor, Tensor, Tensor] = Split.apply(
            qkv.unflatten(1, (heads + 2 * kv_heads, self.model.head_dim)), *turns, heads, kv_heads, fused
        )
        return parts

    def _after(self, x: Tensor, o: Tensor, fused: Elementwise) -> Tensor:
        """Returns the layer's output, of its input and what was attended to, o [T, H, D]."""
        return self._feed_forward(self._attended(x, o), fused)

    def _attended(self, x: Tensor, o: Tensor) -> Tensor:
        """Returns the feed-forward's input, [T, h], of the layer's and what was attended to, o [T, H, D]."""
        return torch.addmm(x, o.flatten(1), self.out.to(x.dtype).T)

    def _feed_forward(self, x: Tensor, fused: Elementwise) -> Tensor:
        """Returns the layer's output, of the feed-forward's input."""
        if self.router is not None:
            normed = Norm.apply(x, self.ffn_norm, fused)
            return self._shared(x, normed, fused) + self._experts(normed, self.router, fused)
        gate_up = NormLinear.apply(x, self.ffn_norm, self.gate_up.to(x.dtype), fused)
        out: Tensor = GatedLinear.apply(x, gate_up, self.down.to(x.dtype), fused)
        return out

    def _shared(self, x: Tensor, normed: Tensor, fused: Elementwise) -> Tensor:
        """Returns the feed-forward's input and what shared experts, one SwiGLU, make of it after its norm."""
        if self.shared_gate_up is None or self.shared_down is None:
            return x
        gate_up = linear(normed, self.shared_gate_up)
        out: Tensor = GatedLinear.apply(x, gate_up, self.shared_down.to(x.dtype), fused)
        return out

    def _logits(self, x: Tensor, router: Tensor) -> Tensor:
        """Returns the router's logits, [T, experts]."""
        if self.router_projection is None:
            return linear(x, router)
        tokens = F.normalize(linear(x, self.router_projection), dim=1)
        return tokens @ F.normalize(router.to(x.dtype), dim=1).T / self.model.router_temperature

    def _experts(self, x: Tensor, router: Tensor, fused: Elementwise) -> Tensor:
        """Returns the experts' output: rows sorted by expert, one SwiGLU an expert, back in order and weighted.

        An expert without tokens runs on no rows, so that its weights get a gradient of zeros.
        """
        num, per_token = self.model.num_experts, self.model.experts_per_token
        every = self._logits(x, router).to(wide(x.dtype))
        logits, chosen = every.topk(per_token, dim=1)  # whatever the gate: each grows with the logits
        if self.model.gate == SOFTMAX_ALL:
            share = every.softmax(1).gather(1, chosen)
        elif self.model.gate == SIGMOID:
            share = F.normalize(logits.sigmoid(), p=1, dim=1)
        else:
            share = logits.softmax(1)  # of all experts and renormalised over the k, or of the k: the same
        share = share.to(x.dtype)
        order = chosen.flatten().argsort(stable=True)  # [T k]: row token * k + choice
        rows = x.index_select(0, order // per_token).split(chosen.flatten().bincount(minlength=num).tolist())
        gate_up, down = self.gate_up.to(x.dtype).chunk(num), self.down.to(x.dtype).chunk(num)
        each = zip(rows, gate_up, down, strict=True)
        y = torch.cat([GatedLinear.apply(None, linear(r, g), d, fused) for r, g, d in each])
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        y = y.index_select(0, place).view(len(x), per_token, x.shape[1])
        return (y * share[:, :, None]).sum(1)


def again(run: Callable[..., Any], *arguments: Any) -> Any:
    """Calls run(*arguments) and keeps only the arguments: it runs again in the backward.

    Never stopped early: where it could stop depends on what autograd saved, and all ranks have to run attend's
    messages again alike. The cost model counts the whole forward too.
    """
    return checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False, early_stop=False)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Multiplies x [T, in] by weight [out, in] of any dtype -> [T, out] in x's."""
    return F.linear(x, weight.to(x.dtype))


def rope(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine of the turn of every pair, float64 [T, D/2]: float32 angles are off by 1e-3 at 64K
    tokens."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.to(torch.float64)[:, None] * ROPE_BASE ** (-pairs / head_dim)
    return angles.cos(), angles.sin()
