"""Adapters that hand other projects' pieces, unchanged, to the check: two of DeepSpeed's loss, four of PyTorch's own.

Each is what a user of the piece writes by its documentation, and no more. Other packages are imported when called.
"""

import os
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from zbench.console.extras import need

SHARDS = 2


def deepspeed_tiled_mean(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """DeepSpeed's TiledFusedLogitsLoss of 2 shards with output_reduction="mean", as its docstring shows it."""
    return _deepspeed(hidden, weight, labels, ignore_index, "mean")


def deepspeed_tiled_sum(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """DeepSpeed's TiledFusedLogitsLoss of 2 shards with output_reduction="sum", divided by the labels that count, as
    its docstring advises where shards have unequal numbers of them."""
    return _deepspeed(hidden, weight, labels, ignore_index, "sum") / (labels != ignore_index).sum()


def _deepspeed(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int, reduction: str) -> Tensor:
    need("deepspeed", "check loss deepspeed")
    os.environ.setdefault("DS_ACCELERATOR", hidden.device.type)  # else it warns that it found none
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

    def of_shard(head: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(x @ head.T, y, ignore_index=ignore_index, reduction=reduction)

    loss: Any = TiledFusedLogitsLoss.apply(
        of_shard, weight, hidden[None], labels[None], None, SHARDS, [weight], reduction
    )
    assert isinstance(loss, Tensor)
    return loss


def torch_loss(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """PyTorch's cross-entropy of all logits at once."""
    return functional.cross_entropy(hidden @ weight.T, labels, ignore_index=ignore_index)


def torch_linear_loss(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """PyTorch's linear_cross_entropy in chunks of 3 tokens, which computes gradients in the forward, too."""
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        raise NotImplementedError(f"PyTorch {torch.__version__} has no chunked linear_cross_entropy; 2.13 has")
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=3)
    return functional.linear_cross_entropy(hidden, weight, labels, ignore_index=ignore_index, options=options)


def torch_chunked_loss(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Chunks of at most 5 tokens, each computed again in the backward: sums divided once, by all labels that count."""

    def of_chunk(x: Tensor, head: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(x @ head.T, y, ignore_index=ignore_index, reduction="sum")

    chunks = zip(hidden.split(5), labels.split(5), strict=True)
    sums = [checkpoint(of_chunk, x, weight, y, use_reentrant=False) for x, y in chunks]
    total = torch.stack([one for one in sums if isinstance(one, Tensor)]).sum()
    return total / (labels != ignore_index).sum()


def torch_sdpa(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, causal: bool, window: int) -> Tensor:
    """PyTorch's scaled_dot_product_attention, one document after the other."""
    out = []
    for start, stop in pairwise(cu_seqlens.tolist()):
        q_one, k_one, v_one = (x[start:stop].transpose(0, 1)[None] for x in (q, k, v))
        seen = None
        if window:
            place = torch.arange(stop - start, device=q.device)
            before = place[:, None] - place[None, :]
            seen = (before >= 0) & (before < window)
        o = functional.scaled_dot_product_attention(
            q_one, k_one, v_one, attn_mask=seen, is_causal=causal and seen is None, enable_gqa=True
        )
        out.append(o[0].transpose(0, 1))
    return torch.cat(out)
