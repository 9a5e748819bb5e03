"""Two layers of a ring step and of a zeppelin step: what every GPU and NIC does when."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from zbench.figures.records import Event, Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, WIDTH, YELLOW, tokens
from zbench.runtime.clocks.events import OPTIMIZER, REDUCE
from zbench.trace.tracks import GATHER, SHOWN

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("timeline",)
PANELS = (4, 1)
SIZE = (WIDTH, 10.5)
_KINDS = {  # of an event's name: colour, what it is
    "linear": ("#c4c4c4", "linear modules"),
    "attend forward": (SKY, "attention forward"),
    "attend backward": (BLUE, "attention backward"),
    "head": (GREEN, "output and loss"),
    "kv": (ORANGE, "NIC: keys, values"),
    "dkv": (VERMILLION, "NIC: their gradients"),
    GATHER: (YELLOW, "parameters, all links"),
    REDUCE: (PURPLE, "gradients, all links"),
    SHOWN["backward"]: ("#e8e8e8", "waiting for gradients"),
    OPTIMIZER: (BLACK, "optimizer"),
}


@dataclass(frozen=True, slots=True)
class Track:
    """One line of the timeline, a GPU or a direction of a NIC: (kind, begin, seconds) of what it does."""

    name: str
    spans: list[tuple[str, float, float]]


@dataclass(frozen=True, slots=True)
class Step:
    """One run's tracks: GPUs, NICs sending and receiving, collectives; seconds until the last of it ends."""

    system: str
    length: int
    sequences: int
    tracks: list[Track]
    seconds: float


def table(records: Records) -> list[Step]:
    """Returns the steps of one length side by side, the longest length first."""
    out = []
    for run in records.runs:
        tracks = _tracks(records.trace(run))
        end = max((begin + seconds for track in tracks for _, begin, seconds in track.spans), default=0.0)
        length = int(run.start["config"]["workload"]["length"])
        out.append(Step(group_choice(run, "system"), length, run.steps[0]["num_sequences"], tracks, end))
    return sorted(out, key=lambda step: -step.length)


def _tracks(events: Sequence[Event]) -> list[Track]:
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = {place: Track(name, []) for place, name in sorted(named.items(), key=lambda one: (_order(one[1]), one[0]))}
    for event in events:
        if event["ph"] == "X":
            kind = "linear" if event["name"].startswith("linear") else event["name"]
            tracks[event["pid"], event["tid"]].spans.append((kind, event["ts"] * 1e-6, event["dur"] * 1e-6))
    return list(tracks.values())


def _order(name: str) -> int:
    return ("GPU", "NIC", "parameters,").index(name.split()[0])


def draw(axes: Sequence[Axes], table: Sequence[Step]) -> None:
    """Draws the timelines."""
    for panel, step in zip(axes, table, strict=True):
        orders = [_order(track.name) for track in step.tracks]
        height = len(orders) + 2
        rows = [[index + kind for index, other in enumerate(orders) if other == kind] for kind in range(3)]
        for index, track in enumerate(step.tracks):
            row = index + orders[index]  # gaps between GPUs, NICs and collectives
            for kind, (colour, _) in _KINDS.items():
                spans = [(1e3 * begin, 1e3 * seconds) for name, begin, seconds in track.spans if name == kind]
                panel.broken_barh(spans, (row, 0.86), facecolors=colour, lw=0, rasterized=True)
        middles = [(row[0] + row[-1] + 0.86) / 2 for row in rows]
        if not any(track.spans for track, kind in zip(step.tracks, orders, strict=True) if kind == 1):
            panel.text(0, middles[1], "  nothing of attention crosses nodes", va="center", color="#444444")
        longest = max(other.seconds for other in table if other.length == step.length)
        panel.set_xlim(0, 1.01e3 * longest)
        panel.set_ylim(height, 0)
        panel.set_yticks(middles, ["GPUs", "NICs,\nsend and\nreceive", "collectives"])
        panel.tick_params(axis="y", length=0)
        what = (
            f"one document of {tokens(step.length)}"
            if step.sequences == 1
            else (f"{step.sequences} documents of {tokens(step.length)}")
        )
        panel.set_title(f"{step.system}, {what}: {1e3 * step.seconds:.0f} ms")
    axes[-1].set_xlabel("ms")
    handles = [Patch(color=colour, label=word) for colour, word in _KINDS.values()]
    axes[0].figure.legend(handles=handles, loc="outside upper left", ncols=2, handlelength=1, columnspacing=1)
