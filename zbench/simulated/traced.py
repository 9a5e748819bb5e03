"""The trace of a whole step: every operation on the queue or link that it takes, and the critical path. Where workers
train apart, every worker's step and what the round ends with. Pure: no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from zbench.critical.drawn import path_events, path_spans, path_track
from zbench.describe.cluster import Cluster
from zbench.simulator.clock import Timeline
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.trace.file import MOST_EVENTS, Event, write_events
from zbench.trace.named import TokenLists
from zbench.trace.part import StepPart
from zbench.trace.whole_step import track_names, whole_step_events


@dataclass(frozen=True)
class DrawnStep:
    """A step that is drawn as a part of a trace, played with all its layers. where: its place there."""

    program: HopByHop
    timeline: Timeline
    where: StepPart

    @property
    def end(self) -> float:
        """Seconds from the trace's begin to the step's end."""
        return self.where.begin + float(self.timeline.done.max(initial=0.0))

    def events(self) -> Iterator[Event]:
        """Yields the events of its operations, as those of the trace."""
        for event, _ in whole_step_events(self.program, self.timeline, self.where.own):
            yield self.where.moved(event)


def write_round(path: str, workers: Sequence[DrawnStep], ends: Sequence[DrawnStep], cluster: Cluster) -> None:
    """Writes the trace of a step of workers that train apart. ends: what their round ends with, in its order. The
    critical path is that of the worker that ends last, and of what follows. cluster: of all GPUs.

    Raises:
        ValueError: as write_whole_step.
    """
    every, last = (*workers, *ends), max(workers, key=lambda one: one.end)
    _check_events([one.program for one in every])
    spans = (path_spans(one.program, one.timeline, one.where) for one in (last, *ends))
    drawn = (one.events() for one in every)
    write_events(path, True, cluster, chain(path_track(cluster), *spans, track_names(cluster), *drawn))


def write_whole_step(path: str, program: HopByHop, timeline: Timeline, cluster: Cluster) -> None:
    """Writes the trace of a step that was played with all its layers. cluster: of GPUs, each one a place of the step.

    Raises:
        ValueError: it would have more than zbench.trace.file.MOST_EVENTS events, or cannot be written.
    """
    drawn = (event for event, _ in counted_events(program, timeline, cluster))
    write_events(path, True, cluster, chain(path_events(program, timeline, cluster), track_names(cluster), drawn))


def counted_events(program: HopByHop, timeline: Timeline, cluster: Cluster) -> Iterator[tuple[Event, TokenLists]]:
    """Returns the events of operations, on the tracks of zbench.trace.whole_step, and what each is about.

    Raises:
        ValueError: they are more than zbench.trace.file.MOST_EVENTS.
    """
    _check_events([program])
    return whole_step_events(program, timeline, cluster)


def _check_events(programs: Sequence[HopByHop]) -> None:
    count = 2 * sum(one.table.shape[1] for one in programs)  # at most: a message is at two ports
    if count > MOST_EVENTS:
        raise ValueError(
            f"trace would hold up to {count} events; at most {MOST_EVENTS}: use fewer nodes or model.num_layers"
        )
