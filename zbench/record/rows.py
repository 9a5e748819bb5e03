"""A row of figures for every recorded run, and the names that runs go by in tables. Pure: no torch.

Every figure is derived from the raw records, nothing is read back that was derived before.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from zbench.describe.degrees import NESTED
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.describe.worlds import NOMINAL
from zbench.record.flops import Facts
from zbench.record.metrics import figures, memory_verdict
from zbench.record.record import Line, Run
from zbench.record.speedup import speedup, speedup_interval
from zbench.record.step_choices import choice_figures, choice_words
from zbench.record.words import typed

GROUPS = ("system", "workload", "cluster", "model", "executor", "world")
# Runs with these of their configuration in common are comparable; their batches' digests must agree too.
SAME = (
    "workload",
    "cluster",
    "model",
    *STRATEGY_GROUPS,
    "executor",
    "world",
    "planners_see",
    "mask",
    "seed",
    "tokens_per_gpu",
    "free_groups",
)
CALLED = {
    "planners": "planners_see",
    "free": "free_groups",
}  # columns of a table whose key of a run has another name
SHOWN = 10  # characters of a digest of sources
_SETTING = ("planners", "mask", "tokens_per_gpu", "free", "seed", "steps", "check")

Row = dict[str, Any]


def rows(runs: Sequence[Run], convention: str = "zbench") -> list[Row]:
    """Returns one row a run, in the given order."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_kind(run.start, run.start["config"].get("system"), run.start["fingerprint"]), []).append(run)
    found = [_row(number, run, alike, convention) for number, run in enumerate(runs, 1)]
    return [{**row, **ends} for row, ends in zip(found, _over_worlds(runs, found), strict=True)]


def label(start: Line, group: str) -> str:
    """Writes a group's choice and what was changed in it: 'a800_4x8 num_nodes=16'. Nested degrees of sharding are told
    by the choice that has them, 'llama_7b sharding=hpz', where these are its own."""
    config = start["config"]
    choices, changes = config.get("choices", {}), config.get("changes", {})
    changed = dict(changes.get(group, {}))
    has_degrees = str(changed.get("sharding", "")).startswith(f"{NESTED}:")
    own = any(key.split(".")[0] in ("strategy", "degrees", "bits") for key in changes.get("sharding", {}))
    if has_degrees and not own and choices.get("sharding"):
        changed["sharding"] = choices["sharding"]
    return " ".join([str(choices.get(group)), *(f"{key}={value}" for key, value in changed.items())])


