"""Utilisation of emulated NICs, as their counters say, while one training step ran: every system on one batch."""

import numpy as np

from zbench.describe.arrays import Floats
from zbench.figures.nics import BINS, Busy, draw
from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import measured_stamp as where
from zbench.figures.style import WIDTH
from zbench.record.metrics import counted

__all__ = ["EXPERIMENTS", "PANELS", "RECORD", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("desk_systems", "desk_simulated")
RECORD = "desk_systems"
PANELS = (5, 1)
SIZE = (WIDTH, 9.2)
WORKLOAD = "prolong64k_2k"  # on the others little crosses nodes but gradients


def table(records: Records) -> list[Busy]:
    """Returns NICs' utilisation in each measured run's first step that counts, or its first where none does.

    Raises:
        ValueError: nothing was sampled.
    """
    runs = [
        run for run in records.runs if not run.start["facts"]["simulated"] and group_choice(run, "workload") == WORKLOAD
    ]
    if not runs or not all(step.get("nic_series") for run in runs for step in run.steps):
        raise ValueError(f"figure desk_nics has no run on {WORKLOAD} whose NICs were sampled in every step")
    steps = [[*counted(run.steps), *run.steps][0] for run in runs]
    longest = max(step["seconds"] for step in steps)
    found = []
    for run, step in zip(runs, steps, strict=True):
        facts, series = run.start["facts"], step["nic_series"]
        both = np.add(series["tx"], series["rx"]) / (2 * facts["nic_bandwidth"] * series["interval"])
        share = _binned(both, series["interval"], longest)
        mean = float(share.sum() * longest / BINS / len(share) / step["seconds"])
        name = group_choice(run, "system") + ("" if step["valid"] else " (machine too busy)")
        found.append(Busy(name, share, step["seconds"], longest, mean, facts["nics_per_node"]))
    return sorted(found, key=lambda one: -one.seconds)


def _binned(curve: Floats, interval: float, longest: float) -> Floats:
    """Returns [num_nics, samples] of `interval` seconds each as [num_nics, BINS] of equal spans of `longest`
    seconds."""
    edges = np.linspace(0, longest, BINS + 1)
    moments = interval * np.arange(curve.shape[1] + 1)
    sums = np.concatenate([np.zeros((len(curve), 1)), np.cumsum(curve, axis=1)], axis=1) * interval
    reached = np.stack([np.interp(edges, moments, nic) for nic in sums])
    return np.diff(reached, axis=1) * (BINS / longest)
