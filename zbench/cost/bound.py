"""The times no plan can beat under the same cost model: the bound, and the ceiling.

The bound is all work, perfectly balanced, nothing ever waiting for a message: linear modules on an even share of
the tokens, attention of whole sequences (cutting one only adds tiles and launches) spread evenly,
the head, and the optimizer. Never less than what cannot be divided: a token is on one rank, or on those of a
pipeline, layer after layer. With stages (zbench.cost.ranks_of_gpus) it is the work of the last one, which has the
head; that it begins late is left out, as a micro-batch may be as small as a token. Nor less than a link to a host has
copies (zbench.cost.least_copies).

The ceiling knows gathers of parameters and reductions of gradients too (zbench.cost.collective), which no plan can do
without: what of them no layer can hide. Attention sends nothing in it. results/docs/ceiling.md has the proof.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.least_copies import least_copy_seconds
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.plans.area import Work
from zbench.plans.plan import Ints


@dataclass(frozen=True, slots=True)
class Least:
    """The seconds that computing a step takes at least. forward: of the forward's layers. backward: of the head, the
    backward's layers and, with recomputation, what runs again of the forward's. both: of all that, never less than
    their sum."""

    forward: float
    backward: float
    both: float

    @staticmethod
    def of(batch: Batch, cost: Cost) -> "Least":
        """Works out the least seconds of a batch from its work, perfectly balanced, and from what one rank cannot
        share."""
        cost = cost.of_stage(-1)
        ranks = cost.cluster.num_ranks
        passes = 3 + cost.model.forwards_again  # forward, twice that backward, all of it again
        even = batch.num_tokens / ranks
        there, back = (float(least_seconds(batch.lengths, cost, way).sum()) for way in (False, True))
        attention = cost.layers * (there + back + cost.model.forwards_again * there) / ranks
        # Fewer tokens than ranks leave some ranks without linear work, and without its kernel starts.
        part = min(even, 1.0)
        shared = _linear_seconds(max(even, 1.0), passes, cost) * part + attention
        ahead = _linear_seconds(max(even, 1.0), 1, cost, head=False) * part + cost.layers * there / ranks
        least = even if cost.pipelines else -(-batch.num_tokens // ranks)  # tokens of the fullest rank; tp divides one
        alone, alone_ahead = _linear_seconds(least, passes, cost), _linear_seconds(least, 1, cost, head=False)
        return Least(max(ahead, alone_ahead), max(shared - ahead, alone - alone_ahead), max(shared, alone))


def bound_seconds(batch: Batch, cost: Cost) -> float:
    """Returns the seconds of a step that no plan of `batch` can beat."""
    return max(Least.of(batch, cost).both, _copying(batch, cost, cost.pipelines)) + cost.optimizer_seconds()


def ceiling_seconds(batch: Batch, cost: Cost, of: Collectives) -> float:
    """Returns the seconds of a step that no plan of `batch` can beat if parameters are gathered, and gradients reduced,
    as `of` has it, without pipelines of its own."""
    least, gather = Least.of(batch, cost), of.gather if of.every_step else 0.0
    last = of.reduce / of.num_layers  # the first layer's gradients, which nothing is left to hide
    ahead = gather + gather / of.num_layers  # before the last layer's forward begins, and that takes so long at least
    ends = [least.both + last, _copying(batch, cost, False)]
    if of.every_micro_batch:  # ranks meet between forward and backward
        whole = of.gather + of.reduce + least.backward / of.num_layers
        ends.append(max(least.forward, ahead) + max(least.backward + last, whole))
    else:
        ends.append(ahead + of.reduce + max(least.both - ahead, 0.0) / of.num_layers)
    return cost.optimizer_seconds() + max(ends)


def _copying(batch: Batch, cost: Cost, pipelines: bool) -> float:
    """Returns the seconds in which a link to a host has a step's copies at least, 0.0 where nobody waits for them."""
    return least_copy_seconds(batch.num_tokens, cost, pipelines, False) if cost.waits_for_hosts else 0.0


def _linear_seconds(tokens: float, passes: float, cost: Cost, head: bool = True) -> float:
    """Returns the seconds of the linear modules of a stage's layers in so many passes and, with `head`, of the head and
    of what selective recomputation runs again, for `tokens` on a rank."""
    count, best = np.array([tokens], np.float64), at_best(cost) if cost.cluster.device.matmul_shapes else cost
    layer = _at_least(cost, passes) if cost.is_by_shape else best
    layers = float(layer.linear_seconds(count)[0]) * cost.layers * passes
    if not head:
        return layers
    return layers + float(best.again_seconds(count)[0]) * cost.layers + float(best.head_seconds(count)[0])


def least_seconds(lengths: Ints, cost: Cost, backward: bool) -> Floats:
    """Returns the seconds of attention over whole sequences, [n], all heads, one layer: no plan spends less on them on
    all ranks together.

    Cutting adds tiles and rows (under a window tiles are as many as the visible pairs fill), and where rates are curves
    no piece is faster than the best of them. Head by head, as with one head a rank, kv is read more often in the
    forward, but the backward has no sums over grouped heads to make.
    """
    heads = np.full(len(lengths), cost.model.num_heads)
    kv_heads = heads if backward else np.full(len(lengths), cost.model.num_kv_heads)
    return at_best(cost).stream_seconds(Work.least(lengths, cost.model.mask), heads, kv_heads, backward)


@lru_cache(maxsize=8)
def at_best(cost: Cost) -> Cost:
    """Returns the cost model in which attention is as fast as it can be of any size, and a matmul of any shape."""
    return replace(cost, cluster=replace(cost.cluster, device=cost.cluster.device.at_best()))


@lru_cache(maxsize=8)
def _at_least(cost: Cost, passes: float) -> Cost:
    """Returns the cost model in which a layer's matmuls, in the mean over so many passes, have the rate that they have
    at most, given `cost`, in which each has that of its shape."""
    device = replace(cost.cluster.device.at_best(), matmul_flops=cost.best_rate(passes))
    return replace(cost, cluster=replace(cost.cluster, device=device))
