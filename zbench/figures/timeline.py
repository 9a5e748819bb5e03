"""A ring step and a zeppelin step of two layers: what every GPU computes and every NIC carries when."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from zbench.figures.records import Event, Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, WIDTH, YELLOW, tokens

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("timeline",)
PANELS = (4, 1)
SIZE = (WIDTH, 10.5)
_KINDS = {  # of an event: colour, what it is
    "matmul": ("#c4c4c4", "linear modules"),
    "attend forward": (SKY, "attention forward"),
    "attend backward": (BLUE, "attention backward"),
    "head": (GREEN, "output and loss"),
    "keys and values": (ORANGE, "NIC: keys, values"),
    "gradients of keys and values": (VERMILLION, "NIC: their gradients"),
    "gather parameters": (YELLOW, "NIC: parameters"),
    "reduce gradients": (PURPLE, "NIC: gradients"),
    "optimizer": (BLACK, "optimizer"),
}
_OF_A_LAYER = {"elementwise": "matmul"}  # norms and activations belong to the linear modules
_TRACK = re.compile(r"(GPU|NIC) \d+( sends| receives)?")  # what GPUs send each other inside a node is not drawn


@dataclass(frozen=True, slots=True)
class Track:
    """One line of the timeline, a GPU's computes or a direction of a NIC: (kind, begin, seconds) of what it does."""

    name: str
    spans: list[tuple[str, float, float]]


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One run's tracks: GPUs, NICs sending and receiving; seconds until the last of it ends."""

    system: str
    length: int
    sequences: int
    tracks: list[Track]
    seconds: float


def table(records: Records) -> list[StepTimeline]:
    """Returns the steps of one length side by side, the longest length first."""
    out = []
    for run in records.runs:
        tracks = _tracks(records.trace(run))
        end = max((begin + seconds for track in tracks for _, begin, seconds in track.spans), default=0.0)
        length = int(run.start["config"]["workload"]["length"])
        out.append(StepTimeline(group_choice(run, "system"), length, run.steps[0]["num_sequences"], tracks, end))
    return sorted(out, key=lambda step: -step.length)


def _tracks(events: Sequence[Event]) -> list[Track]:
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and _TRACK.fullmatch(event["args"]["name"])
    }
    tracks = {place: Track(name, []) for place, name in sorted(named.items(), key=lambda one: (_order(one[1]), one[0]))}
    for event in events:
        if event["ph"] == "X" and (event["pid"], event["tid"]) in tracks:
            span = _kind(event), event["ts"] * 1e-6, event["dur"] * 1e-6
            tracks[event["pid"], event["tid"]].spans.append(span)
    return list(tracks.values())


def _kind(event: Event) -> str:
    """Returns what an event is drawn as."""
    name = str(event["name"])
    first = name.partition(" ")[0]
    if event["args"]["template"] == "head" and first in ("matmul", "elementwise"):
        return "head"
    return name if name in _KINDS else _OF_A_LAYER.get(first, first)


def _order(name: str) -> int:
    return ("GPU", "NIC").index(name.split()[0])


def draw(axes: Sequence[Axes], table: Sequence[StepTimeline]) -> None:
    """Draws the timelines."""
    for panel, step in zip(axes, table, strict=True):
        orders = [_order(track.name) for track in step.tracks]
        height = len(orders) + 1
        rows = [[index + kind for index, other in enumerate(orders) if other == kind] for kind in range(2)]
        for index, track in enumerate(step.tracks):
            row = index + orders[index]  # a gap between GPUs and NICs
            for kind, (colour, _) in _KINDS.items():
                spans = [(1e3 * begin, 1e3 * seconds) for name, begin, seconds in track.spans if name == kind]
                panel.broken_barh(spans, (row, 0.86), facecolors=colour, lw=0, rasterized=True)
        middles = [(row[0] + row[-1] + 0.86) / 2 for row in rows]
        longest = max(other.seconds for other in table if other.length == step.length)
        panel.set_xlim(0, 1.01e3 * longest)
        panel.set_ylim(height, 0)
        panel.set_yticks(middles, ["GPUs", "NICs,\nsend and\nreceive"])
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
