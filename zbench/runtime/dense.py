"""The reference of check=exact: the same network in one process, one whole sequence after another, plain attention.

It knows neither plans nor ranks and shares no code with attention.py; of the training side it uses the network
(transformer.py) alone, whose own reference is in the tests.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zbench.model import Model
from zbench.runtime.transformer import Transformer

MATH_TOKENS = 2048  # longer sequences' scores, heads x tokens x tokens, are not worth their memory


def dense(
    model: Model,
    weights: Mapping[str, Tensor],
    sequences: Sequence[NDArray[np.integer]],
    device: torch.device | str = "cpu",
    tell: Callable[[str], None] = lambda place: None,
) -> tuple[float, dict[str, Tensor]]:
    """Loss of a batch and its gradient by parameter name, on the CPU, in the dtype of the parameters.

    weights: every whole parameter by name. sequences: the token ids of each. The loss is the mean over
    all tokens of the next-token cross-entropy; the target of a sequence's last token is token 0.
    tell: is told of every sequence.
    Raises RuntimeError (torch's, naming them) where weights miss a parameter or have one too many.
    """
    network = Transformer(replace(model, recompute="none"), seed=0, device="meta").to_empty(device=device)
    network.load_state_dict(weights)
    num_tokens = sum(len(sequence) for sequence in sequences)
    loss = 0.0
    for number, sequence in enumerate(sequences):
        tell(f"dense sequence {number} of {len(sequences)}, {len(sequence)} tokens")
        tokens = torch.as_tensor(np.asarray(sequence, np.int64), device=device)
        targets = torch.cat([tokens[1:], tokens.new_zeros(1)])
        part = network(tokens, torch.arange(len(tokens), device=device), targets, causal, num_tokens)
        part.backward()
        loss += part.item()
    return loss, {name: p.grad.cpu() for name, p in network.named_parameters() if p.grad is not None}


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one sequence: q [T, H, D], k, v [T, Hkv, D] -> [T, H, D]; up to MATH_TOKENS by its definition."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # [1, H, T, D]
    with sdpa_kernel(SDPBackend.MATH) if q.shape[2] <= MATH_TOKENS else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)
