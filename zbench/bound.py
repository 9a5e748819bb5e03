"""The time no plan can beat under the same cost model. Pure: no torch.

All work, perfectly balanced, nothing ever waiting for a message: linear modules on an even share of
the tokens, attention of whole sequences (cutting one only adds tiles and launches) spread evenly,
the head, and the optimizer. Never less than what cannot be divided: a token is on one rank, or on those of a
pipeline, layer after layer. With stages (zbench.stacks) it is the work of the last one, which has the head; that it
begins late is left out, as a micro-batch may be as small as a token.
"""

from dataclasses import replace

import numpy as np

from zbench.area import Work
from zbench.batch import Batch
from zbench.cost import Cost, Floats
from zbench.plan import Ints


def bound_seconds(batch: Batch, cost: Cost) -> float:
    """Seconds of a step that any plan of `batch` needs."""
    model, ranks = cost.model, cost.cluster.num_ranks
    passes = 3 + (1 if model.recompute == "full" else 0)  # forward, twice that backward, recomputation
    even = batch.num_tokens / ranks
    forward, backward = (float(least_seconds(batch.lengths, cost, back).sum()) for back in (False, True))
    again = forward if model.recompute == "full" else 0.0
    attention = cost.layers * (forward + backward + again) / ranks
    # Fewer tokens than ranks leave some ranks without linear work, and without its kernel starts.
    shared = _linear_seconds(max(even, 1.0), passes, cost) * min(even, 1.0) + attention
    least = even if cost.pipelines else -(-batch.num_tokens // ranks)  # tokens of the fullest rank; tp divides one
    alone = _linear_seconds(least, passes, cost)
    return max(shared, alone) + cost.optimizer_seconds()


def _linear_seconds(tokens: float, passes: int, cost: Cost) -> float:
    """The linear modules of a stage's layers and the head for `tokens` on a rank."""
    count = np.array([tokens], np.float64)
    return float(cost.linear_seconds(count)[0]) * cost.layers * passes + float(cost.head_seconds(count)[0])


def least_seconds(lengths: Ints, cost: Cost, backward: bool) -> Floats:
    """Attention of whole sequences, [n], all heads, one layer: no plan spends less on them on all ranks together.

    Cutting adds tiles and rows (under a window tiles are as many as the visible pairs fill), and where rates are curves
    no piece is faster than the best of them. Head by head, as with one head a rank, kv is read more often in the
    forward, but the backward has no sums over grouped heads to make.
    """
    heads = np.full(len(lengths), cost.model.num_heads)
    kv_heads = heads if backward else np.full(len(lengths), cost.model.num_kv_heads)
    best = replace(cost, cluster=replace(cost.cluster, device=cost.cluster.device.at_best()))
    return best.stream_seconds(Work.least(lengths, cost.model.mask), heads, kv_heads, backward)
