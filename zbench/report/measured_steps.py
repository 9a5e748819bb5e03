"""A measured whole step's own trace (zbench.runtime.measured_steps) as columns for the page. Pure: no torch."""

from collections.abc import Sequence

from zbench.report.about import TokenBlocks
from zbench.report.columns import MOST_EVENTS, Columns
from zbench.report.inside import name_with_pass
from zbench.report.overview import Table
from zbench.trace.file import Event


def is_of_whole_steps(events: Sequence[Event]) -> bool:
    """Returns whether a measured trace is of a whole step, and not of attention's plans."""
    return any("template" in event.get("args", {}) for event in events)


def measured_step_timeline(events: Sequence[Event], blocks: TokenBlocks, num_gpus: int) -> Table | None:
    """Makes the table that zbench.report.inside.timeline makes, of what the ranks noted; None where there are more than
    MOST_EVENTS events. A link's lanes, which traces of before have, are one track.

    blocks: by which attends name what they are about. num_gpus: of the cluster; places after them are memories of
    nodes.
    """
    drawn = [event for event in events if event["ph"] == "X"]
    if len(drawn) > MOST_EVENTS:
        return None
    titles = {
        (one["pid"], one["tid"]): one["args"]["name"].partition(", lane")[0]
        for one in events
        if one["name"] == "thread_name"
    }
    tracks = list(dict.fromkeys((place[0], titles[place]) for place in sorted(titles)))
    number = {track: at for at, track in enumerate(tracks)}
    columns = Columns()
    for event in drawn:
        args = event["args"]
        route = [args["from"], args["to"]] if "from" in args else []
        track = number[event["pid"], titles[event["pid"], event["tid"]]]
        of = args.get("micro_batch", -1), args.get("layer", -1)
        span = event["ts"], event["dur"]
        columns.add(track, name_with_pass(event), span, of, blocks.of_event(event), args.get("bytes", 0), route)
    return {
        "measured": True,
        "tracks": [title for _, title in tracks],
        "per_node": sum(node == tracks[0][0] for node, _ in tracks),
        "gpus": num_gpus,
        **columns.table(blocks.plans),
    }
