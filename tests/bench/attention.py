"""Attention of one layer, forward and backward, on 4 gloo ranks: plans against hand-written code with the same kernel.

    python tests/bench/attention.py [tokens] [rounds]

Interleaved in one run, a barrier before each, seconds of the slowest rank, median over rounds. The rivals:
DeepSpeed's DistributedAttention (if it is installed) around the same kernel, and a plain zigzag ring as
Transformer Engine and ring-flash-attention have it. Also says how much of our time is neither kernel nor waiting.
"""

import os
import sys
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zbench.console.heap import keep_freed_memory
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.runtime.kernels.cpu import FlashCPU
from zbench.runtime.kernels.memory import Shape
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.program.compiler import Compiler
from zbench.runtime.program.holders import HomeRows
from zbench.runtime.training.attention import Attention
from zbench.runtime.training.deepspeed import open_deepspeed
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.transport.gloo import Sender
from zbench.runtime.transport.transport import Endpoint
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses

RANKS = 4
MODEL = Model("bench", 1, 512, 8, 8, 64, 1024, 256, element_bytes=4)
DEVICE = Device("cpu", 1e11, 4e9, 1e10, 1e9, 5e10, 5e10, 5e10, 1e-5, 1e-5)
COST = Cost(Cluster("bench", 2, 2, 1, 1e9, 1.0, 1e-4, 1e9, 1.0, 1e-4, DEVICE), MODEL)
KERNEL = FlashCPU()
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def rows(x: torch.Tensor) -> torch.Tensor:
    """[T, H, D] -> [1, H, T, D], a view."""
    return x.transpose(0, 1)[None]


