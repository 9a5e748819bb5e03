"""Seconds that samples take in rings of every size, as the search for rounds adds them up: an estimate, not the clock.

A ring of G ranks runs its pack in G hops, each as long as the attention of a hop or the transfer beside it, whichever
is longer; both, and the linear modules before them, are sums over the pack's samples.
"""

from typing import NamedTuple

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.describe.arrays import Floats
from zbench.describe.links import NIC, NVLINK
from zbench.describe.model import KV
from zbench.passes.reverse import Mode
from zbench.plans.area import Work
from zbench.plans.plan import Ints

LINEAR_PASSES = 3  # a layer's linear modules forward, and twice that backward


class RingRates(NamedTuple):
    """Seconds of a layer, forward and backward, of samples in rings (S samples, K sizes).

    length: int64 [S]. sizes: int64 [K], ranks of a ring, ascending. ahead, back: float64 [S, K], attention of a hop of
    the forward and of the backward. token: of linear modules and the head, for a token of a rank; fixed: of a layer
    whatever its tokens. start: float64 [K, 2], of the calls of a hop. hop: float64 [K], of sending a token's kv on;
    latency: float64 [K]. across: int64 [K], channels of the NICs that a ring of that size crosses, 0 inside a node.
    again: how often kv or its gradient goes round in the backward. collective: a round's gathers and reductions.
    """

    length: Ints
    sizes: Ints
    ahead: Floats
    back: Floats
    token: float
    fixed: float
    start: Floats
    hop: Floats
    latency: Floats
    across: Ints
    again: float
    collective: float


def ring_rates(lengths: Ints, sizes: Ints, aligned: bool, cost: Cost, backward: Mode) -> RingRates:
    """Works out the seconds of samples in rings of each of the sizes. lengths: int64 [S]. aligned: rings begin at
    multiples of their size, and so cross nodes that are no multiple of it."""
    model, cluster = cost.model, cost.cluster
    again = 1 + model.forwards_again  # forwards of a step
    even = np.array([max(1.0, lengths.sum() / cluster.num_ranks)])
    one = np.ones(1)
    part = of_parts(cost)
    linear, selective = (  # seconds of each further token
        float(of(even)[0] - of(one)[0]) / max(float(even[0]) - 1, 1.0)
        for of in (part.linear_seconds, part.again_seconds)
    )
    head = float(cost.head_seconds(even)[0]) / float(even[0]) / cost.layers
    ahead, back = (hop_attention(lengths, sizes, cost, way) for way in (False, True))
    starts = np.array([cost.cluster.device.kernel_seconds * np.array([1, 8])] * len(sizes))
    starts[sizes > 1] += 3 * cluster.device.kernel_seconds  # a hop's result is joined to the earlier ones
    per_node = cluster.gpus_per_node
    inside = (sizes <= per_node) & ((per_node % sizes == 0) | (not aligned))
    link = np.where(inside, NVLINK, NIC)
    size = np.full(len(sizes), float(model.message_bytes_per_token(KV, 0, model.num_heads)))
    of = Collectives.of(cost)
    gather = (2 * of.gather if of.every_micro_batch else 0.0) + (of.reduce if of.reduced else 0.0)
    return RingRates(
        np.ascontiguousarray(lengths, np.int64),
        np.ascontiguousarray(sizes, np.int64),
        again * ahead,
        back,
        (LINEAR_PASSES + again - 1) * linear + selective + head,
        (LINEAR_PASSES + again - 1) * float(part.linear_seconds(one)[0]) + float(part.again_seconds(one)[0]),
        starts * np.array([again, 1]),
        np.asarray(cost.message_seconds(size, link)),
        np.asarray(cost.latency_seconds(link)),
        np.where(inside, 0, cluster.links[NIC].channels).astype(np.int64),
        1.0 if backward == "keep" else 2.0,
        gather / cost.layers,
    )


def hop_attention(lengths: Ints, sizes: Ints, cost: Cost, backward: bool) -> Floats:
    """Returns float64 [S, K]: the seconds of attention of a hop on a rank, and of joining it to the hops before."""
    out = np.empty((len(lengths), len(sizes)))
    model = cost.model
    one = np.ones(len(lengths), np.int64)
    heads, kv_heads = model.num_heads * one, model.num_kv_heads * one
    row = model.head_dim * model.element_bytes
    copies = 3 + (6 if backward else 0)  # of o or dq; of dk and dv
    for k, size in enumerate(sizes.tolist()):
        if size == 1:
            out[:, k] = cost.whole_seconds(lengths, backward)
            continue
        hops, work = Work.ring(lengths, np.full(len(lengths), size), model.mask)
        attend = cost.stream_seconds(work, heads, kv_heads, backward) * hops / size
        joined = copies * (lengths / size) * model.num_heads * row / cost.cluster.device.copy_bandwidth
        out[:, k] = attend + joined
    return out
