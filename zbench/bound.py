"""The time no plan can beat under the same cost model. Pure: no torch.

All work, perfectly balanced, nothing ever waiting for a message: linear modules on an even share of
the tokens, attention of whole sequences (cutting one only adds tiles and launches) spread evenly,
the head, and the optimizer. Never less than what cannot be divided: a token is on one rank.
"""

import numpy as np

from zbench.area import Work
from zbench.batch import Batch
from zbench.cost import Cost, Floats
from zbench.plan import Ints


def bound_seconds(batch: Batch, cost: Cost) -> float:
    """Seconds of a step that any plan of `batch` needs."""
    model, ranks = cost.model, cost.cluster.num_ranks
    even = batch.num_tokens / ranks
    # An even share may not exist in whole tokens: some rank has at least ceil(tokens / ranks).
    tokens = np.array([max(even, 1.0)])
    passes = 3 + (1 if model.recompute == "full" else 0)
    linear = float(cost.linear_seconds(tokens)[0]) * model.num_layers * passes + float(cost.head_seconds(tokens)[0])
    forward, backward = (float(least_seconds(batch.lengths, cost, back).sum()) for back in (False, True))
    again = forward if model.recompute == "full" else 0.0
    return linear + model.num_layers * (forward + backward + again) / ranks + cost.optimizer_seconds()


def least_seconds(lengths: Ints, cost: Cost, backward: bool) -> Floats:
    """Attention of whole sequences, [n], all heads, one layer: no plan spends less on them on all ranks together.

    Cutting adds tiles and rows. Head by head, as with one head a rank, kv is read more often in the forward,
    but the backward has no sums over grouped heads to make.
    """
    heads = np.full(len(lengths), cost.model.num_heads)
    kv_heads = heads if backward else np.full(len(lengths), cost.model.num_kv_heads)
    return cost.stream_seconds(Work.whole(lengths), heads, kv_heads, backward)
