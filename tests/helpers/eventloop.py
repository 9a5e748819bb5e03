"""The cluster's clock again, slow and plain: what tests/plans/test_dataflow.py and tests/simulator/test_clock.py
compare with.

Dictionaries and lists, one loop over points in time, no numba; shares with zbench only the plan's views,
the cluster's numbers and the seconds of each operation. The rules are those zbench.simulator.clock states.
"""

import heapq
from dataclasses import dataclass, field
from itertools import pairwise

from zbench.describe.cluster import Cluster
from zbench.plans.plan import Attend, Ops, Plan

COPIES = ("q", "kv", "do")


def data_edges(plan: Plan, ops: Ops, backward: bool) -> set[tuple[int, int]]:
    """(producer, consumer) operations, by following every head of every block."""
    brought: dict[tuple, int] = {}  # (tensor, block, rank, head) -> the operation that brought a copy
    waiting: dict[tuple, list[int]] = {}  # likewise -> the operations that added to a sum not yet sent
    found: set[tuple[int, int]] = set()
    for index, op in enumerate(plan.views(ops)):
        for head in range(*op.heads):
            if isinstance(op, Attend):
                reads = [("q", block) for block in op.q_blocks] + [("kv", block) for block in op.kv_blocks]
                adds = [("o", block) for block in op.q_blocks]
                if backward:
                    reads += [("do", block) for block in op.q_blocks]
                    adds = [("dq", block) for block in op.q_blocks] + [("dkv", block) for block in op.kv_blocks]
                found |= {(brought[*key, op.rank, head], index) for key in reads if (*key, op.rank, head) in brought}
                for key in adds:
                    waiting.setdefault((*key, op.rank, head), []).append(index)
                continue
            for block in op.blocks:
                here, there = (op.tensor, block, op.src, head), (op.tensor, block, op.dst, head)
                if op.tensor in COPIES:
                    if here in brought:
                        found.add((brought[here], index))
                    brought[there] = index
                else:
                    found |= {(producer, index) for producer in waiting.pop(here)}
                    waiting.setdefault(there, []).append(index)
    return found


@dataclass
class Hop:
    """One stretch of one operation; after: the hop before it in the same routed share."""

    op: int
    rank: int
    queues: list[tuple]
    links: list[tuple]
    busy: float
    latency: float
    last: bool
    channels: int = 1
    whole: bool = True
    after: int = -1
    start: float = -1.0
    needs: list[int] = field(default_factory=list)


