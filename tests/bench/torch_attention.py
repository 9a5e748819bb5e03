"""What attention costs through zbench.torch: on one rank beside the kernel alone, on 4 gloo ranks beside the executor.

    python tests/bench/torch_attention.py [rounds] [ranks, 1 or 4; both]

Forward and backward of a layer, interleaved in one run, a barrier before each. Medians over rounds: the seconds of the
slowest rank; the processor's seconds of all ranks together, in which other programs do not count; the rounds' ratios of
each, with quartiles; and of the processor's seconds those outside the kernel's calls, where all of a difference is that
is not the kernel's own noise.
"""

import os
import sys
from collections.abc import Callable
from statistics import median, quantiles
from time import perf_counter, process_time, thread_time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import zbench
import zbench.torch
from zbench.console.heap import keep_freed_memory
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.plans.segments import whole_sequences
from zbench.runtime.kernels import cpu
from zbench.runtime.kernels.cpu import FlashCPU
from zbench.runtime.kernels.memory import Shape
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.training.attention import Attention, programs_of
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.transport.nccl import transport_of
from zbench.runtime.transport.transport import Endpoint

MODEL = Model("bench", 1, 512, 8, 2, 64, 1024, 256, element_bytes=4)
DEVICE = Device("cpu", 1e11, 4e9, 1e10, 1e9, 5e10, 5e10, 5e10, 1e-5, 1e-5)
BATCHES = {"one sequence": [2048], "eight sequences": [256] * 8, "mixed": [1250, 450, 200, 100, 32, 10, 6]}
LONG = [3000, 750, 250, 96]  # on 4 ranks


