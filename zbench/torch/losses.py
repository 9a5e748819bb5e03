"""Labels and loss of a packed batch whose tokens lie on many ranks: right across cuts, weighted by tokens.

Shapes: N tokens of the packed batch, its sequences one after another; T tokens of this rank; V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zbench.describe.arrays import Ints
from zbench.describe.checks import check_whole_number

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
        ValueError: there is no label in the batch, or labels are not one for each row of logits.
    """
    if labels.shape != logits.shape[:1]:
        rows = list(logits.shape[:1])
        raise ValueError(f"labels has shape {list(labels.shape)}; it takes one for each row of logits, {rows}")
    if num_labels < 1:
        raise ValueError(f"num_labels is {int(num_labels)}; it takes the labels of the whole batch, at least 1")
    wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return F.cross_entropy(wide, labels, ignore_index=IGNORED, reduction="sum") / num_labels
