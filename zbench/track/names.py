"""Names for trackers what they are told of a run, as `compare --json` does (docs/metrics.md). Pure: no torch."""

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from zbench.interfaces.protocols import Tracked
from zbench.record.flops import Facts
from zbench.record.metrics import Figures, figures
from zbench.record.record import Line
from zbench.record.rows import GROUPS, label, told_keys
from zbench.record.step_choices import CHOICES, choice_figures
from zbench.record.words import told_settings

RAW = ("tokens", "max_length", "num_sequences", "num_micro_batches", "num_transfers", "loss")
CURVES = "NIC utilisation"  # of a step's sampled NICs over time
TIMELINE = "timeline"  # the name of a step's trace among a run's files
_TAG = 64  # characters of a tag, at most what wandb takes


def tracked(start: Line) -> Tracked:
    """Returns what a tracker is told of the run of a start line."""
    choices = start["config"].get("choices", {})
    tags = [str(choices[group])[:_TAG] for group in GROUPS[:4] if choices.get(group)]
    settings = {"world": label(start, "world"), **told_keys(start["config"], ("planners", "mask"))}
    apart = [f"{name} {settings[name]}" for name in told_settings(settings, tuple(settings))]
    title = " ".join([*(label(start, group) for group in GROUPS[:3]), *apart])
    told = {**start["config"], "fingerprint": start["fingerprint"], "command": start.get("command")}
    return Tracked(start["run"], title, _group(start), str(choices.get("executor")), tuple(dict.fromkeys(tags)), told)


def _group(start: Line) -> str:
    """Returns the group of a run as recorded. Runs from before records had groups have their experiment, or their
    command, in common."""
    told = start.get("group") or start["config"].get("choices", {}).get("experiment")
    return str(told) if told else f"command {sha256(str(start.get('command')).encode()).hexdigest()[:8]}"


def step_figures(facts: Facts, line: Line) -> dict[str, float]:
    """Returns a step's figures and raw counts; what it has not is left out."""
    derived = figures(facts, [line])
    found = {**asdict(derived), **choice_figures([line]), **{name: line.get(name) for name in RAW}}
    nics = {} if derived.nic_utilization is None else nic_utilisation(facts, line)
    return {**{name: float(value) for name, value in found.items() if value is not None}, **nics}


def nic_utilisation(facts: Facts, line: Line) -> dict[str, float]:
    """Returns, by NIC and direction, the share of what it could have carried in the step: {"nic/node0/nic1/tx": 0.25,
    ...}."""
    whole = facts.nic_bandwidth * line["seconds"]
    return {
        f"nic/node{nic // facts.nics_per_node}/nic{nic % facts.nics_per_node}/{way}": size / whole
        for way in ("tx", "rx")
        for nic, size in enumerate(line[f"nic_{way}_bytes"])
    }


def of_run(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the figures of a whole run: a row of zbench.record.rows."""
    gain = ("speedup", "speedup_low", "speedup_high")
    names = (*Figures.__dataclass_fields__, *CHOICES, *gain, "micro_batches", "steps", "steps_out_of_memory")
    return {name: float(row[name]) for name in names if row[name] is not None}
