"""Attention over packed documents, in one process or several, against dense attention in float64, with gradients.

The function under check is called as

    o = function(q, k, v, cu_seqlens, causal=..., window=...)               # ranks=1
    o = function(q, k, v, cu_seqlens, causal=..., window=..., group=...)    # ranks=N, in each of N processes

q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim], where heads is a multiple of kv_heads, and every
kv head serves as many neighbouring heads; cu_seqlens int32 [documents + 1]: document i is tokens cu_seqlens[i] up to
cu_seqlens[i + 1]. A query sees keys of its own document only: all, or with `causal` those up to itself, or with
window = N > 0 (causal then) those of the N tokens up to itself. Scores are scaled by 1 / sqrt(head_dim). o is as q.
Several processes have an equal share of the tokens each, in a row; cu_seqlens is that of the whole pack.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from zbench.check.share import Share
from zbench.check.verdict import Tensors, WrongAnswer
from zbench.describe.mask import CAUSAL, FULL, Mask

HEAD_DIM = 8
ARGUMENTS = ("q", "k", "v", "cu_seqlens")


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A case: the lengths of the documents of a pack, their mask, and how many query and kv heads there are."""

    about: str
    lengths: tuple[int, ...]
    mask: Mask = CAUSAL
    heads: tuple[int, int] = (2, 2)


CASES: dict[str, AttentionCase] = {
    "one": AttentionCase("one document of 64 tokens", (64,)),
    "odd": AttentionCase("one document of 37 tokens", (37,)),
    "documents": AttentionCase("documents of 16, 32 and 16 tokens", (16, 32, 16)),
    "odd_documents": AttentionCase("documents of 1, 63, 17, 2 and 45 tokens", (1, 63, 17, 2, 45)),
    "single_tokens": AttentionCase("eight documents of one token", (1,) * 8),
    "grouped_heads": AttentionCase(
        "documents of 5, 31 and 28 tokens, 4 heads on 2 kv heads", (5, 31, 28), CAUSAL, (4, 2)
    ),
    "one_kv_head": AttentionCase("documents of 5, 31 and 28 tokens, 4 heads on 1 kv head", (5, 31, 28), CAUSAL, (4, 1)),
    "full": AttentionCase("documents of 5, 31 and 28 tokens, all keys of a document seen", (5, 31, 28), FULL),
    "window": AttentionCase("documents of 5, 31 and 28 tokens, a window of 8", (5, 31, 28), Mask(window=8)),
    "window_of_one": AttentionCase("documents of 5, 31 and 28 tokens, a window of 1", (5, 31, 28), Mask(window=1)),
    "wide_window": AttentionCase("documents of 5 and 27 tokens, a window of 100", (5, 27), Mask(window=100)),
}


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Attention as a kind of functions that can be checked."""

    def cases(self, ranks: int) -> dict[str, str]:
        """Returns the cases in words, by name."""
        return {name: case.about for name, case in CASES.items()}

    def arguments(self, ranks: int) -> tuple[int, tuple[str, ...]]:
        """Returns how many arguments the function gets by place, and the names of those by name."""
        return len(ARGUMENTS), ("causal", "window", "group")[: 2 + (ranks > 1)]

    def ask(self, function: Callable[..., Any], name: str, share: Share) -> Tensors:
        """Has the function attend to a process's share, and its backward run; returns o and the gradients.

        Raises:
            WrongAnswer: it returned no tensor of q's shape, or left no gradient.
        """
        case = CASES[name]
        lengths = lengths_for(case, share.ranks)
        rows = share.rows(sum(lengths))
        q, k, v, do = (one[rows].to(share.device, share.dtype).detach().clone() for one in draw_pack(case, lengths))
        inputs = {"q": q.requires_grad_(), "k": k.requires_grad_(), "v": v.requires_grad_()}
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=share.device)
        group = {} if share.group is None else {"group": share.group}
        o = function(q, k, v, ends, causal=case.mask.causal, window=case.mask.window, **group)
        if not isinstance(o, Tensor) or o.shape != q.shape:
            found = f"a tensor of shape {tuple(o.shape)}" if isinstance(o, Tensor) else f"a {type(o).__name__}"
            raise WrongAnswer(f"it returned {found}; a tensor of q's shape {tuple(q.shape)} would be right")
        if not o.requires_grad:
            raise WrongAnswer("what it returned has no gradient (requires_grad is False)")
        (o * do.to(o.dtype)).sum().backward()
        grads = {f"d {name}": one.grad for name, one in inputs.items()}
        if missing := [name for name, grad in grads.items() if grad is None]:
            raise WrongAnswer(f"backward left no gradient for {missing[0].removeprefix('d ')}")
        return {"o": o, **{name: grad for name, grad in grads.items() if grad is not None}}

    def joined(self, answers: Sequence[Tensors], name: str) -> Tensors:
        """Puts the processes' rows behind one another."""
        return {key: torch.cat([one[key] for one in answers]) for key in answers[0]}

    def reference(self, name: str, ranks: int, dtype: torch.dtype) -> Tensors:
        """Returns dense attention and its gradients in float64, of the data as `dtype` has it."""
        case = CASES[name]
        lengths = lengths_for(case, ranks)
        q, k, v, do = (one.to(dtype).double().detach() for one in draw_pack(case, lengths))
        inputs = [one.requires_grad_() for one in (q, k, v)]
        each = case.heads[0] // case.heads[1]
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(each, dim=1)) / HEAD_DIM**0.5
        scores = scores.masked_fill(~visible(lengths, case.mask), -torch.inf)
        o = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(each, dim=1))
        grads = torch.autograd.grad((o * do).sum(), inputs)
        return {"o": o.detach(), **dict(zip(("d q", "d k", "d v"), grads, strict=True))}


def lengths_for(case: AttentionCase, ranks: int) -> tuple[int, ...]:
    """Returns the case's lengths, the last one longer where the tokens would not be a multiple of twice the ranks."""
    more = -sum(case.lengths) % (2 * ranks) if ranks > 1 else 0
    return (*case.lengths[:-1], case.lengths[-1] + more)


def visible(lengths: Sequence[int], mask: Mask) -> Tensor:
    """Returns bool [tokens, tokens]: whether a query (row) sees a key (column)."""
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(len(document))
    before = place[:, None] - place[None, :]
    out = document[:, None] == document[None, :]
    if mask.causal:
        out &= before >= 0
    if mask.window:
        out &= before < mask.window
    return out


def draw_pack(case: AttentionCase, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    """Returns q, k, v and the gradient of o of the whole pack, in float64; always the same numbers."""
    generator = torch.Generator().manual_seed(0)
    heads, kv_heads = case.heads
    return tuple(
        torch.randn(sum(lengths), count, HEAD_DIM, generator=generator, dtype=torch.float64)
        for count in (heads, kv_heads, kv_heads, heads)
    )
