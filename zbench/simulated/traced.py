"""The trace of a whole step: every operation on the queue or link that it takes, and the critical path. Pure: no
torch."""

from collections.abc import Iterator
from itertools import chain

from zbench.critical.drawn import path_events
from zbench.describe.cluster import Cluster
from zbench.simulator.clock import Timeline
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.trace.file import MOST_EVENTS, Event, write_events
from zbench.trace.named import TokenLists
from zbench.trace.whole_step import track_names, whole_step_events


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
    count = 2 * program.table.shape[1]  # at most: a message is at two ports
    if count > MOST_EVENTS:
        raise ValueError(
            f"trace would hold up to {count} events; at most {MOST_EVENTS}: use fewer nodes or model.num_layers"
        )
    return whole_step_events(program, timeline, cluster)
