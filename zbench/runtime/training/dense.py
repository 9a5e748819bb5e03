"""The dense reference of check=exact: the same network in one process, whole sequences, plain attention under its mask.

Sequences of one length run together, each in a row of its own: one after another, hundreds of short ones would take
longer than all the rest of a step and its check.

It knows neither plans nor ranks and shares no code with attention.py; of the training side it uses the network
(transformer.py) alone, whose own reference is in the tests.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zbench.describe.arrays import Flags
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import Model
from zbench.runtime.training.transformer import Transformer

MATH_TOKENS = 2048  # longer sequences' scores, heads x tokens x tokens, are not worth their memory


def dense_loss(
    model: Model,
    weights: Mapping[str, Tensor],
    sequences: Sequence[NDArray[np.integer]],
    tell: Callable[[str], None] = lambda place: None,
    counts: Sequence[Flags] | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """Returns the loss of a batch and its gradient by parameter name, on the CPU, in the dtype of the parameters.

    weights: every whole parameter by name. sequences: the token ids of each. The loss is the mean over
    all labels that count of the next-token cross-entropy; the target of a sequence's last token is token 0.
    tell: is told of every length, as often as sequences of it run. counts: of every sequence, which labels of its
    tokens count, bool [t], at least one in all; None: all do.
    Raises RuntimeError (torch's, naming them) where weights miss a parameter or have one too many.
    """
    network = Transformer(model.keeping_all, seed=0, device="meta")
    dtypes = {name: p.dtype for name, p in network.named_parameters()}
    given = {name: value.detach().to("cpu", dtypes.get(name)) for name, value in weights.items()}
    network.load_state_dict(given, assign=True)  # they are the parameters, which a loss and its gradients leave alone
    num_labels = sum(map(len, sequences)) if counts is None else sum(int(one.sum()) for one in counts)
    loss = 0.0
    for numbers in _alike(sequences):
        rows = np.array([sequences[number] for number in numbers], np.int64)
        counted = None
        if counts is not None:
            flags = np.concatenate([counts[number] for number in numbers])
            counted = torch.as_tensor(np.flatnonzero(flags))
        count, length = rows.shape
        tell(f"dense sequences of {length} tokens, {count} at once")
        tokens = torch.as_tensor(rows)
        targets = torch.cat([tokens[:, 1:], tokens.new_zeros(count, 1)], 1)
        positions = torch.arange(length).repeat(count)
        attend = partial(attention, count=count, mask=model.mask)
        part = network(tokens.flatten(), positions, targets.flatten(), attend, num_labels, counted)
        part.backward()
        loss += part.item()
    return loss, {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def _alike(sequences: Sequence[NDArray[np.integer]]) -> Iterator[list[int]]:
    """Yields the numbers of sequences of one length, of up to MATH_TOKENS tokens where there is more than one."""

    def length_of(number: int) -> int:
        return len(sequences[number])

    for length, group in groupby(sorted(range(len(sequences)), key=length_of), key=length_of):
        numbers, most = [*group], max(1, MATH_TOKENS // max(1, length))
        yield from (numbers[at : at + most] for at in range(0, len(numbers), most))


def attention(layer: int, q: Tensor, k: Tensor, v: Tensor, count: int = 1, mask: Mask = CAUSAL) -> Tensor:
    """Returns the attention of `count` sequences of one length, one after another: q [T, H, D], k, v [T, Hkv, D] -> [T,
    H, D].

    Of up to MATH_TOKENS tokens by its definition.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q, k, v))  # [count, H, length, D]
    with sdpa_kernel(SDPBackend.MATH) if q.shape[2] <= MATH_TOKENS else nullcontext():
        if not mask.window:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=mask.causal)
        else:
            place = torch.arange(q.shape[2], device=q.device)
            back = place[:, None] - place
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < mask.window))
    return o.transpose(1, 2).flatten(0, 1)
