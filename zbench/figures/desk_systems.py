"""Training steps measured on emulated nodes: speed-up over ring, and what the simulator says of the same steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import measured_stamp as where
from zbench.figures.style import SYSTEMS, WIDTH
from zbench.record.rows import Row

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("desk_systems", "desk_simulated")
PANELS = (2, 1)
SIZE = (WIDTH, 7.6)


@dataclass(frozen=True, slots=True)
class Pair:
    """A system on a workload: mean seconds a step, measured and simulated, on the same batches, and the speed-up over
    ring of both. None: no measured step counts."""

    workload: str
    system: str
    measured: float | None
    simulated: float
    gain: float | None
    simulated_gain: float

    @property
    def error(self) -> float | None:
        """The relative error of the simulated seconds; None without measured ones."""
        return None if self.measured is None else self.simulated / self.measured - 1


def table(records: Records) -> list[Pair]:
    """Returns the pairs of measured and simulated runs. Raises ValueError where a measured run has no simulated one, or
    the other way round."""
    found: dict[tuple[str, str], dict[bool, Row]] = {}
    for run, row in zip(records.runs, records.rows, strict=True):
        found.setdefault((group_choice(run, "workload"), group_choice(run, "system")), {})[row["simulated"]] = row
    for (workload, system), both in found.items():
        if len(both) != 2:
            raise ValueError(f"figure desk_systems has {system} on {workload} not both measured and simulated")
    figures = ("step_seconds", "speedup")
    return [
        Pair(*key, *(both[simulated][figure] for figure in figures for simulated in (False, True)))
        for key, both in found.items()
    ]


def draw(axes: Sequence[Axes], table: Sequence[Pair]) -> None:
    """Draws the speed-ups, and how far the simulator is off."""
    gains, fidelity = axes
    workloads = list(dict.fromkeys(one.workload for one in table))
    systems = [name for name in dict.fromkeys(one.system for one in table) if name != "ring"]
    high = 0.8 / len(systems)
    for one in (one for one in table if one.system != "ring"):
        at = workloads.index(one.workload) + high * (systems.index(one.system) - (len(systems) - 1) / 2)
        gains.barh(at, one.gain or 0, 0.9 * high, color=SYSTEMS[one.system][0])
        gains.plot([one.simulated_gain], [at], "|", color="black", ms=9, mew=1.6)
        told = "too busy" if one.gain is None else f"{one.gain:.2f}"
        gains.text(max(one.gain or 0, one.simulated_gain) + 0.05, at, told, va="center", fontsize=8)
    gains.axvline(1, color="black", lw=1)
    gains.set_yticks(range(len(workloads)), workloads)
    gains.set_ylim(len(workloads) - 0.5, -0.5)
    gains.set_xlim(0, 1.12 * max(max(one.gain or 0, one.simulated_gain) for one in table))
    gains.set_xlabel("speed-up over ring (1), whole training steps")
    gains.grid(axis="x")
    _fidelity(fidelity, [(one.system, one.measured, one.error) for one in table if one.measured and one.error])
    handles = [Line2D([], [], color=SYSTEMS[name][0], lw=6, label=name) for name in systems]
    handles.append(Line2D([], [], ls="", marker="|", color="black", ms=9, mew=1.6, label="simulated"))
    gains.figure.legend(handles=handles, loc="outside upper left", ncols=5, columnspacing=1, handlelength=1)


def _fidelity(panel: Axes, found: Sequence[tuple[str, float, float]]) -> None:
    """Draws how far the simulator is off: (system, measured seconds a step, error) of every run."""
    if not found:
        panel.set_title("no step counts: the machine was too busy")
        return
    errors = [abs(error) for _, _, error in found]
    for system, measured, error in found:
        colour, marker = SYSTEMS[system]
        panel.plot([measured], [100 * error], marker, color=colour, ms=5, mew=0)
    most = max(6.0, 120 * max(errors))
    panel.axhspan(-5, 5, color="#eeeeee", lw=0)
    panel.axhline(0, color="black", lw=1)
    panel.set_ylim(-most, most)
    panel.set_xlim(left=0)
    panel.set_xlabel("measured seconds a step (ring: black)")
    panel.set_ylabel("simulated against measured, %")
    panel.set_title(f"the simulator's error: median {median(errors):.1%}, worst {max(errors):.1%}")
    panel.grid()
