"""How busy emulated NICs were, as their counters say, while one training step ran: every system on one batch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zbench.figures.nics import BINS, Busy, draw
from zbench.figures.records import Records, choice
from zbench.figures.stamp import measured as where
from zbench.figures.style import WIDTH
from zbench.metrics import Facts, counted, nic_curves

__all__ = ["EXPERIMENTS", "PANELS", "RECORD", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("desk_systems", "desk_simulated")
RECORD = "desk_systems"
PANELS = (5, 1)
SIZE = (WIDTH, 9.2)
WORKLOAD = "prolong64k_2k"  # on the others little crosses nodes but gradients


def table(records: Records) -> list[Busy]:
    """Of each measured run's first step that counts. Raises ValueError where a run has none, or was not sampled."""
    runs = [run for run in records.runs if not run.start["facts"]["simulated"] and choice(run, "workload") == WORKLOAD]
    steps = [next((step for step in counted(run.steps) if step.get("nic_series")), None) for run in runs]
    if not runs or None in steps:
        raise ValueError(f"figure desk_nics has a run on {WORKLOAD} without a step that counts and was sampled")
    longest = max(step["seconds"] for step in steps if step)
    found = []
    for run, step in zip(runs, steps, strict=True):
        assert step is not None
        curves, interval = nic_curves(Facts.of(run.start["facts"]), step), step["nic_series"]["interval"]
        ways = [np.array([curve for name, curve in curves.items() if name.endswith(way)])
                for way in ("sends", "receives")]  # fmt: skip
        share = _binned((ways[0] + ways[1]) / 2, interval, longest)
        mean = float(share.sum() * longest / BINS / len(share) / step["seconds"])
        found.append(Busy(choice(run, "system"), share, step["seconds"], longest, mean,
                          run.start["facts"]["nics_per_node"]))  # fmt: skip
    return sorted(found, key=lambda one: -one.seconds)


def _binned(curve: NDArray[np.float64], interval: float, longest: float) -> NDArray[np.float64]:
    """[num_nics, samples] of `interval` seconds each as [num_nics, BINS] of equal spans of `longest` seconds."""
    edges = np.linspace(0, longest, BINS + 1)
    moments = interval * np.arange(curve.shape[1] + 1)
    sums = np.concatenate([np.zeros((len(curve), 1)), np.cumsum(curve, axis=1)], axis=1) * interval
    reached = np.stack([np.interp(edges, moments, nic) for nic in sums])
    return np.diff(reached, axis=1) * (BINS / longest)
