"""Seconds of a layer as the planner sees them, from the cost model."""

from dataclasses import dataclass

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.expert_gathers import expert_collectives
from zbench.cost.job import of_parts
from zbench.describe.arrays import Floats
from zbench.describe.links import NIC, NVLINK
from zbench.describe.model import KV, O, Q
from zbench.plans.area import TILE
from zbench.plans.plan import Ints
from zbench.simulator.estimate.beside import projected
from zbench.systems.nodewise.records import Nodes, Pace, PassSeconds, TokenSeconds


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds that work and messages take on a cluster.

    token: what tokens take. across: seconds in which the kv of a token gets through all NICs of a node, once. one_peer:
    how many times as long it takes to one other node, as every GPU sends to the one in its place there, and what GPUs
    have of a NIC is one channel each. forward: the share of the forward in attention. pace: what else a layer waits
    for. taken: float64 [2], seconds for which gathers and reductions take the NICs, in the forward and the backward.
    """

    token: TokenSeconds
    across: float
    one_peer: float
    forward: float
    pace: Pace
    taken: Floats

    @staticmethod
    def of(cost: Cost, experts_apart: bool = False) -> "Rates":
        """Asks the cost model, for attention with two lengths: it is a square and a linear part.

        experts_apart: experts' parameters go among the GPUs that have them, and not among all
        (zbench.cost.expert_gathers).
        """
        collectives = expert_collectives(cost) if experts_apart else Collectives.of(cost)
        model = cost.model
        passes = 3 + model.forwards_again
        many, part = np.array([1 << 20, 1 << 21]), of_parts(cost)
        linear, again, head = (
            float(np.diff(of(many))[0] / many[0]) for of in (part.linear_seconds, part.again_seconds, cost.head_seconds)
        )
        near, far = 64 * TILE, 128 * TILE
        one, two = attention_seconds(np.array([near, far]), cost)
        # Under a window attention is linear but for a sequence's begin; cuts need a square, however small.
        square = max((two - 2 * one) / (far**2 - 2 * near**2), 1e-4 * one / near**2)
        q, kv, o = (model.message_bytes_per_token(tensor, 0, model.num_heads) for tensor in (Q, KV, O))
        forward = float(cost.whole_seconds(np.array([far]), False)[0] / two) * (passes - 2)
        token = TokenSeconds(
            linear=passes * linear + again + head / model.num_layers,
            square=float(square),
            query=float((one - square * near**2) / near),
            repack=float(cost.repack_seconds(np.array([(passes - 1) * (2 * q + kv)]))[0]),
        )
        nics, channels = cost.cluster.nics_per_node, cost.cluster.nic_channels
        return Rates(
            token=token,
            across=float(cost.transfer_seconds(np.array([kv]), np.array([True]))[0]) / nics,
            one_peer=max(channels * nics / cost.cluster.gpus_per_node, 1.0),
            forward=forward,
            pace=_pace(cost, passes, (forward, again / linear), (q, kv, o), collectives),
            taken=_taken(collectives),
        )

    def prefix(self, tokens: float) -> float:
        """Returns the seconds of attention of the first `tokens` tokens of a sequence (or of an array of them)."""
        return self.token.square * tokens * tokens + self.token.query * tokens

    def nodes(self, count: int, num_ranks: int, capacity: int, heads: bool = True) -> Nodes:
        """Describes `count` nodes of `num_ranks` GPUs with room for `capacity` tokens each.

        heads: nodes share heads of cut sequences, which takes copies.
        """
        token = self.token if heads else self.token._replace(repack=0.0)
        return Nodes(count, num_ranks, capacity, token, self.forward, self.across, self.one_peer, self.taken)


def _taken(collectives: Collectives) -> Floats:
    """Seconds of a layer's share of gathers and reductions, which run beside the layers: float64 [2]."""
    ahead = collectives.gather if collectives.every_step else 0.0
    back = collectives.reduce + (collectives.gather if collectives.every_micro_batch else 0.0)
    return np.array([ahead, back]) / collectives.num_layers


def _pace(
    cost: Cost, passes: float, shares: tuple[float, float], sizes: tuple[int, int, int], collectives: Collectives
) -> Pace:
    """Returns what a layer waits for. shares: of attention that is the forward's; of a forward's linear modules, that
    selective recomputation runs again. sizes: bytes of a token's q, kv and o.

    Of the messages inside a node that homes send evenly, a port carries one P-th, and of that one P-th stays: it goes
    to P - 1 peers. On NICs it goes to all GPUs of other nodes, at least P, which have all of a NIC.
    """
    cluster, device = cost.cluster, cost.cluster.device
    (q, kv, o), (forward, again), ranks = sizes, shares, cluster.gpus_per_node
    out, home = np.array([q + kv, o]), np.array([o, q + kv])  # backward: do, then dq and dkv
    times = np.array([passes - 2, 1])  # recomputation is a forward more
    inside, nics, copies = (ranks - 1) / ranks**2 * times, times / cluster.nics_per_node, device.copy_bandwidth
    near, far = np.zeros(2, bool), np.ones(2, bool)
    # Every field of PassSeconds, in the forward and in the backward.
    fields = {
        "linear": np.array([passes - 2, 2 + again]) / (passes + again),
        "attention": np.array([forward, 1 - forward]),
        "start": times * np.array([1, 8]) * device.kernel_seconds,  # a call of the backward starts eight kernels
        "join": times * 3 * device.kernel_seconds,
        "out": cost.spread_seconds(out, near, ranks - 1) * inside,
        "home": cost.spread_seconds(home, near, ranks - 1) * inside,
        "nic_out": cost.transfer_seconds(out, far) * nics,
        "nic_home": cost.transfer_seconds(home, far) * nics,
        "join_query": times * 3 * o / copies,
        "join_key": np.array([0, 3 * kv]) / copies,
        **_beside(cost, collectives),
    }
    ahead, back = (PassSeconds(**{name: float(both[way]) for name, both in fields.items()}) for way in (0, 1))
    return Pace((ahead, back), device.call_seconds, cluster.nvlink_latency)


def _beside(cost: Cost, of: Collectives) -> dict[str, Floats]:
    """Returns begins, kept and kept_nic of PassSeconds, float64 [2] each: what zbench.simulator.estimate.beside has
    beside a layer. With full recomputation a forward that runs again is the forward's, with what runs beside it."""
    share, again = projected(cost.model), cost.model.forwards_again
    ahead = of.gather_ports * of.every_step
    back = of.gather_ports * of.every_micro_batch + of.reduce_ports
    both = np.stack([ahead + again * back, (1 - again) * back])
    kept = both / of.num_layers
    return {"begins": np.array([1 - share, share]), "kept": kept[:, NVLINK], "kept_nic": kept[:, NIC]}


def attention_seconds(lengths: Ints, cost: Cost) -> Floats:
    """Returns the seconds of attention of whole sequences, float64 [n]: all heads, forward and backward."""
    forward, backward = cost.whole_seconds(lengths, False), cost.whole_seconds(lengths, True)
    return forward * (1 + cost.model.forwards_again) + backward
