"""Training steps measured on emulated nodes: speed-up over ring, and what the simulator says of the same steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zbench.figures.records import Records, choice
from zbench.figures.stamp import measured as where
from zbench.figures.style import SYSTEMS, WIDTH
from zbench.metrics import counted

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("desk_systems", "desk_simulated")
PANELS = (2, 1)
SIZE = (WIDTH, 7.6)


@dataclass(frozen=True, slots=True)
class Pair:
    """A system on a workload: mean seconds a step, measured and simulated, on the same batches. speedup: over ring,
    measured and simulated."""

    workload: str
    system: str
    measured: float
    simulated: float
    speedup: tuple[float, float]

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1


def table(records: Records) -> list[Pair]:
    """Raises ValueError where a measured run has no simulated one, no step that counts, or no baseline."""
    found: dict[tuple[str, str], dict[bool, tuple[float, float]]] = {}
    for run, row in zip(records.runs, records.rows, strict=True):
        key = (choice(run, "workload"), choice(run, "system"))
        if not counted(run.steps) or row["speedup"] is None:
            raise ValueError(f"figure desk_systems has no step of {key[1]} on {key[0]} that counts: measure again")
        found.setdefault(key, {})[row["simulated"]] = (row["step_seconds"], row["speedup"])
    for key, both in found.items():
        if len(both) != 2:
            raise ValueError(f"figure desk_systems has {key[1]} on {key[0]} not both measured and simulated")
    return [Pair(*key, both[False][0], both[True][0], (both[False][1], both[True][1])) for key, both in found.items()]


def draw(axes: Sequence[Axes], table: Sequence[Pair]) -> None:
    gains, fidelity = axes
    workloads = list(dict.fromkeys(one.workload for one in table))
    systems = [name for name in dict.fromkeys(one.system for one in table) if name != "ring"]
    high = 0.8 / len(systems)
    for one in table:
        if one.system == "ring":
            continue
        at = workloads.index(one.workload) + high * (systems.index(one.system) - (len(systems) - 1) / 2)
        gains.barh(at, one.speedup[0], 0.9 * high, color=SYSTEMS[one.system][0])
        gains.plot([one.speedup[1]], [at], "|", color="black", ms=9, mew=1.6)
        gains.text(max(one.speedup) + 0.05, at, f"{one.speedup[0]:.2f}", va="center", fontsize=8)
    gains.axvline(1, color="black", lw=1)
    gains.set_yticks(range(len(workloads)), workloads)
    gains.set_ylim(len(workloads) - 0.5, -0.5)
    gains.set_xlim(0, 1.12 * max(max(one.speedup) for one in table))
    gains.set_xlabel("speed-up over ring (1), whole training steps")
    gains.grid(axis="x")
    _fidelity(fidelity, table)
    handles = [Line2D([], [], color=SYSTEMS[name][0], lw=6, label=name) for name in systems]
    handles.append(Line2D([], [], ls="", marker="|", color="black", ms=9, mew=1.6, label="simulated"))
    gains.figure.legend(handles=handles, loc="outside upper left", ncols=5, columnspacing=1, handlelength=1)


def _fidelity(panel: Axes, table: Sequence[Pair]) -> None:
    """How far the simulator is off, of every run."""
    for one in table:
        colour, marker = SYSTEMS[one.system]
        panel.plot([one.measured], [100 * one.error], marker, color=colour, ms=5, mew=0)
    errors = [abs(one.error) for one in table]
    most = max(6.0, 120 * max(errors))
    panel.axhspan(-5, 5, color="#eeeeee", lw=0)
    panel.axhline(0, color="black", lw=1)
    panel.set_ylim(-most, most)
    panel.set_xlim(0, 1.05 * max(one.measured for one in table))
    panel.set_xlabel("measured seconds a step (ring: black)")
    panel.set_ylabel("simulated against measured, %")
    panel.set_title(f"the simulator's error: median {median(errors):.1%}, worst {max(errors):.1%}")
    panel.grid()