def cluster(ranks: int) -> Cluster:
    return Cluster("bench", 1 if ranks == 1 else 2, max(1, ranks // 2), 1, 1e9, 1.0, 1e-4, 1e9, 1.0, 1e-4, DEVICE)


class Alone(torch.autograd.Function):
    """The kernel itself on whole sequences, as the shortest code calls it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cuts: Any) -> Tensor:
        ctx.cuts = cuts
        o, lse = CountedKernel().forward(q, k, v, cuts)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        return *CountedKernel().backward(do.contiguous(), q, k, v, o, lse, ctx.cuts), None


class CountedKernel(FlashCPU):
    """The kernel, and the seconds of the processor that its calls took."""

    spent = 0.0

    def forward(self, *given: Any) -> Any:
        return self._counted(super().forward, *given)

    def backward(self, *given: Any) -> Any:
        return self._counted(super().backward, *given)

    @staticmethod
    def _counted(call: Callable[..., Any], *given: Any) -> Any:
        began = thread_time()
        found = call(*given)
        CountedKernel.spent += thread_time() - began
        return found


class Rivals:
    """A rank. argument: {name: step}."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, steps: dict[str, zbench.StepPlans]) -> None:
        rendezvous.open("cpu")
        keep_freed_memory()
        cpu.FlashCPU = CountedKernel  # type: ignore[misc]  # which the runtime takes
        runtime = zbench.torch.Runtime()
        group, device = dist.new_group(), torch.device("cpu")
        self.ways: dict[tuple[str, str], tuple[int, Callable[..., Tensor]]] = {}
        for name, step in steps.items():
            (batch,), (plan,) = runtime.micro_batches(step), step.plans
            post = Endpoint.on(group, step.cost.cluster.node_of, device)
            engine = Engine(Shape(MODEL, device), CountedKernel(), post, transport_of(group), rendezvous.board)
            self.ways[name, "zbench.torch"] = batch.num_tokens, batch.attention
            self.ways[name, "executor"] = (
                batch.num_tokens,
                _executor(engine, programs_of(engine, plan, rank, step.cost)),
            )
            if num_ranks == 1:
                cuts = FlashCPU().cut(*whole_sequences(plan.lengths, plan.mask))
                self.ways[name, "kernel"] = batch.num_tokens, lambda q, k, v, cuts=cuts: Alone.apply(q, k, v, cuts)

    def run(self, name: str, way: str) -> tuple[float, float, float]:
        """Returns (seconds, seconds of the processor, those of them in the kernel's calls)."""
        tokens, attend = self.ways[name, way]
        torch.manual_seed(0)
        heads = (MODEL.num_heads, MODEL.num_kv_heads, MODEL.num_kv_heads, MODEL.num_heads)
        *inputs, do = (torch.randn(tokens, count, MODEL.head_dim) for count in heads)
        inputs = [x.requires_grad_() for x in inputs]
        dist.barrier()
        began = perf_counter(), process_time(), CountedKernel.spent
        attend(*inputs).backward(do)
        ended = perf_counter(), process_time(), CountedKernel.spent
        seconds, processor, kernel = (b - a for a, b in zip(began, ended, strict=True))
        return seconds, processor, kernel


def _executor(engine: Engine, programs: Any) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        engine.times.clear()
        out: Tensor = Attention.apply(q, k, v, engine, programs, "layer")
        return out

    return attend


def measured(ranks: int, steps: dict[str, zbench.StepPlans], ways: tuple[str, ...], rounds: int) -> None:
    with LocalFleet(ranks, "torch_attention:Rivals", steps, timeout=300) as fleet:
        for name in steps:
            found: dict[str, list[list[tuple[float, float, float]]]] = {way: [] for way in ways}
            for turn in range(rounds + 1):
                first = turn % len(ways)  # nobody always runs first
                for way in ways[first:] + ways[:first]:
                    seen = fleet.call("run", name, way)
                    if turn:
                        found[way].append(seen)
            told(f"{ranks} rank{'s' if ranks > 1 else ''}, {name}", found, ways)


def told(name: str, found: dict[str, list[list[tuple[float, float, float]]]], ways: tuple[str, ...]) -> None:
    """Prints what was found. found: [round][rank] of every way."""
    clock = {way: [max(one[0] for one in seen) for seen in some] for way, some in found.items()}
    processor = {way: [sum(one[1] for one in seen) for seen in some] for way, some in found.items()}
    outside = {way: median(sum(one[1] - one[2] for one in seen) for seen in some) for way, some in found.items()}
    kernel = median(sum(one[2] for one in seen) for some in found.values() for seen in some)
    words = ", ".join(f"{way} {seconds * 1e3:.2f} ms" for way, seconds in outside.items())
    for rival in ways[1:]:
        words += f"; {ways[0]} - {rival} {(outside[ways[0]] - outside[rival]) / kernel:+.2%} of the kernel's"
    print(f"{name}\n    seconds: {compared(clock, ways)}\n    of the processor: {compared(processor, ways)}")
    print(f"    outside the kernel's {kernel * 1e3:.1f} ms: {words}", flush=True)


def compared(seconds: dict[str, list[float]], ways: tuple[str, ...]) -> str:
    words = ", ".join(f"{way} {median(some) * 1e3:.1f} ms" for way, some in seconds.items())
    for rival in ways[1:]:
        ratios = [ours / theirs for ours, theirs in zip(seconds[ways[0]], seconds[rival], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        words += f"; {ways[0]} / {rival} {middle:.3f} ({low:.3f} - {high:.3f})"
    return words


def main() -> None:
    rounds, ranks = int([*sys.argv[1:], "40"][0]), sys.argv[2:] or ["1", "4"]
    if rounds < 2:
        sys.exit(f"rounds is {rounds}; quartiles take at least 2")
    print(f"{os.cpu_count()} cores, {MODEL.num_heads} heads of {MODEL.head_dim}, {MODEL.num_kv_heads} of kv, float32")
    alone = {
        name: zbench.plan(lengths, cluster=cluster(1), model=MODEL, system="ring") for name, lengths in BATCHES.items()
    }
    if "1" in ranks:
        measured(1, alone, ("zbench.torch", "kernel", "executor"), rounds)
    four = {
        f"{name} of {LONG}": zbench.plan(LONG, cluster=cluster(4), model=MODEL, system=name)
        for name in ("ring", "ulysses", "nodewise")
    }
    if "4" in ranks:
        measured(4, four, ("zbench.torch", "executor"), rounds)


if __name__ == "__main__":
    main()
