"""Events of a whole step: every operation by its name, on the queue or link that it takes. Pure: no torch.

Tracks are a node's GPUs (computes), of every direction of each NIC and of each GPU's ports inside the node one a
channel, and its CPUs, where they may update parameters. A message's event has its bytes and what they are for, and how
many of several channels it takes: all of them are drawn as the first. The bytes of a NIC's events are those of the
record.
"""

from collections.abc import Iterator

import numpy as np

from zbench.describe.cluster import Cluster
from zbench.describe.links import NIC, NVLINK
from zbench.simulator.clock import Timeline
from zbench.simulator.steps.expand import BYTES, CLASS, LINK_A, LINK_B, OP, RANK
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.variant import PlayedInstance
from zbench.step.operations import COMPUTE, MOVE, SEND
from zbench.trace.channels import Channels
from zbench.trace.file import Event
from zbench.trace.named import TokenLists, named_operation, token_lists
from zbench.trace.tracks import complete_event

_WAYS = ("sends", "receives")


def whole_step_events(program: HopByHop, timeline: Timeline, cluster: Cluster) -> Iterator[tuple[Event, TokenLists]]:
    """Yields the events of a program that was played, and the tokens that each is about (zbench.trace.named).

    cluster: of GPUs, each one a place of the step.
    """
    channels, table, hops = Channels(), program.table, program.graph.hops
    of = np.repeat(np.arange(len(program.instances)), np.diff(program.begin))
    shown = np.flatnonzero((table[CLASS] >= 0) | (program.kinds == COMPUTE))
    for hop in shown[np.argsort(timeline.start[shown], kind="stable")].tolist():
        one, op = program.instances[of[hop]], int(table[OP, hop])
        (name, args), about = played_operation(one, op), token_lists(one.variant.of.layout, one.variant.ops[op])
        begin, end, link = float(timeline.start[hop]), float(timeline.release[hop]), int(table[CLASS, hop])
        if link < 0:
            node, track = _computing_track(cluster, int(table[RANK, hop]), one.variant.of.step.num_hosts)
            yield complete_event(name, node, track, begin, end - begin, args), about
            continue
        count, whole = int(hops.channels[hop]), bool(hops.whole[hop])
        args |= {"bytes": int(table[BYTES, hop])} | ({"channels": count if whole else 1} if count > 1 else {})
        for port in (int(table[LINK_A, hop]), int(table[LINK_B, hop])):
            if port >= 0:
                channel = channels.take(port, count, begin, end, whole)
                node, track = _track(cluster, port, link, channel)
                yield complete_event(name, node, track, begin, end - begin, args), about


def played_operation(one: PlayedInstance, op: int) -> tuple[str, Event]:
    """Returns the name of an operation that was played, and what its events say of it (zbench.trace.named)."""
    row, of = one.variant.ops[op], one.variant.of
    name, args = named_operation(of.template, of.layout, row, one.layer)
    return name, args | ({"from": int(row[2]), "to": int(row[3])} if row[0] in (SEND, MOVE) else {})


def _computing_track(cluster: Cluster, place: int, hosts: int) -> tuple[int, int]:
    """Returns (node, thread) of the computes of a GPU, or of a node's CPUs, whose track is the last one, also where
    each of its GPUs has a part of its memory. hosts: host memories of the step."""
    if place < cluster.num_ranks:
        return divmod(place, cluster.gpus_per_node)
    return (place - cluster.num_ranks) * cluster.num_nodes // hosts, len(track_titles(cluster)[0]) - 1


def _nic_track(cluster: Cluster, local: int, way: int, channel: int) -> int:
    """Returns the thread of a channel of NIC `local` of a node; way: 0 sends, 1 receives."""
    return cluster.gpus_per_node + (2 * local + way) * cluster.nic_channels + channel


def _port_classes(cluster: Cluster) -> list[int]:
    """Returns the classes of links of which every GPU has ports of its own, in the order of their tracks."""
    return [number for number in range(len(cluster.links)) if number != NIC]


def _track(cluster: Cluster, port: int, link: int, channel: int) -> tuple[int, int]:
    """Returns (node, thread) of a channel of a port, numbered as in zbench.simulator.hops.ports, of a class."""
    way, own = port % 2, port // 2
    if link == NIC:
        node, local = divmod(own - cluster.num_ranks, cluster.nics_per_node)
        return node, _nic_track(cluster, local, way, channel)
    before = 0
    for one in _port_classes(cluster):
        if one == link:
            break
        before += 2 * cluster.links[one].channels
    node, local = divmod((own - (cluster.num_nics if link > NIC else 0)) % cluster.num_ranks, cluster.gpus_per_node)
    widths = sum(2 * cluster.links[one].channels for one in _port_classes(cluster))
    first = _nic_track(cluster, cluster.nics_per_node, 0, 0)
    return node, first + local * widths + before + way * cluster.links[link].channels + channel


def track_names(cluster: Cluster) -> Iterator[Event]:
    """Yields names of nodes and of their tracks."""
    for node, titles in enumerate(track_titles(cluster)):
        yield {"ph": "M", "pid": node, "name": "process_name", "args": {"name": f"node {node}"}}
        for tid, title in enumerate(titles):
            yield {"ph": "M", "pid": node, "tid": tid, "name": "thread_name", "args": {"name": title}}


def link_title(cluster: Cluster, link: int | None) -> str:
    """Returns what a class of links of GPUs is called: a node's NVLink, a domain by its name, and links to the host,
    which a cluster may not describe (None)."""
    if link == NVLINK:
        return "NVLink"
    return "host link" if link is None else f"{cluster.links[link].name} link"


def track_titles(cluster: Cluster) -> list[list[str]]:
    """Returns the titles of every node's tracks, in their order: as many of each node."""
    found = []
    for node in range(cluster.num_nodes):
        first = node * cluster.gpus_per_node
        titles = [f"GPU {first + local}" for local in range(cluster.gpus_per_node)]
        owners = [(f"NIC {node * cluster.nics_per_node + local}", NIC) for local in range(cluster.nics_per_node)]
        owners += [(f"{gpu} {link_title(cluster, one)}", one) for gpu in titles for one in _port_classes(cluster)]
        for owner, link in owners:
            count = cluster.links[link].channels
            for way in _WAYS:
                titles += [
                    f"{owner} {way}" + (f", channel {channel + 1} of {count}" if count > 1 else "")
                    for channel in range(count)
                ]
        titles += ["CPUs"] if cluster.host_adam_bandwidth is not None else []
        found.append(titles)
    return found
