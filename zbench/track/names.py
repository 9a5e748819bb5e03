"""What trackers are told of a run, under the names of `compare --json` (docs/metrics.md). Pure: no torch."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from zbench.metrics import Facts, Figures, figures
from zbench.record import Line
from zbench.rows import GROUPS, label

RAW = ("tokens", "max_length", "num_sequences", "num_micro_batches", "num_transfers", "loss")
CURVES = "NIC utilisation"  # of a step's sampled NICs over time
TIMELINE = "timeline"  # the name of a step's trace among a run's files


def titled(start: Line) -> str:
    """What a run is called: system, workload and cluster, with what was changed in them."""
    return " ".join(label(start, group) for group in GROUPS[:3])


def described(start: Line) -> dict[str, Any]:
    """A run's configuration, and what else its numbers depend on."""
    return {**start["config"], "fingerprint": start["fingerprint"], "command": start.get("command")}


def of_step(facts: Facts, line: Line) -> dict[str, float]:
    """A step's figures and raw counts; what it has not is left out."""
    found = {**asdict(figures(facts, [line])), **{name: line.get(name) for name in RAW}}
    return {name: float(value) for name, value in found.items() if value is not None}


def of_run(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a whole run: a row of zbench.rows."""
    names = (*Figures.__dataclass_fields__, "speedup", "micro_batches", "steps", "steps_out_of_memory")
    return {name: float(row[name]) for name in names if row[name] is not None}
