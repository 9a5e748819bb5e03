"""The loss, forward and backward, in chunks (zbench.runtime.training.blocks) and with whole logits: seconds and memory.

    python tests/bench/loss.py [tokens] [hidden] [vocab] [rounds]

Interleaved, median over rounds, on as many threads as torch takes. Memory is what a process of its own needs at most
beyond what it needs before (its resident set).
"""

import os
import resource
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from zbench.runtime.kernels.elementwise import Elementwise
from zbench.runtime.training.blocks import CrossEntropy

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def chunked(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return CrossEntropy.apply(x, weight, targets, Elementwise())


def whole(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight.to(x.dtype)).float(), targets, reduction="sum")


def seconds(loss: Loss, tensors: tuple[Tensor, Tensor, Tensor]) -> float:
    began = perf_counter()
    loss(*tensors).backward()
    taken = perf_counter() - began
    for x in tensors[:2]:
        x.grad = None
    return taken


def peak(loss: Loss, tensors: tuple[Tensor, Tensor, Tensor]) -> int:
    """In a forked process, which shares the tensors."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        torch.set_num_threads(1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        loss(*tensors).backward()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.write(writer, str((after - before) * 1024).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found = int(pipe.read())
    os.wait()
    return found


def main() -> None:
    given = [int(argument) for argument in sys.argv[1:]]
    tokens, hidden, vocab, rounds = given + [2048, 256, 16384, 5][len(given) :]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, hidden, generator=generator).requires_grad_()
    weight = (torch.randn(vocab, hidden, generator=generator) * 0.02).requires_grad_()
    tensors = (x, weight, torch.randint(vocab, (tokens,), generator=generator))
    ways = {"chunked": chunked, "whole logits": whole}
    memory = {name: peak(loss, tensors) for name, loss in ways.items()}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, loss in ways.items():
            spent[name].append(seconds(loss, tensors))
    ratios = [a / b for a, b in zip(spent["chunked"][1:], spent["whole logits"][1:], strict=True)]
    for name in ways:
        print(f"{name:12} {median(spent[name][1:]):.3f} s, {memory[name] / 2**20:.0f} MiB")
    print(f"chunked / whole: {median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f}) of the time")


if __name__ == "__main__":
    main()
