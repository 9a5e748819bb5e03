"""Zeppelin's partitioner with the paper's thresholds: no estimate of time, nothing played.

Two levels of one move (arXiv 2509.21841, algorithms 1 and 2). Sequences come longest first. Those of at least the
threshold are cut, each in as many chunks as it weighs averages of its zone, to the least loaded buckets; the others go
whole to the least loaded bucket. Where one overflows its bucket, the threshold falls to the longest that was whole,
and the level starts again. Across nodes a sequence weighs its tokens and the threshold begins at what a node holds;
inside a node it weighs its squared length and the threshold begins at what a GPU holds.
The text says this much; that a bucket holds the batch's mean of tokens, averages are of the zone that is cut, and
cut sequences may overflow, is derived (docs/systems/zeppelin.md).
"""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.zeppelin.partition import Partition


def published_partition(lengths: Ints, num_nodes: int, per_node: int) -> Partition:
    """Returns the partition: which ranks share which sequence. Rings across nodes have all GPUs of their nodes.
    lengths: int64 [num_sequences]."""
    order = np.argsort(-lengths, kind="stable")
    capacity = -(-int(lengths.sum()) // (num_nodes * per_node))
    first, size, members = _parted(lengths[order], num_nodes, per_node, capacity)
    back = np.argsort(order, kind="stable")
    return Partition(first[back], size[back], members)


@nb.njit(**ENTERED)
def _parted(tokens, num_nodes, per_node, capacity):  # type: ignore[no-untyped-def]
    """Partitions as the paper does, level by level: returns (first, size, members) of
    zbench.systems.zeppelin.partition.Partition. tokens: longest first. Returns (first, size, members) of
    zeppelin_partition.Partition."""
    count = len(tokens)
    weight = tokens.astype(np.float64)
    empty = np.zeros(num_nodes)
    chunks, node_of = partition_level(tokens, weight, empty, empty, capacity * per_node)
    first, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
    members = np.empty(chunks.sum() * per_node, np.int64)
    held, load = np.zeros((num_nodes, per_node)), np.zeros((num_nodes, per_node))
    used = 0
    for s in range(count):
        if chunks[s] > 1:
            first[s], size[s] = used, chunks[s] * per_node
            for node in np.sort(node_of[s, : chunks[s]]):
                held[node] += weight[s] / size[s]
                load[node] += weight[s] ** 2 / size[s]
                for place in range(per_node):
                    members[used] = node * per_node + place
                    used += 1
    for node in range(num_nodes):
        mine = np.flatnonzero((chunks == 1) & (node_of[:, 0] == node))
        cuts, gpu_of = partition_level(tokens[mine], weight[mine] ** 2, held[node], load[node], capacity)
        for i in range(len(mine)):
            first[mine[i]], size[mine[i]] = used, cuts[i]
            for gpu in np.sort(gpu_of[i, : cuts[i]]):
                members[used] = node * per_node + gpu
                used += 1
    return first, size, members[:used]


@nb.njit(**ENTERED)
def partition_level(tokens, weight, held, load, capacity):  # type: ignore[no-untyped-def]
    """Cuts and deals sequences on one level: returns (int64 [count] chunks of every sequence, int64 [count, buckets]
    the buckets of them).

    tokens: longest first; weight: what is balanced. held, load: [buckets], tokens and weight that buckets have already.
    """
    count, buckets = len(tokens), len(held)
    chunks, places = np.ones(count, np.int64), np.zeros((count, buckets), np.int64)
    cut = 0
    while cut < count and tokens[cut] >= capacity:
        cut += 1
    while True:
        whole = _dealt(tokens, weight, held.copy(), load.copy(), capacity, cut, chunks, places)
        if whole:
            return chunks, places
        longest = tokens[cut]
        while cut < count and tokens[cut] == longest:
            cut += 1


@nb.njit(**INNER)
def _dealt(tokens, weight, held, load, capacity, cut, chunks, places):  # type: ignore[no-untyped-def]
    """Deals with the first `cut` sequences cut, into `chunks` and `places`; whether all others fit whole."""
    buckets = len(held)
    average = max(weight[:cut].sum() / buckets, 1.0)
    for s in range(len(tokens)):
        wide = min(int(np.ceil(weight[s] / average)), buckets) if s < cut else 1
        least = np.argsort(load)[:wide] if wide > 1 else np.argmin(load) * np.ones(1, np.int64)
        if s >= cut and held[least[0]] + tokens[s] > capacity:
            return False
        chunks[s] = wide
        for i in range(wide):
            places[s, i] = least[i]
            held[least[i]] += tokens[s] / wide
            load[least[i]] += weight[s] / wide
    return True
