"""Recorded runs as cells, a system on a workload in a world, and what one gains over another. Pure: no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot
from typing import Any

from zbench.describe.strategy import MODEL_FIELDS
from zbench.record.interval import log_ratio
from zbench.record.record import Run
from zbench.record.rows import label, setting


@dataclass(frozen=True, slots=True)
class Cell:
    """A system on a workload: seconds and bound of every step, batches' digests, whether any was out of memory; what it
    chose of the model's strategy otherwise than it was set, in words."""

    seconds: tuple[float, ...]
    bound: tuple[float, ...]
    digests: tuple[str, ...]
    out_of_memory: bool
    layout: str = ""

    @staticmethod
    def of(run: Run) -> "Cell":
        """Makes the cell of a recorded run."""
        column = {name: tuple(step[name] for step in run.steps) for name in ("seconds", "bound_seconds", "batch")}
        full = any(step["out_of_memory"] for step in run.steps)
        chosen, config = (run.start.get("chosen") or {}).get("model", {}), run.start["config"]
        layout = ", ".join(f"{key}={value}" for key, value in chosen.items() if value != _configured(config, key))
        return Cell(column["seconds"], column["bound_seconds"], column["batch"], full, layout)

    @property
    def ratio(self) -> float:
        """The bound's seconds over the steps' seconds."""
        return sum(self.bound) / sum(self.seconds)


_SIMULATED = "zbench.simulated.executor.Simulated"  # the executor that titles call simulated
Place = tuple[str, ...]  # cluster, model, simulated or measured and by what, and what else differs, worlds aside
Systems = Mapping[str, Mapping[str, Cell]]  # system -> workload
Worlds = Mapping[str, Systems]  # by label


def cells_by_world(runs: Sequence[Run], mix_sources: bool = False) -> Mapping[Place, Worlds]:
    """Returns the last complete run of every system and workload in every world, runs of other settings in other
    places.

    mix_sources: runs that other sources made may stand in one place.
    """
    whole = [(run, setting(run.start)) for run in runs if run.status == "finished" and run.steps]
    titled = {"cluster", "model", "executor", "world", *(["sources"] if mix_sources else [])}
    differing = [key for key in (whole[0][1] if whole else ()) if len({of[key] for _, of in whole}) > 1]
    found: dict[Place, dict[str, dict[str, dict[str, Cell]]]] = {}
    for run, of in whole:
        place = (
            of["cluster"],
            of["model"],
            _kind(run, of["executor"]),
            *(f"{key} {of[key]}" for key in differing if key not in titled),
        )
        cells = found.setdefault(place, {}).setdefault(of["world"], {}).setdefault(label(run.start, "system"), {})
        cells[label(run.start, "workload")] = Cell.of(run)
    return found


def _kind(run: Run, executor: str) -> str:
    """Says whether a run was simulated or measured, and by which executor where that is not executor=simulated."""
    if not run.start["facts"]["simulated"]:
        return f"measured, executor {executor}"
    target = run.start["config"].get("executor", {}).get("_target_", _SIMULATED)
    return "simulated" if target == _SIMULATED else f"simulated, executor {executor}"


def _configured(config: Mapping[str, Any], field: str) -> Any:
    """Returns what a field of the model was set to: by a group of the strategy, or by the model's yaml."""
    group, key = MODEL_FIELDS.get(field, ("model", field))
    return config.get(group, {}).get(key)


def gain(mine: Mapping[str, Cell], other: Mapping[str, Cell]) -> tuple[float, float | None] | None:
    """Returns the speed over another system's, (how many times as fast as `other`, the factor that its interval reaches
    either way), over workloads of both.

    It is the geometric mean. The interval is of log ratios over batches, paired, workload by workload, errors added in
    squares; None where a workload has too few batches for one (zbench.record.interval).

    Raises:
        ValueError: the two saw different batches of a workload.
    """
    both = common_workloads(mine, other)
    if not both:
        return None
    found = []
    for name in both:
        if mine[name].digests != other[name].digests:
            raise ValueError(f"the systems saw different batches of {name}; they can only be compared on the same ones")
        found.append(log_ratio(mine[name].seconds, other[name].seconds))
    widths = [half for _, half in found if half is not None]
    factor = exp(hypot(*widths) / len(both)) if len(widths) == len(both) else None
    return exp(sum(log for log, _ in found) / len(both)), factor


def common_workloads(mine: Mapping[str, Cell], other: Mapping[str, Cell]) -> list[str]:
    """Returns the workloads of both on which neither was out of memory."""
    return [name for name in mine if name in other and not mine[name].out_of_memory and not other[name].out_of_memory]
