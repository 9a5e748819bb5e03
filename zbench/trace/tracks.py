"""Tracks of a step's trace and events on them. Pure: no torch.

A track for every GPU's compute queue (linear modules, attends, head, optimizer), one for each channel of each direction
of every NIC and, where a node has domains, of every GPU's ports inside it (attention's transfers), and one a node for
parameters' gathers and gradients' reductions, which use all of its links. These are charged to a pass as a whole
(zbench.cost.collective): a gather is drawn from the beginning of the pass, a reduction up to its end, and what layers
do not hide of them as waiting of every GPU. GPUs of a tensor-parallel group, and NICs that serve one group together,
have a track in common.
"""

from collections.abc import Iterator

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.cluster import Cluster
from zbench.describe.links import FIRST_DOMAIN, NVLINK
from zbench.plans.plan import Ints
from zbench.runtime.clocks.events import OPTIMIZER, REDUCE
from zbench.trace.file import Event

GATHER = "gather parameters"
SHOWN = {"forward": "waiting for parameters", "backward": "waiting for gradients"}  # what layers do not hide
_WAYS = ("sends", "receives")
SHARED = frozenset((GATHER, REDUCE, OPTIMIZER, *SHOWN.values()))  # names of events that are not of the layers


def numbered(kind: str, index: int, each: int = 1) -> str:
    """Names a track: 'GPU 3', or where there are `each` of a kind to one of a plan's cluster (zbench.cost.groups) 'GPUs
    12-15'."""
    return f"{kind} {index}" if each == 1 else f"{kind}s {index * each}-{(index + 1) * each - 1}"


def names(cluster: Cluster, with_nics: bool = True, gpus: int = 1, nics: int = 1) -> Iterator[Event]:
    """Yields names of processes (nodes) and threads (GPUs and, if asked for, NIC directions).

    gpus, nics: how many are one rank and one NIC of `cluster`.
    """
    for node in range(cluster.num_nodes):
        yield {"ph": "M", "pid": node, "name": "process_name", "args": {"name": f"node {node}"}}
        for tid, name in enumerate(titles(cluster, node, with_nics, gpus, nics)):
            yield {"ph": "M", "pid": node, "tid": tid, "name": "thread_name", "args": {"name": name}}


def titles(cluster: Cluster, node: int, with_nics: bool = True, gpus: int = 1, nics: int = 1) -> list[str]:
    """Lists the titles of a node's threads, in their order: its GPUs, what each channel of its NICs and of GPUs' ports
    sends and receives, and what all share. The other arguments are those of `names`."""
    tracks = [numbered("GPU", node * cluster.gpus_per_node + local, gpus) for local in range(cluster.gpus_per_node)]
    if not with_nics:
        return tracks
    for local in range(cluster.nics_per_node):
        name = numbered("NIC", node * cluster.nics_per_node + local, nics)
        tracks += [f"{name} {way}{channel}" for way in _WAYS for channel in _channels(cluster.nic_channels)]
    for gpu in tracks[: cluster.gpus_per_node]:
        for link in (cluster.links[number] for number in port_classes(cluster)):
            by = f"by {link.name}"
            tracks += [f"{gpu} {way} {by}{channel}" for way in _WAYS for channel in _channels(link.channels)]
    return [*tracks, "parameters, gradients"]


def _channels(count: int) -> list[str]:
    return [f", channel {channel + 1} of {count}" for channel in range(count)] if count > 1 else [""]


def port_classes(cluster: Cluster) -> list[int]:
    """Returns the classes of links inside a node that have tracks: none where there is one only, which would double
    them all and show little."""
    return [NVLINK, *range(FIRST_DOMAIN, FIRST_DOMAIN + len(cluster.domains))] if cluster.domains else []


def nic_track(cluster: Cluster, local: int, way: int, channel: int) -> int:
    """Returns the thread of a channel of NIC `local` of a node; way: 0 sends, 1 receives."""
    return cluster.gpus_per_node + (2 * local + way) * cluster.nic_channels + channel


def port_track(cluster: Cluster, local: int, link: int, way: int, channel: int) -> int:
    """Returns the thread of a channel of GPU `local`'s port to links of a class; way: 0 sends, 1 receives."""
    widths = {one: 2 * cluster.links[one].channels for one in port_classes(cluster)}
    before = local * sum(widths.values()) + sum(width for one, width in widths.items() if one < link)
    return nic_track(cluster, cluster.nics_per_node, 0, 0) + before + way * cluster.links[link].channels + channel


def sharing_track(cluster: Cluster) -> int:
    """Returns the thread of a node on which parameters' gathers and gradients' reductions are: its last."""
    return port_track(cluster, cluster.gpus_per_node, NVLINK, 0, 0)


def spans(name: str, begin: Floats, seconds: Floats, cost: Cost, args: Event) -> Iterator[Event]:
    """Yields an event on every rank for which it takes any time; begin, seconds: [num_ranks]."""
    per_node = cost.cluster.gpus_per_node
    for rank in np.flatnonzero(seconds > 0).tolist():
        yield complete_event(name, rank // per_node, rank % per_node, begin[rank], seconds[rank], args)


def collective(name: str, begin: float, seconds: float, size: Ints, cost: Cost, place: Event) -> Iterator[Event]:
    """Yields an event on every node; size: bytes of every NIC, each way, [num_nics]."""
    cluster = cost.cluster
    for node in range(cost.whole.num_nodes if seconds else 0):
        args = {**place, "bytes": int(size[node % cluster.num_nodes * cluster.nics_per_node])}
        yield complete_event(name, node, sharing_track(cluster), begin, seconds, args)


def complete_event(name: str, pid: int, tid: int, start: float, seconds: float, args: Event) -> Event:
    """Makes a complete event; Chrome traces count in microseconds."""
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": round(start * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        "args": args,
    }