def told_keys(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns the values of a run's own keys, by the names that they have as columns of tables."""
    return {name: config.get(CALLED.get(name, name)) for name in names}


def setting(start: Line) -> dict[str, str]:
    """Returns everything but system and workload that has to be equal for runs to be averaged, or one to rank above
    another."""
    config = start["config"]
    return {
        **{group: label(start, group) for group in GROUPS[2:]},
        **{name: typed(value) for name, value in told_keys(config, _SETTING).items()},
        "sources": str(start["fingerprint"].get("sources"))[:SHOWN],
    }


def _baseline_of(run: Run, alike: dict[str, list[Run]]) -> Run | None:
    """Returns the run of `run`'s baseline on the same batches, by the same sources: the last one started before it, if
    any."""
    baseline = run.start.get("baseline")
    if baseline is None:
        return None
    if run.start["config"].get("system") == baseline["system"]:
        return run
    others = alike.get(_kind(run.start, baseline["system"], baseline), [])
    earlier = [other for other in others if other.start["time"] <= run.start["time"]]
    later = [other for other in others if other.start["time"] > run.start["time"]]
    return next((other for other in (*earlier[::-1], *later) if speedup(run.steps, other.steps) is not None), None)


def _gain(run: Run, reference: Run | None) -> Row:
    """Returns the speed-up over `reference`, its interval, and whether it can be told from none.

    What was simulated is what it is on those batches. What was measured is told where its interval leaves out 1.
    """
    value = speedup(run.steps, reference.steps) if reference else None
    ends = speedup_interval(run.steps, reference.steps) if reference and reference is not run else None
    low, high = ends or (None, None)
    exact = bool(run.start["facts"].get("simulated")) or reference is run
    told = None if value is None else exact or (low is not None and high is not None and not low <= 1 <= high)
    return {"speedup": value, "speedup_low": low, "speedup_high": high, "speedup_told": told}


def _over_worlds(runs: Sequence[Run], found: Sequence[Row]) -> list[Row]:
    """Returns, for every row, the least and the greatest speed-up over all worlds of the same run, and how many worlds
    those are.

    None but for nominal runs of which there are other worlds. Of several runs in a world the last counts; it has to
    have finished, on the same batches.
    """
    worlds: dict[str, dict[str, float]] = {}
    kinds = [_kind_in_any_world(run) for run in runs]
    for kind, run, row in zip(kinds, runs, found, strict=True):
        if run.status == "finished" and row["speedup"] is not None:
            worlds.setdefault(kind, {})[row["world"]] = row["speedup"]
    out = []
    for kind, row in zip(kinds, found, strict=True):
        values = worlds.get(kind, {}) if row["world"] == NOMINAL and row["speedup"] is not None else {}
        gains = [row["speedup"], *(value for world, value in values.items() if world != NOMINAL)]
        ends = (min(gains), max(gains), len(gains)) if len(gains) > 1 else (None, None, None)
        out.append(dict(zip(("speedup_least", "speedup_greatest", "worlds"), ends, strict=True)))
    return out


def _kind_in_any_world(run: Run) -> str:
    """Names what a run has to have in common with another for the two to differ in their worlds alone."""
    start, config = run.start, run.start["config"]
    apart = [config.get(key) for key in ("steps", "check")], start.get("baseline")
    batches = [(step["step"], step["batch"]) for step in run.steps]
    return json.dumps(
        [_kind(start, config.get("system"), start["fingerprint"], "world"), apart, batches], sort_keys=True
    )


def _kind(start: Line, system: Any, told: Line, but: str = "") -> str:
    """Names what a run of `system` in the circumstances of `start` has to have in common with another, `but` one key.

    told: where versions of the packages that the system uses may be.
    """
    same = [start["config"].get(key) for key in SAME if key != but]
    return json.dumps([system, told.get("packages"), same, start["fingerprint"].get("sources")], sort_keys=True)


def _row(number: int, run: Run, alike: dict[str, list[Run]], convention: str) -> Row:
    start, config = run.start, run.start["config"]
    derived = figures(Facts.of(start["facts"]), run.steps, convention)
    reference = _baseline_of(run, alike)
    gain = _gain(run, reference)
    counts = [step["num_micro_batches"] for step in run.steps if "num_micro_batches" in step]
    return {
        "run": number,
        **{group: label(start, group) for group in GROUPS},
        **told_keys(config, ("planners", "mask", "free", "seed", "tokens_per_gpu")),
        "steps": len(run.steps),
        "steps_asked": config.get("steps"),
        "sources": str(start["fingerprint"].get("sources"))[:SHOWN],
        "status": run.status,
        "message": "" if run.end is None else str(run.end.get("message", "")),
        **asdict(derived),
        "micro_batches": mean(counts) if counts else None,
        **choice_figures(run.steps),
        "chosen": choice_words(run.steps),
        "steps_out_of_memory": sum(bool(step["out_of_memory"]) for step in run.steps),
        "verdict": memory_verdict(derived),
        **gain,
        "baseline": start["baseline"]["name"] if start.get("baseline") else None,
        "mfu_convention": convention,
        "simulated": start["facts"].get("simulated"),
        "synchronous": start["facts"].get("synchronous", True),
        "num_ranks": start["facts"]["num_ranks"],
        "num_gpus": start["facts"]["num_gpus"],
        "time": start["time"],
        "out": run.path,
        "line": run.line,
    }
