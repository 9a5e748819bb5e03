"""Losses over tokens, chunked or distributed, against the dense cross-entropy in float64: value and gradients.

The function under check is called as

    loss = function(hidden, weight, labels, ignore_index)          # ranks=1
    loss = function(hidden, weight, labels, ignore_index, group)   # ranks=N, in each of N processes

hidden [tokens, width] and weight [vocab, width] want gradients; labels int64 [tokens], those equal to ignore_index do
not count. What it returns is a scalar with a gradient: the mean of the cross-entropy of softmax(hidden @ weight.T)
over the labels that count. Several processes have a share of the tokens each, in a row, and the whole weight; the mean
over the processes (over=mean, as DDP and FSDP average gradients) or the sum over them (over=sum) of what they return
has to be that mean over all labels, and so with the weight's gradients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbench.check.share import Share
from zbench.check.verdict import Tensors, WrongAnswer

IGNORE_INDEX = -100  # that of torch.nn.functional.cross_entropy
WIDTH, VOCAB = 16, 11
ARGUMENTS: tuple[str, ...] = ("hidden", "weight", "labels", "ignore_index")


@dataclass(frozen=True, slots=True)
class LossCase:
    """A case: micro-batches of tokens, some of whose labels are ignored. tokens: of each micro-batch, per process.
    more: tokens of each besides, so that shares are unequal. ignored: positions of ignored labels, of each. factor:
    what the loss is multiplied by ahead of the backward. least_ranks: processes it takes at least."""

    about: str
    tokens: tuple[int, ...]
    ignored: tuple[tuple[int, ...], ...] = ((), ())
    factor: float = 1.0
    more: int = 0
    least_ranks: int = 1


CASES: dict[str, LossCase] = {
    "even": LossCase("8 tokens, all labels count", (8,)),
    "masked": LossCase("8 tokens, the labels of the first 3 ignored", (8,), ((0, 1, 2),)),
    "scattered": LossCase("12 tokens, 5 labels ignored here and there", (12,), ((1, 2, 5, 9, 11),)),
    "masked_chunk": LossCase("8 tokens, the labels of the first half ignored", (8,), ((0, 1, 2, 3),)),
    "odd": LossCase("7 tokens", (7,)),
    "prime": LossCase("13 tokens, the labels of the last 2 ignored", (13,), ((11, 12),)),
    "one": LossCase("1 token", (1,)),
    "scaled": LossCase("8 tokens, the loss divided by 4 ahead of its backward", (8,), factor=0.25),
    "micro_batches": LossCase(
        "micro-batches of 8 and 5 tokens, 3 labels of the first ignored, each weighted by its labels",
        (8, 5),
        ((0, 1, 2), ()),
    ),
    "uneven_shares": LossCase("a token more in some processes than in others", (8,), more=1, least_ranks=2),
    "empty_share": LossCase("a process whose labels are all ignored", (8,), (tuple(range(8)),), least_ranks=2),
}


@dataclass(frozen=True, slots=True)
class LossKind:
    """Losses as a kind of functions that can be checked. over: "mean" or "sum", how answers of processes are joined."""

    over: str = "mean"

    def cases(self, ranks: int) -> dict[str, str]:
        """Returns the cases that so many processes can have, in words, by name."""
        return {name: case.about for name, case in CASES.items() if case.least_ranks <= ranks}

    def arguments(self, ranks: int) -> tuple[int, tuple[str, ...]]:
        """Returns how many arguments the function gets by place, and the names of those by name."""
        return len(ARGUMENTS) + (ranks > 1), ()

    def ask(self, function: Callable[..., Any], name: str, share: Share) -> Tensors:
        """Has the function compute its loss and backward for a process's share; returns loss and gradients.

        Raises:
            WrongAnswer: it returned no scalar, or left no gradient.
        """
        case = CASES[name]
        batches = draw_batches(case, share.ranks)
        weight = _leaf(batches[0][1], share)
        total, hiddens = torch.zeros((), dtype=torch.float64), []
        counts = [_counting(labels) for _, _, labels in batches]
        for (hidden, _, labels), count in zip(batches, counts, strict=True):
            mine = share.rows(len(hidden))
            hiddens.append(_leaf(hidden[mine], share))
            group = () if share.group is None else (share.group,)
            loss = function(hiddens[-1], weight, labels[mine].to(share.device), IGNORE_INDEX, *group)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise WrongAnswer(f"it returned {_kind(loss)}; a tensor with one number, the loss, would be right")
            if not loss.requires_grad:
                raise WrongAnswer("the loss that it returned has no gradient (requires_grad is False)")
            scaled = loss.reshape(()) * (case.factor * count / sum(counts))
            scaled.backward()
            total += scaled.detach().cpu().double()
        grads = [one.grad for one in hiddens]
        if weight.grad is None or any(grad is None for grad in grads):
            raise WrongAnswer(f"backward left no gradient for {'weight' if weight.grad is None else 'hidden'}")
        return {
            "loss": total,
            "d hidden": torch.cat([grad for grad in grads if grad is not None]),
            "d weight": weight.grad,
        }

    def joined(self, answers: Sequence[Tensors], name: str) -> Tensors:
        """Joins what the processes answered; hidden's gradients lie in their order, micro-batch by micro-batch."""
        ranks = len(answers)
        share = 1.0 / ranks if self.over == "mean" else 1.0
        sizes = [case_tokens(CASES[name], number, ranks) for number in range(len(CASES[name].tokens))]
        hidden = []
        places = [0] * ranks
        for tokens in sizes:
            for rank, answer in enumerate(answers):
                own = Share.rows_of(tokens, rank, ranks)
                size = own.stop - own.start
                hidden.append(answer["d hidden"][places[rank] : places[rank] + size])
                places[rank] += size
        return {
            "loss": share * sum((one["loss"].double() for one in answers), torch.zeros((), dtype=torch.float64)),
            "d hidden": share * torch.cat(hidden).double(),
            "d weight": share * torch.stack([one["d weight"].double() for one in answers]).sum(0),
        }

    def reference(self, name: str, ranks: int, dtype: torch.dtype) -> Tensors:
        """Returns the dense loss and its gradients in float64, of the data as `dtype` has it."""
        case = CASES[name]
        batches = [
            (hidden.to(dtype).double().requires_grad_(), weight.to(dtype).double(), labels)
            for hidden, weight, labels in draw_batches(case, ranks)
        ]
        weight = batches[0][1].requires_grad_()
        losses = []
        for hidden, _, labels in batches:
            logits = hidden @ weight.T
            picked = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
            losses.append(((logits.logsumexp(1) - picked) * (labels != IGNORE_INDEX)).sum())
        total = case.factor * torch.stack(losses).sum() / sum(_counting(labels) for _, _, labels in batches)
        total.backward()
        hidden_grads = [hidden.grad for hidden, _, _ in batches if hidden.grad is not None]
        assert weight.grad is not None
        return {"loss": total.detach(), "d hidden": torch.cat(hidden_grads), "d weight": weight.grad}


def case_tokens(case: LossCase, number: int, ranks: int) -> int:
    """Returns the tokens of a case's micro-batch in all processes together."""
    return case.tokens[number] * ranks + case.more


def draw_batches(case: LossCase, ranks: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Returns (hidden, weight, labels) of every micro-batch, of all processes, in float64; always the same numbers."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64)
    out = []
    for number, ignored in zip(range(len(case.tokens)), case.ignored, strict=False):
        tokens = case_tokens(case, number, ranks)
        hidden = torch.randn(tokens, WIDTH, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, VOCAB, (tokens,), generator=generator)
        labels[list(ignored)] = IGNORE_INDEX
        out.append((hidden, weight, labels))
    return out


def _leaf(values: Tensor, share: Share) -> Tensor:
    return values.to(share.device, share.dtype).detach().clone().requires_grad_()


def _counting(labels: Tensor) -> int:
    return int((labels != IGNORE_INDEX).sum())


def _kind(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
