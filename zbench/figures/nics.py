"""Shares of time in which attention's messages keep each NIC busy: ring, zeppelin without routing, zeppelin."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from zbench.describe.arrays import Floats
from zbench.figures.records import Event, Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("nics", "nics_direct")
PANELS = (3, 1)
SIZE = (WIDTH, 8.2)
BINS = 200


@dataclass(frozen=True, slots=True)
class Busy:
    """The utilisation of NICs under one system. share: [num_nics, BINS], of each of BINS equal spans of `longest`
    seconds in which a NIC moves something of attention, mean of both directions. seconds: when this system's last event
    ends; mean: over NICs until then."""

    name: str
    share: Floats
    seconds: float
    longest: float
    mean: float
    nics_per_node: int


def table(records: Records) -> list[Busy]:
    """Returns NICs' utilisation under every recorded system, the slowest first."""
    traces = [records.trace(run) for run in records.runs]
    ends = [max(event["ts"] + event["dur"] for event in trace if event["ph"] == "X") * 1e-6 for trace in traces]
    longest = max(ends)
    out = []
    for run, trace, end in zip(records.runs, traces, ends, strict=True):
        facts = run.start["facts"]
        share = _shares(trace, facts["num_nics"], longest)
        mean = float(share.sum() * longest / BINS / facts["num_nics"] / end)
        out.append(
            Busy(
                _name(run.start["config"]["system"], group_choice(run, "system")),
                share,
                end,
                longest,
                mean,
                facts["nics_per_node"],
            )
        )
    return sorted(out, key=lambda one: -one.seconds)


def _name(system: dict[str, object], name: str) -> str:
    return f"{name} without routing" if system.get("route") is False else name


def _shares(events: Sequence[Event], num_nics: int, longest: float) -> Floats:
    """Returns, for every span of time, the part that NIC n sends or receives, halved: [num_nics, BINS]. A channel is
    its share of it."""
    channels: Counter[int] = Counter()  # of both directions
    nic_of: dict[tuple[int, int], int] = {}
    for event in events:
        if event["name"] == "thread_name" and (named := re.match(r"NIC (\d+)", event["args"]["name"])):
            nic_of[event["pid"], event["tid"]] = int(named[1])
            channels[int(named[1])] += 1
    edges = np.linspace(0, longest, BINS + 1)
    out = np.zeros((num_nics, BINS))
    for event in events:
        nic = nic_of.get((event["pid"], event["tid"])) if event["ph"] == "X" else None
        if nic is not None and event["args"]["for"] == "attention":
            begin, end = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
            share = 2 * event["args"].get("channels", 1) / channels[nic]
            out[nic] += share * np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0, None)
    return out / (2 * longest / BINS)


def draw(axes: Sequence[Axes], table: Sequence[Busy]) -> None:
    """Draws the utilisation over time."""
    for panel, one in zip(axes, table, strict=True):
        count = len(one.share)
        image = panel.imshow(
            100 * one.share,
            aspect="auto",
            interpolation="nearest",
            cmap="cividis",
            vmin=0,
            vmax=100,
            extent=(0, 1e3 * one.longest, count - 0.5, -0.5),
        )
        if one.seconds < one.longest:
            panel.axvspan(1e3 * one.seconds, 1e3 * one.longest, color="white", lw=0)
        for node in range(1, count // one.nics_per_node):
            panel.axhline(node * one.nics_per_node - 0.5, color="white", lw=0.8)
        middles = np.arange(count // one.nics_per_node) * one.nics_per_node + (one.nics_per_node - 1) / 2
        panel.set_yticks(middles, [f"node {node}" for node in range(len(middles))])
        panel.tick_params(axis="y", length=0)
        busy = f"NICs busy {one.mean:.0%}" if one.mean else "nothing crosses nodes"
        panel.set_title(f"{one.name}: {1e3 * one.seconds:.0f} ms, {busy}")
        panel.set_xlim(0, 1e3 * one.longest)
    axes[-1].set_xlabel("ms")
    axes[0].figure.colorbar(
        image, ax=list(axes), location="top", shrink=0.6, aspect=30, label="busy, % of both directions; a row a NIC"
    )
