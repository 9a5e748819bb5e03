"""Tracks of traces, and events on them. Pure: no torch."""

from collections.abc import Iterator

from zbench.describe.cluster import Cluster
from zbench.trace.file import Event


def gpu_track_names(cluster: Cluster) -> Iterator[Event]:
    """Yields the names of processes, which are nodes, and of their threads, which are GPUs."""
    for node in range(cluster.num_nodes):
        yield {"ph": "M", "pid": node, "name": "process_name", "args": {"name": f"node {node}"}}
        for tid in range(cluster.gpus_per_node):
            name = f"GPU {node * cluster.gpus_per_node + tid}"
            yield {"ph": "M", "pid": node, "tid": tid, "name": "thread_name", "args": {"name": name}}


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