def tied(cluster: Cluster, node: int, nic: int) -> list[int]:
    """The ranks of a node that are tied to its NIC `nic`."""
    per_node, nics = cluster.gpus_per_node, cluster.nics_per_node
    return [node * per_node + gpu for gpu in range(per_node) if gpu * nics // per_node == nic]


def carrier(cluster: Cluster, rank: int, nic: int) -> int:
    """Who carries for `rank` over its node's NIC `nic`."""
    node, gpu = divmod(rank, cluster.gpus_per_node)
    ranks = tied(cluster, node, nic)
    return rank if rank in ranks else ranks[gpu % (cluster.gpus_per_node // cluster.nics_per_node)]


def nearest(cluster: Cluster, src: int, dst: int) -> tuple[str, float, float, int]:
    """(name, rate, latency, channels) of the links that a message takes."""
    if src // cluster.gpus_per_node != dst // cluster.gpus_per_node:
        rate = cluster.nic_bandwidth * cluster.nic_efficiency
        return "across", rate, cluster.nic_latency, cluster.nic_channels
    for domain in sorted(cluster.domains, key=lambda one: one.gpus):
        first, second = src % cluster.gpus_per_node, dst % cluster.gpus_per_node
        if first // domain.gpus == second // domain.gpus:
            return domain.name, domain.bandwidth * domain.efficiency, domain.latency, domain.channels
    rate = cluster.nvlink_bandwidth * cluster.nvlink_efficiency
    return "inside", rate, cluster.nvlink_latency, cluster.nvlink_channels


def make_hops(plan: Plan, ops: Ops, cluster: Cluster, seconds: list[float], size: list[int]) -> list[Hop]:
    """seconds: of every attend; size: bytes of every transfer (both by operation)."""
    hops: list[Hop] = []

    def link(kind: str, rank: int, way: str) -> tuple:
        return (kind, int(cluster.nic_of[rank]) if kind == "across" else rank, way)

    for index, op in enumerate(plan.views(ops)):
        if isinstance(op, Attend):
            hops.append(Hop(index, op.rank, [(op.rank, "compute")], [], seconds[index], 0.0, True))
            continue
        src, dst, number = op.src, op.dst, size[index]
        inside = src // cluster.gpus_per_node == dst // cluster.gpus_per_node
        if inside or not op.via:
            kind, rate, latency, channels = nearest(cluster, src, dst)
            queues = [(src, kind, "tx"), (dst, kind, "rx")]
            links = [link(kind, src, "tx"), link(kind, dst, "rx")]
            whole = op.collective or channels == 1
            seconds_busy = (1 if whole else channels) * (number / rate)
            hops.append(Hop(index, src, queues, links, seconds_busy, latency, True, channels, whole))
            continue
        for place, lane in enumerate(op.via):
            share = number * (place + 1) // len(op.via) - number * place // len(op.via)
            if not share:
                continue
            p, q = carrier(cluster, src, lane), carrier(cluster, dst, lane)
            path = [(p, q, "tx", "rx")]
            if p != src:
                path.insert(0, (src, p, "tx", "rx through"))
            if q != dst:
                path.append((q, dst, "tx through", "rx"))
            for place_on_path, (a, b, leaves, enters) in enumerate(path):
                after = len(hops) - 1 if place_on_path else -1
                kind, rate, latency, channels = nearest(cluster, a, b)
                queue_a, queue_b, busy = (a, kind, leaves), (b, kind, enters), share / rate
                links = [link(kind, a, "tx"), link(kind, b, "rx")]
                last = place_on_path == len(path) - 1
                whole = op.collective or channels == 1
                busy = (1 if whole else channels) * busy
                hops.append(Hop(index, a, [queue_a, queue_b], links, busy, latency, last, channels, whole, after))
    return hops


def simulate(hops: list[Hop], edges: set[tuple[int, int]], ready: list[float] | None = None) -> list[Hop]:
    """Fills in every hop's start. At each point in time, in plan order, every hop starts that can."""
    ends = {}
    for index, hop in enumerate(hops):
        if hop.last:
            ends.setdefault(hop.op, []).append(index)
    producers: dict[int, list[int]] = {}
    for producer, consumer in edges:
        producers.setdefault(consumer, []).append(producer)
    queues: dict[tuple, list[int]] = {}
    for index, hop in enumerate(hops):
        first = hop.after < 0
        hop.needs = [end for op in producers.get(hop.op, []) for end in ends[op]] if first else [hop.after]
        for queue in hop.queues:
            queues.setdefault(queue, []).append(index)
    before: dict[int, list[int]] = {index: [] for index in range(len(hops))}  # started; of one pair: ended
    same_pair: dict[int, list[int]] = {index: [] for index in range(len(hops))}
    for queue in queues.values():
        for one, other in pairwise(queue):
            before[other].append(one)
    pairs: dict[tuple, list[int]] = {}
    for index, hop in enumerate(hops):
        if hop.channels > 1:
            same_pair[index] = list(pairs.setdefault(tuple(hop.queues), []))
            pairs[tuple(hop.queues)].append(index)

    def release(hop: Hop) -> float:
        return hop.start + hop.busy

    using: dict[tuple, list[int]] = {}  # queues and links -> the hops that have been on them

    def has_room(hop: Hop, place: tuple, now: float) -> bool:
        taken = sum(
            other.channels if other.whole else 1
            for other in (hops[index] for index in using.get(place, []))
            if release(other) > now
        )
        return taken + (hop.channels if hop.whole else 1) <= hop.channels

    times = [0.0, *(ready or [])]
    heapq.heapify(times)
    waiting = list(range(len(hops)))
    while waiting:
        now = heapq.heappop(times)
        for index in list(waiting):
            hop = hops[index]
            can = (
                (ready[hop.rank] if ready else 0.0) <= now
                and all(hops[n].start >= 0 and release(hops[n]) + hops[n].latency <= now for n in hop.needs)
                and all(hops[n].start >= 0 for n in before[index])
                and all(release(hops[n]) <= now for n in same_pair[index])
                and all(has_room(hop, place, now) for place in (*hop.queues, *hop.links))
            )
            if can:
                hop.start = now
                waiting.remove(index)
                for place in (*hop.queues, *hop.links):
                    using.setdefault(place, []).append(index)
                heapq.heappush(times, release(hop))
                heapq.heappush(times, release(hop) + hop.latency)
    return hops
