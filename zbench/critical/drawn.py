"""A critical path as a track of a step's trace: an event an operation, one after another. Pure: no torch."""

from collections.abc import Iterator

from zbench.critical.path import critical_path
from zbench.critical.told import path_operations, written_numbers
from zbench.describe.cluster import Cluster
from zbench.simulator.clock import Timeline
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.trace.file import Event
from zbench.trace.part import StepPart
from zbench.trace.tracks import complete_event

TRACK = "critical path"


def path_events(program: HopByHop, timeline: Timeline, cluster: Cluster) -> Iterator[Event]:
    """Yields the track of a step that was played with all its layers, and its events."""
    yield from path_track(cluster)
    yield from path_spans(program, timeline, StepPart(cluster, cluster))


def path_track(cluster: Cluster) -> Iterator[Event]:
    """Yields the names of the track, which viewers show above the nodes'."""
    place = {"ph": "M", "pid": cluster.num_nodes}
    yield {**place, "name": "process_name", "args": {"name": TRACK}}
    yield {**place, "name": "process_sort_index", "args": {"sort_index": -1}}
    yield {**place, "tid": 0, "name": "thread_name", "args": {"name": TRACK}}


def path_spans(program: HopByHop, timeline: Timeline, where: StepPart) -> Iterator[Event]:
    """Yields the events of the track: each operation of the path from when it began to when the next one did, which
    waited for it. where: what part of a trace the step is."""
    for row in path_operations(program, critical_path(program, timeline)):
        # One ends where the next begins, rounded too.
        begin, end = (round(1e9 * (where.begin + at)) for at in (row.begin, row.end))
        args = {
            "template": row.template,
            "layer": where.layer(min(row.layers)),
            "GPUs": written_numbers(frozenset(map(where.place, row.gpus))),
            "waited for": row.reasons,
        }
        yield complete_event(row.name, where.whole.num_nodes, 0, begin * 1e-9, (end - begin) * 1e-9, args)
