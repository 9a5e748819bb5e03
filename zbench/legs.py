"""Operations as legs: what each occupies while it runs. Pure: no torch.

An attend is one leg on its rank's compute lane. A direct transfer is one leg, over the NVLink ports of
two GPUs of a node or over the NICs of two nodes. A routed transfer is cut into a share for each lane it
is spread over, and a share is up to three legs: dispatch inside the source node, NIC to NIC, combine
inside the other node. When legs run is zbench.clock's.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.cluster import Cluster
from zbench.plan import ATTEND, Ints, Ops, Plan

COMPUTE, INSIDE_TX, INSIDE_RX, ACROSS_TX, ACROSS_RX, THROUGH_TX, THROUGH_RX = range(7)
LANES = 7  # lanes of a rank
NVLINK, NIC = 0, 1  # link classes


@dataclass(frozen=True)
class Legs:
    """Legs in plan order (arrays [num_legs]).

    op: the operation. rank: whose program starts it. lane_a, lane_b: lanes it occupies (b = -1: only one).
    link_a, link_b: sending and receiving link, -1 for an attend. bytes: 0 for an attend.
    channels: how many its lanes and links have. whole: it takes all of them, else one.
    after: the leg before it inside the same routed transfer, -1 if none.
    first, last: [num_ops + 1] and [num_legs]: the legs of operation i are first[i]:first[i + 1], and
    whether the operation is complete only when the leg is.
    """

    op: Ints
    rank: Ints
    lane_a: Ints
    lane_b: Ints
    link_a: Ints
    link_b: Ints
    bytes: Ints
    channels: Ints
    whole: NDArray[np.bool_]
    after: Ints
    first: Ints
    last: NDArray[np.bool_]

    def link_class(self, num_ranks: int) -> Ints:
        """NVLINK or NIC for every transfer leg, -1 for attends."""
        return np.where(self.link_a < 0, -1, np.where(self.link_a >= 2 * num_ranks, NIC, NVLINK))


def link_ids(cluster: Cluster) -> tuple[int, int]:
    """(number of links, id of the first NIC's sending side): NVLink tx, rx of rank r are 2r, 2r+1; NICs follow."""
    return 2 * (cluster.num_ranks + cluster.num_nics), 2 * cluster.num_ranks


def legs(plan: Plan, ops: Ops, op_bytes: Ints, cluster: Cluster) -> Legs:
    """Expands operations into legs. op_bytes: int64 [num_ops], the message size of every transfer."""
    node, nic = cluster.node_of, cluster.nic_of
    lanes = plan.lanes
    if not len(lanes):
        lanes = type(lanes)(np.zeros(2, np.int64), np.zeros(0, np.int64))
    op, rank, lane_a, lane_b, link_a, link_b, size, after, first, last = _expand(
        ops.kind, ops.src, ops.dst, op_bytes, ops.via, lanes.offsets, lanes.items,
        node, nic, cluster.gpus_per_node, cluster.nics_per_node,
    )  # fmt: skip
    across = link_a >= 2 * cluster.num_ranks
    channels = np.where(link_a < 0, 1, np.where(across, cluster.nic_channels, cluster.nvlink_channels))
    whole = (ops.collective[op] == 1) | (channels == 1)
    return Legs(op, rank, lane_a, lane_b, link_a, link_b, size, channels, whole, after, first, last)


@nb.njit(cache=True)
def _expand(kind, src, dst, size, via, lane_offsets, lane_items, node, nic, per_node, nics):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(len(kind)):
        count += 1 if via[i] < 0 else 3 * (lane_offsets[via[i] + 1] - lane_offsets[via[i]])
    out = np.full((8, count), -1, np.int64)  # op rank lane_a lane_b link_a link_b bytes after
    last = np.zeros(count, np.bool_)
    first = np.zeros(len(kind) + 1, np.int64)
    nic0 = 2 * len(node)
    at = 0
    for i in range(len(kind)):
        first[i] = at
        s, d = np.int64(src[i]), np.int64(dst[i])
        if kind[i] == ATTEND:
            out[:, at] = (i, s, s * LANES + COMPUTE, -1, -1, -1, 0, -1)
            last[at] = True
            at += 1
        elif node[s] == node[d]:
            out[:, at] = (i, s, s * LANES + INSIDE_TX, d * LANES + INSIDE_RX, 2 * s, 2 * d + 1, size[i], -1)
            last[at] = True
            at += 1
        elif via[i] < 0:
            out[:, at] = (i, s, s * LANES + ACROSS_TX, d * LANES + ACROSS_RX,
                          nic0 + 2 * nic[s], nic0 + 2 * nic[d] + 1, size[i], -1)  # fmt: skip
            last[at] = True
            at += 1
        else:
            begin, end = lane_offsets[via[i]], lane_offsets[via[i] + 1]
            for lane in range(begin, end):
                share = size[i] * (lane + 1 - begin) // (end - begin) - size[i] * (lane - begin) // (end - begin)
                if share == 0:
                    continue
                p = proxy(s, lane_items[lane], nic, node, per_node, nics)
                q = proxy(d, lane_items[lane], nic, node, per_node, nics)
                before = -1
                if p != s:
                    out[:, at] = (i, s, s * LANES + INSIDE_TX, p * LANES + THROUGH_RX, 2 * s, 2 * p + 1, share, -1)
                    before = at
                    at += 1
                out[:, at] = (i, p, p * LANES + ACROSS_TX, q * LANES + ACROSS_RX,
                              nic0 + 2 * nic[p], nic0 + 2 * nic[q] + 1, share, before)  # fmt: skip
                if q != d:
                    before = at
                    at += 1
                    out[:, at] = (i, q, q * LANES + THROUGH_TX, d * LANES + INSIDE_RX, 2 * q, 2 * d + 1, share, before)
                last[at] = True
                at += 1
    first[len(kind)] = at
    o = out[:, :at]
    return (
        o[0].copy(),
        o[1].copy(),
        o[2].copy(),
        o[3].copy(),
        o[4].copy(),
        o[5].copy(),
        o[6].copy(),
        o[7].copy(),
        first,
        last[:at],
    )


@nb.njit(cache=True)
def proxy(rank, lane, nic, node, per_node, nics):  # type: ignore[no-untyped-def]
    """The rank that carries lane `lane` (a NIC of the node) for `rank`: itself if tied to that NIC, else the
    one tied to it that has `rank`'s place among its own NIC's ranks, so that proxies share the work."""
    begin = node[rank] * per_node
    if nic[rank] == node[rank] * nics + lane:
        return rank
    width = per_node // nics
    first = begin + -(-lane * per_node // nics)
    return first + (rank - begin) % width
