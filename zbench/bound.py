"""The time no plan can beat under the same cost model. Pure: no torch.

All work, perfectly balanced, nothing ever waiting for a message: linear modules on an even share of
the tokens, attention of whole sequences (cutting one only adds tiles and launches) spread evenly,
the head, and the optimizer. Never less than what cannot be divided: a token is on one rank.
"""

import numpy as np

from zbench.batch import Batch
from zbench.cost import Cost


def bound_seconds(batch: Batch, cost: Cost) -> float:
    """Seconds of a step that any plan of `batch` needs."""
    model, ranks = cost.model, cost.cluster.num_ranks
    even = batch.num_tokens / ranks
    # An even share may not exist in whole tokens: some rank has at least ceil(tokens / ranks).
    tokens = np.array([max(even, 1.0)])
    passes = 3 + (1 if model.recompute == "full" else 0)
    linear = float(cost.linear_seconds(tokens)[0]) * model.num_layers * passes + float(cost.head_seconds(tokens)[0])
    forward, backward = (float(cost.whole_seconds(batch.lengths, back).sum()) for back in (False, True))
    again = forward if model.recompute == "full" else 0.0
    return linear + model.num_layers * (forward + backward + again) / ranks + cost.optimizer_seconds()
