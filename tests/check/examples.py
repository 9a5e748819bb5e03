"""Functions that the check is tried on: right ones, and ones wrong in a known way."""

from time import sleep
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional

from zbench.check import peers


def mean_of_means(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Each half's mean weighs as much as the other's, whatever labels count in it."""
    halves = zip(hidden.chunk(2), labels.chunk(2), strict=True)
    means = [functional.cross_entropy(x @ weight.T, y, ignore_index=ignore_index) for x, y in halves]
    return torch.stack(means).mean()


def in_float32(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    return functional.cross_entropy((hidden @ weight.T).float(), labels, ignore_index=ignore_index)


def without_grad(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    return functional.cross_entropy(hidden @ weight.T, labels).detach()


def a_number(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> float:
    return 1.0


def frozen_head(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    return functional.cross_entropy(hidden @ weight.detach().T, labels, ignore_index=ignore_index)


def refuses_odd(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    if len(hidden) % 2:
        raise NotImplementedError("an even number of tokens only")
    return peers.torch_loss(hidden, weight, labels, ignore_index)


def other_arguments(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels)


def raises(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    raise RuntimeError("no kernel for\nsuch a thing")


def leaves(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    raise SystemExit(0)


def local_sums(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int, group: Any) -> Tensor:
    """Own labels' sum over everybody's number of labels, times the processes: right under a mean over them."""
    total = functional.cross_entropy(hidden @ weight.T, labels, ignore_index=ignore_index, reduction="sum")
    count = (labels != ignore_index).sum()
    distributed.all_reduce(count, group=group)
    return total / count * distributed.get_world_size(group)


def by_case(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int, group: Any) -> Tensor:
    """Process 1 raises where the others wait for it, except where no label is ignored."""
    ignored = (labels == ignore_index).sum()
    distributed.all_reduce(ignored, group=group)
    if ignored and distributed.get_rank(group) == 1:
        raise RuntimeError("labels ignored")
    distributed.barrier(group)
    return local_sums(hidden, weight, labels, ignore_index, group)


def stays(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int, group: Any) -> Tensor:
    """Process 1 stays where labels are ignored."""
    ignored = (labels == ignore_index).sum()
    distributed.all_reduce(ignored, group=group)
    if ignored and distributed.get_rank(group) == 1:
        sleep(600)
    return local_sums(hidden, weight, labels, ignore_index, group)


def own_rows_only(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, causal: bool, window: int, group: Any
) -> Tensor:
    """Attends to its own keys only."""
    return peers.torch_sdpa(q, k, v, torch.tensor([0, len(q)]), causal, window)


def across_documents(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, causal: bool, window: int) -> Tensor:
    """One document of all: right where there is but one."""
    return peers.torch_sdpa(q, k, v, torch.tensor([0, len(q)]), causal, window)


def not_a_number(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, causal: bool, window: int) -> Tensor:
    return (q + k + v) * torch.nan
