"""Labels and loss of a packed batch whose tokens lie on many ranks: right across cuts, weighted by tokens.

Shapes: N tokens of the packed batch, its sequences one after another; T tokens of this rank; V vocabulary.
"""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zbench.describe.arrays import Ints
from zbench.describe.checks import check_whole_number
from zbench.describe.units import with_noun

IGNORED = -100  # the label of a token that the loss leaves out, as in torch and Transformers


def next_tokens(tokens: Tensor, lengths: Sequence[int] | Ints) -> Tensor:
    """Returns the label of every token, int64 [N]: the next token of its sequence, IGNORED for a sequence's last one.

    Shifted before tokens are scattered, a label is right wherever its token lies. tokens: [N], or labels that are not
    shifted yet, with IGNORED where a prompt is masked. lengths: tokens of each sequence, [num_sequences].

    Raises:
        ValueError: tokens are no tensor, or not those of so many sequences, or a length is no whole number from 1.
    """
    if not isinstance(tokens, Tensor):
        raise ValueError(f"tokens is of type {type(tokens).__name__}; it takes a tensor [N]")
    if isinstance(lengths, str) or not isinstance(lengths, Sequence | np.ndarray):
        raise ValueError(
            f"lengths is of type {type(lengths).__name__}; it takes the tokens of each sequence, as [5, 3]"
        )
    for at, length in enumerate(lengths.tolist() if isinstance(lengths, np.ndarray) else lengths):
        check_whole_number(f"lengths[{at}]", length, 1)
    ends = np.cumsum(np.asarray(lengths, np.int64))
    total = int(ends[-1]) if len(ends) else 0
    if tokens.dim() != 1 or len(tokens) != total:
        raise ValueError(f"tokens has shape {list(tokens.shape)}; lengths add up to {total}, so it takes [{total}]")
    labels = torch.full_like(tokens, IGNORED, dtype=torch.int64)
    labels[:-1] = tokens[1:]
    labels[torch.from_numpy(ends - 1).to(tokens.device)] = IGNORED
    return labels


def token_loss(logits: Tensor, labels: Tensor, num_labels: int | Tensor) -> Tensor:
    """Returns this rank's share of the mean cross-entropy over all labels of a batch, []: the sum of all ranks' and
    micro-batches' shares is the loss, every label weighs the same.

    What averages gradients over ranks (DDP and FSDP do) has to be given the share times the number of ranks. logits:
    [T, V], also of no token; computed in float32 at least. labels: [T], IGNORED or a token. num_labels: those of the
    whole batch that are not IGNORED, on all ranks and in all micro-batches.

    Raises:
        ValueError: there is no label in the batch, or labels are not one whole number for each row of logits, or not
            one of its columns.
    """
    for name, given in (("logits", logits), ("labels", labels)):
        if not isinstance(given, Tensor):
            raise ValueError(f"{name} is of type {type(given).__name__}; it takes a tensor")
    if logits.dim() != 2:
        raise ValueError(
            f"logits has shape {list(logits.shape)}; it takes [T, V], this rank's tokens and the vocabulary"
        )
    if labels.shape != logits.shape[:1]:
        rows = list(logits.shape[:1])
        raise ValueError(f"labels has shape {list(labels.shape)}; it takes one for each row of logits, {rows}")
    if labels.dtype != torch.int64:
        raise ValueError(f"labels is {labels.dtype}; it takes torch.int64")
    _check_count(num_labels)
    if labels.device.type == "cpu":  # on a GPU it would have to be waited for
        _check_columns(labels, logits.shape[1])
    wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return F.cross_entropy(wide, labels, ignore_index=IGNORED, reduction="sum") / num_labels


def _check_count(num_labels: Any) -> None:
    is_one = num_labels.numel() == 1 if isinstance(num_labels, Tensor) else isinstance(num_labels, Real)
    if not is_one or isinstance(num_labels, bool) or num_labels != num_labels // 1:  # nan is not equal to itself
        raise ValueError(f"num_labels is {num_labels!r:.60}; it takes a whole number: the labels of the whole batch")
    if num_labels < 1:
        raise ValueError(f"num_labels is {int(num_labels)}; it takes the labels of the whole batch, at least 1")


def _check_columns(labels: Tensor, vocabulary: int) -> None:
    wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= vocabulary))]
    if len(wrong):
        raise ValueError(
            f"labels has {int(wrong[0])}; logits have {with_noun(vocabulary, 'column')}, so it takes 0 to "
            f"{vocabulary - 1}, or {IGNORED} where the loss leaves a token out"
        )
