"""The time no plan can beat under the same cost model. Pure: no torch.

All work, perfectly balanced, nothing ever waiting for a message: linear modules on an even share of
the tokens, attention of whole sequences (cutting one only adds tiles and launches) spread evenly,
the head, and the optimizer. Never less than what cannot be divided: a token is on one rank.
"""

import numpy as np

from zbench.area import TILE
from zbench.batch import Batch
from zbench.cost import BACKWARD_FLOPS, FORWARD_FLOPS, Cost


def bound_seconds(batch: Batch, cost: Cost) -> float:
    """Seconds of a step that any plan of `batch` needs."""
    model, ranks = cost.model, cost.cluster.num_ranks
    even = batch.num_tokens / ranks
    # An even share may not exist in whole tokens: some rank has at least ceil(tokens / ranks).
    tokens = np.array([max(even, 1.0)])
    passes = 3 + (1 if model.recompute == "full" else 0)
    linear = float(cost.linear_seconds(tokens)[0]) * model.num_layers * passes + float(cost.head_seconds(tokens)[0])
    forward, backward = (float(attention_seconds(batch, cost, back)) for back in (False, True))
    again = forward if model.recompute == "full" else 0.0
    return linear + model.num_layers * (forward + backward + again) / ranks + cost.optimizer_seconds()


def attention_seconds(batch: Batch, cost: Cost, backward: bool) -> float:
    """Seconds of one layer's attention over all sequences on one rank at the kernel's streaming rate."""
    device, model = cost.cluster.device, cost.model
    rows = -(-batch.lengths // TILE)
    tiles = int((rows * (rows + 1) // 2).sum())
    flops = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * model.head_dim * TILE * TILE * tiles * model.num_heads
    return flops / (device.attention_backward_flops if backward else device.attention_forward_flops)