class ZigzagRing(torch.autograd.Function):
    """Rank i of G holds chunks i and 2G-1-i; k and v go once round in the forward; with dk and dv in the backward."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rank, half = dist.get_rank(), len(q) // 2
        kv, o, lse = torch.stack((k, v)), None, None
        for step in range(RANKS):
            works, arriving = exchange(kv) if step + 1 < RANKS else ([], kv)
            part_q, part_kv, causal, place = case(step, rank, q, kv, half)
            out, top = _forward(rows(part_q), rows(part_kv[0]), rows(part_kv[1]), 0.0, causal)
            out, top = out[0].transpose(0, 1), top[0].T
            if o is None or lse is None:
                o, lse = out, top
            else:
                new = torch.logaddexp(lse[place], top)
                o[place].lerp_(out, (top - new).exp()[..., None])
                lse[place] = new
            for work in works:
                work.wait()
            kv = arriving
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        rank, half = dist.get_rank(), len(q) // 2
        kv, dq, dkv = torch.stack((k, v)), torch.zeros_like(q), torch.zeros(2, *k.shape)
        pending: list[Any] = []
        for step in range(RANKS):
            works, arriving = exchange(kv) if step + 1 < RANKS else ([], kv)
            part_q, part_kv, causal, place = case(step, rank, q, kv, half)
            given, out, top = do[place], o[place], lse[place].T[None]
            grads = _backward(
                rows(given), rows(part_q), rows(part_kv[0]), rows(part_kv[1]), rows(out), top, 0.0, causal
            )
            dq[place] += grads[0][0].transpose(0, 1)
            for work in pending:  # the gradients that the rank before made of these keys so far
                work.wait()
            for at in (0, 1):
                grad = grads[1 + at][0].transpose(0, 1)
                dkv[at, : len(grad)] += grad
            pending, dkv = exchange(dkv)
            for work in works:
                work.wait()
            kv = arriving
        for work in pending:
            work.wait()
        return dq, dkv[0], dkv[1]


def case(step: int, rank: int, q: torch.Tensor, kv: torch.Tensor, half: int) -> tuple[Any, Any, bool, slice]:
    """(queries, keys and values, causal, which queries) of a step: kv comes from rank - step."""
    source = (rank - step) % RANKS
    if source == rank:
        return q, kv, True, slice(None)
    if source < rank:
        return q, kv[:, :half], False, slice(None)
    return q[half:], kv, False, slice(half, None)


def exchange(data: torch.Tensor) -> tuple[list[Any], torch.Tensor]:
    rank, arriving = dist.get_rank(), torch.empty_like(data)
    ops = [dist.P2POp(dist.isend, data, (rank + 1) % RANKS), dist.P2POp(dist.irecv, arriving, (rank - 1) % RANKS)]
    return dist.batch_isend_irecv(ops), arriving


class Bench:
    """One rank."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, tokens: int) -> None:
        rendezvous.open()
        keep_freed_memory()
        self.rank, self.tokens, self.board = rank, tokens, rendezvous.board
        node = COST.cluster.node_of
        post = Endpoint(dist.new_group(), [bool(node[r] != node[rank]) for r in range(num_ranks)])
        self.engine = Engine(Shape(MODEL, torch.device("cpu")), KERNEL, post, Sender(), rendezvous.board)
        batch = Batch(np.array([tokens]), 0, 0)
        self.plans = {"ring": Ring(COST).plan(batch)[0], "ulysses": Ulysses(COST).plan(batch)[0]}
        self.programs = {
            name: Compiler(plan, rank, COST, torch.from_numpy, KERNEL.cut).compile()
            for name, plan in self.plans.items()
        }
        torch.manual_seed(rank)
        shape = (tokens // num_ranks, MODEL.num_heads, MODEL.head_dim)
        self.given = [torch.randn(shape) for _ in range(4)]
        assert all(HomeRows.of(plan, rank).num_tokens == shape[0] for plan in self.plans.values())
        self.deepspeed: Any = None
        if find_spec("deepspeed") is not None:
            self.deepspeed = open_deepspeed(rank).DistributedAttention(self._local, dist.new_group())

    def run(self, name: str) -> tuple[float, float] | None:
        """(seconds of forward and backward, those of them in neither kernel nor waiting)."""
        q, k, v = (x.clone().requires_grad_() for x in self.given[:3])
        if name == "deepspeed" and self.deepspeed is None:
            return None
        self.engine.times.clear()
        dist.barrier()
        began = perf_counter()
        if name in self.programs:
            o = Attention.apply(q, k, v, self.engine, self.programs[name], name)
        elif name == "hand-written ring":
            o = ZigzagRing.apply(q, k, v)
        else:
            o = self.deepspeed(q[:, None], k[:, None], v[:, None], 1)[:, 0]
        o.backward(self.given[3])
        seconds = perf_counter() - began
        times = self.engine.times
        return seconds, times.total - times.kernel - times.waiting

    def sent(self) -> tuple[int, int]:
        """Bytes so far: (inside the node, across nodes)."""
        traffic = self.engine.post.traffic
        return traffic.inside_tx, traffic.across_tx

    def compile(self, name: str) -> float:
        began = perf_counter()
        Compiler(self.plans[name], self.rank, COST, torch.from_numpy, KERNEL.cut).compile()
        return perf_counter() - began

    def _local(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """[N, 1, h, D], all tokens and some heads, the same kernel."""
        return Kernel.apply(q[:, 0], k[:, 0], v[:, 0])[:, None]


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ctx.cuts = KERNEL.cut(np.array([len(q)]), np.array([0]), np.array([True]))
        o, lse = KERNEL.forward(q, k, v, ctx.cuts)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        return KERNEL.backward(do.contiguous(), q, k, v, o, lse, ctx.cuts)


def main() -> None:
    tokens, rounds = map(int, (sys.argv[1:] + ["8192", "12"][len(sys.argv) - 1 :])[:2])
    names = ("ulysses", "deepspeed", "ring", "hand-written ring")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    own: dict[str, list[float]] = {name: [] for name in names}
    with LocalFleet(RANKS, "attention:Bench", tokens, timeout=120) as fleet:
        for turn in range(rounds + 1):
            first = turn % len(names)  # nobody always runs first, or after the same rival
            for name in names[first:] + names[:first]:
                found = fleet.call("run", name)
                if found[0] is not None and turn:
                    seconds[name].append(max(one for one, _ in found))
                    own[name].append(max(rest for _, rest in found))
        compiled = {name: max(fleet.call("compile", name)) for name in ("ulysses", "ring")}
    print(
        f"{tokens} tokens, {RANKS} ranks, {os.cpu_count()} cores, {MODEL.num_heads} heads of {MODEL.head_dim}, float32"
    )
    for name in names:
        if seconds[name]:
            rest = (
                f", of it the interpreter {median(own[name]) / median(seconds[name]):.1%}" if name in compiled else ""
            )
            extra = f", compiling the plan {compiled[name] * 1e3:.1f} ms" if name in compiled else ""
            print(f"{name:18} {median(seconds[name]):.3f} s{rest}{extra}")
    for ours, theirs in (("ulysses", "deepspeed"), ("ring", "hand-written ring")):
        if seconds[theirs]:
            ratios = [b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True)]
            spread = f"median of {len(ratios)} rounds, {min(ratios):.2f} - {max(ratios):.2f}"
            print(f"{theirs} / {ours}: {median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()
