"""The overview of recorded runs, as plain values for the page. Pure: no torch.

Rows are those of zbench.record.rows, series and shares of time are derived from the raw steps; nothing is simulated
again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from zbench.record.flops import Facts
from zbench.record.metrics import counted, figures, nic_curves
from zbench.record.record import Line, Run
from zbench.record.rows import SAME, rows
from zbench.record.step_choices import choice_words
from zbench.record.words import PARTS, cluster_words

# Where a rank's time goes, in the order it is stacked: of steps without an account that closes, then of those with one.
_SHARES = (
    "attention",
    "linear modules",
    "communication inside the node, not hidden",
    "communication across nodes, not hidden",
    "communication, not hidden",
    "parameters and gradients, not hidden",
    "optimizer",
    "waiting",
)
SHARES = (*_SHARES, *(words for words in PARTS.values() if words not in _SHARES))
SERIES = (
    "step_seconds",
    "tokens_per_second",
    "mfu",
    "bound_ratio",
    "nic_utilization",
    "exposed_communication",
    "imbalance",
    "plan_seconds",
    "peak_bytes",
    "loss",
)
_DIGITS = 5  # of every number in the page: more than a chart or a hover shows

Table = dict[str, Any]


def overview(runs: Sequence[Run], convention: str) -> list[Table]:
    """Returns a table for every run: its row, its series, and where its time went (seconds a step, mean over ranks)."""
    out = []
    for run, row in zip(runs, rows(runs, convention), strict=True):
        facts = Facts.of(run.start["facts"])
        each = [asdict(figures(facts, [step], convention)) for step in run.steps]
        count = counted(run.steps)
        shares = [shares_of(step).mean(axis=1) for step in count]
        out.append(
            {
                **row,
                "id": run.start["run"],
                "command": run.start.get("command"),
                "commit": run.start["fingerprint"].get("commit"),
                "dirty": run.start["fingerprint"].get("dirty"),
                "place": cluster_words(run.start["facts"]),
                "num_nodes": run.start["facts"]["num_nodes"],
                "same": _same(run),
                "numbers": [step["step"] for step in run.steps],
                "series": {name: [rounded(one[name]) for one in each] for name in SERIES},
                "shares": rounded(np.mean(shares, axis=0)) if shares else None,
                "bound_seconds": rounded(np.mean([step["bound_seconds"] for step in count])) if shares else None,
            }
        )
    return out


def _same(run: Run) -> str:
    """Names what runs have to have in common to be compared with each other: settings, sources and batches."""
    config, batches = run.start["config"], [(step["step"], step["batch"]) for step in run.steps]
    told = [[config.get(key) for key in SAME], run.start["fingerprint"].get("sources"), batches]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def shares_of(step: Mapping[str, Any]) -> np.ndarray:
    """Returns [len(SHARES), num_ranks]: the seconds of every share; a rank's add up to the step.

    Where a step has an account of its seconds (StepResult.seconds_for), shares are its parts. Else exposed
    communication is told apart by link where the record does so, or is one share ("communication, not hidden"). It is
    counted layer by layer, and layers of a rank that runs ahead overlap: it is cut to what the step leaves. Waiting is
    the rest: nothing computed, nothing under way for this rank.
    """
    found = np.zeros((len(SHARES), len(step["attention_seconds"])))
    if spent := step.get("seconds_for"):
        for name, seconds in spent.items():
            found[SHARES.index(PARTS[name])] = seconds
        return found
    phases: Mapping[str, float] = step.get("phases", {})
    attention, linear, exposed = (
        np.array(step[f"{name}_seconds"], np.float64) for name in ("attention", "linear", "exposed")
    )
    common = np.zeros(len(attention))
    sharing = common + phases.get("gradients", phases.get("reduction", 0.0))
    optimizer = common + phases.get("optimizer", 0.0)
    left = np.maximum(step["seconds"] - attention - linear - sharing - optimizer, 0.0)
    moved = np.clip(exposed - sharing, 0.0, left)
    if step.get("exposed_nic_seconds") is not None:
        across = np.minimum(np.array(step["exposed_nic_seconds"], np.float64), moved)
        inside, either = moved - across, common
    else:
        inside, across, either = common, common, moved
    found[: len(_SHARES)] = attention, linear, inside, across, either, sharing, optimizer, left - moved
    return found


def step_overview(facts: Facts, step: Line) -> Table:
    """Returns what the record itself says of one step, rank by rank and NIC by NIC."""
    names = ("tokens", "num_sequences", "max_length", "num_micro_batches", "seconds", "bound_seconds", "nvlink_bytes")
    return {
        **{name: step.get(name) for name in names},
        "shares": rounded(shares_of(step)),
        "nic_tx_bytes": step["nic_tx_bytes"],
        "nic_rx_bytes": step["nic_rx_bytes"],
        "peak_bytes": step["peak_bytes"],
        "capacity_bytes": step["capacity_bytes"],
        "host_bytes": step.get("host_bytes", []),
        **{name: step.get("expert_rows", {}).get(name) for name in ("dropped", "padded")},
        "chosen": choice_words([step]),
        "notes": step.get("plan_notes", []),
        "valid": step.get("valid", True),
        "curves": _curves(facts, step),
    }


def _curves(facts: Facts, step: Line) -> Table | None:
    """Returns the measured utilisation of NICs over time; None where they were not sampled."""
    if not step.get("nic_series"):
        return None
    lines = {name: rounded(values) for name, values in nic_curves(facts, step).items()}
    return {"interval": step["nic_series"]["interval"], "lines": lines}


def rounded(values: Any) -> Any:
    """Rounds numbers to _DIGITS significant digits, as plain lists; None stays."""
    if values is None:
        return None
    if isinstance(values, (list, tuple, np.ndarray)):
        return [rounded(value) for value in values]
    return float(f"{values:.{_DIGITS}g}") if isinstance(values, (float, np.floating)) else int(values)
