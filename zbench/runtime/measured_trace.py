"""Writes one measured step of attention's plans as a Chrome trace, for Perfetto or chrome://tracing. No torch.

A track for every rank: its attends, where it waited for messages, gradients' reduction and the optimizer (linear
modules fill the rest); every message, from when it was posted, or the one before it between the two ranks had arrived
(when it was posted is said with it), to when the receiver found it arrived, which is late where it did not wait for it;
and for every NIC and direction, where they were sampled (executor.nic_interval), its
utilisation as a curve.
Ranks' clocks are one where they are on one machine; elsewhere each counts from the barrier before the step.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from zbench.describe.cluster import Cluster
from zbench.runtime.clocks.events import Events
from zbench.trace.file import Event, write_events
from zbench.trace.tracks import gpu_track_names


class NotedStep(Protocol):
    """A report of what a rank did in a step (zbench.runtime.job.job.Report has the fields' meaning)."""

    @property
    def began(self) -> float: ...

    @property
    def events(self) -> Events | None: ...

    @property
    def nic_series(self) -> dict[str, Any]: ...


def write_measured(path: str | Path, cluster: Cluster, reports: Sequence[NotedStep], one_clock: bool) -> int:
    """Writes the step's events to `path` and returns their number; the file appears only when complete.

    one_clock: the ranks are on one machine.

    Raises:
        ValueError: the file cannot be written.
    """
    first = min(report.began for report in reports)
    starts = [first if one_clock else report.began for report in reports]
    return write_events(path, False, cluster, _events(cluster, reports, starts))


def _events(cluster: Cluster, reports: Sequence[NotedStep], starts: Sequence[float]) -> Iterator[Event]:
    yield from gpu_track_names(cluster)
    noted = [report.events for report in reports if report.events is not None]
    assert len(noted) == len(reports), "a step that is traced is noted on every rank"
    for rank, (events, start) in enumerate(zip(noted, starts, strict=True)):
        node, local = divmod(rank, cluster.gpus_per_node)
        for span in events.spans:
            yield {
                "ph": "X",
                "name": span.name,
                "pid": node,
                "tid": local,
                "ts": _micro(span.began - start),
                "dur": _micro(span.ended - span.began),
                "args": {"run": span.run, "operation": span.op},
            }
    yield from _messages(cluster, noted, starts)
    for rank, (report, start) in enumerate(zip(reports, starts, strict=True)):
        yield from nic_share_events(cluster, rank // cluster.gpus_per_node, report.nic_series, report.began - start)


def _messages(cluster: Cluster, noted: Sequence[Events], starts: Sequence[float]) -> Iterator[Event]:
    """Yields messages as asynchronous events, as those of a rank overlap; on the receiver's node."""
    posted = {
        (rank, one.peer, one.run, one.hop): one.moment - starts[rank]
        for rank, events in enumerate(noted)
        for one in events.sent
    }
    number = 0
    for rank, events in enumerate(noted):
        before: dict[int, float] = {}  # by peer: when its message before was found arrived
        for one in sorted(events.arrived, key=lambda one: one.moment):
            across = one.peer // cluster.gpus_per_node != rank // cluster.gpus_per_node
            common = {
                "cat": "between nodes" if across else "inside the node",
                "name": f"{one.peer} to {rank}",
                "id": number,
                "pid": rank // cluster.gpus_per_node,
            }
            number += 1
            sent = posted[(one.peer, rank, one.run, one.hop)]
            found = max(sent, one.moment - starts[rank])
            args = {"bytes": one.bytes, "run": one.run, "leg": one.hop, "posted, us": _micro(sent)}
            yield {"ph": "b", **common, "ts": _micro(min(max(sent, before.get(one.peer, sent)), found)), "args": args}
            yield {"ph": "e", **common, "ts": _micro(found)}
            before[one.peer] = found


def nic_share_events(cluster: Cluster, node: int, series: Mapping[str, Any], offset: float) -> Iterator[Event]:
    """Yields how much of its rate each NIC of a node carried. series: as of zbench.runtime.job.job.Report; empty: they
    were not sampled. offset: seconds at which it begins."""
    interval = series.get("interval", 0.0)
    for way, words in (("tx", "sends"), ("rx", "receives")):
        for local, carried in enumerate(series.get(way, ())):
            name = f"NIC {node * cluster.nics_per_node + local} {words}"
            for at, size in enumerate(carried):
                share = size / (interval * cluster.nic_bandwidth)
                yield {
                    "ph": "C",
                    "name": name,
                    "pid": node,
                    "ts": _micro(offset + at * interval),
                    "args": {"share of its rate": round(share, 4)},
                }


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
