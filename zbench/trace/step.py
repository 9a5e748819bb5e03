"""One simulated step as a Chrome trace: every event of it, and the file. Pure: no torch."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from zbench.cost.cost import Cost
from zbench.plans.plan import Plan
from zbench.trace.file import Event, write_events
from zbench.trace.ranks import rank_events
from zbench.trace.stages import pipeline_events, stage_events
from zbench.trace.tracks import names

MOST_EVENTS = 4_000_000  # about 600 MB of json, what trace viewers still open


def write_trace(path: str | Path, cost: Cost, plans: tuple[Plan, ...]) -> int:
    """Writes the step's events to `path` and returns their number; the file appears only when complete.

    Raises:
        ValueError: more than MOST_EVENTS events, or the file cannot be written.
    """
    layers = cost.model.num_layers
    count = sum(layers * (len(plan.forward) + len(plan.backward)) for plan in plans)
    if count > MOST_EVENTS:
        raise ValueError(f"trace would hold {count} events; at most {MOST_EVENTS}: use fewer nodes or model.num_layers")
    tracks = names(cost.whole, gpus=cost.tp, nics=cost.bonded_nics)
    return write_events(path, True, cost.whole, chain(tracks, events(plans, cost)))


def events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Yields every event of the step, micro-batch after micro-batch: what `args` says depends on its name."""
    if cost.pp > 1:
        yield from stage_events(plans, cost)
    else:
        yield from (rank_events if plans[0].pipelines is None else pipeline_events)(plans, cost)
