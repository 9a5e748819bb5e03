"""The gains of schedules of experts over all tokens at once, by model and by how experts are laid out, beside what
FSMoE published."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from zbench.describe.expert_schedule import CLOCK, FSMOE, LINA, PIPEMOE, SEQUENTIAL, TUTEL
from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("experts", "experts_zero3", "experts_cut")
PANELS = (2, 1)
SIZE = (WIDTH, 5.8)
COLOURS = {PIPEMOE: GREY, TUTEL: ORANGE, LINA: SKY, FSMOE: BLUE, CLOCK: VERMILLION}
APART = 0.17  # of dots of a layout
DASHES = (0, (2, 1))
LABEL: Mapping[str, Any] = {  # above its dot, and over the lines
    "ha": "center",
    "va": "bottom",
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.3},
    "zorder": 3,
}
# Of arXiv 2501.10714: FSMoE over DeepSpeed-MoE, the least and the most of models (section 6.4); over Tutel, means of
# 1,458 layers on two testbeds (table 5) and the mean of models.
OVER_SEQUENTIAL = (1.28, 3.01)
OVER_TUTEL = {"layers, A": 1.18, "models": 1.19, "layers, B": 1.22}


@dataclass(frozen=True, slots=True)
class ScheduleGain:
    """The gain of a schedule: how many times as fast it is as all tokens at once. gpus: that each expert is cut
    over."""

    model: str
    gpus: int
    schedule: str
    gain: float

    @property
    def layout(self) -> tuple[str, int]:
        """The model and how its experts are laid out."""
        return self.model, self.gpus


def table(records: Records) -> list[ScheduleGain]:
    """Returns the gains of schedules over `sequential` of the same model and layout, in the order of the record.

    Raises:
        ValueError: a run is out of memory, or its layout has no run of `sequential`.
    """
    seconds: dict[tuple[str, int, str], float] = {}
    for run, row in zip(records.runs, records.rows, strict=True):
        model, schedule = group_choice(run, "model"), group_choice(run, "experts")
        gpus = int(run.start["config"]["parallel"]["expert_tensor_parallel"])
        if row["step_seconds"] is None:
            raise ValueError(f"figure experts has no seconds of {schedule} with {model}, which is out of memory")
        seconds[model, gpus, schedule] = row["step_seconds"]
    found = []
    for (model, gpus, schedule), mine in seconds.items():
        if (model, gpus, SEQUENTIAL) not in seconds:
            raise ValueError(f"figure experts has no run of {SEQUENTIAL} with {model}, experts over {gpus} GPUs each")
        if schedule != SEQUENTIAL:
            found.append(ScheduleGain(model, gpus, schedule, seconds[model, gpus, SEQUENTIAL] / mine))
    return found


def draw(axes: Sequence[Axes], table: Sequence[ScheduleGain]) -> None:
    """Draws every schedule over all tokens at once, and fsmoe over tutel, both with what was published."""
    layouts = list(dict.fromkeys(one.layout for one in table))
    gains = {(one.layout, one.schedule): one.gain for one in table}
    names = [f"{model}\neach over {gpus}" if gpus > 1 else model for model, gpus in layouts]
    upper, lower = axes
    for number, (schedule, colour) in enumerate(COLOURS.items()):
        at = [place + (number - 2) * APART for place, one in enumerate(layouts) if (one, schedule) in gains]
        mine = [gains[one, schedule] for one in layouts if (one, schedule) in gains]
        upper.plot(at, mine, "o", color=colour, markersize=4, label=schedule)
        for x, gain in zip(at, mine, strict=True):
            upper.text(x, gain + 0.014, f"{gain:.2f}", rotation=90, fontsize=5, color=BLACK, **LABEL)
    least, most = OVER_SEQUENTIAL
    top = max(least, *gains.values())
    upper.axhline(least, color=GREEN, lw=1, ls=DASHES)
    upper.text(-0.5, top + 0.09, f"published, over DeepSpeed-MoE: {least} (dashed) to {most}", fontsize=6, color=GREEN)
    upper.set_title("over sequential")
    upper.set_ylim(0.9, top + 0.12)
    both = [one for one in layouts if (one, FSMOE) in gains and (one, TUTEL) in gains]
    over = [gains[one, FSMOE] / gains[one, TUTEL] for one in both]
    places = [layouts.index(one) for one in both]
    lower.plot(places, over, "o", color=BLUE, markersize=5)
    for x, gain in zip(places, over, strict=True):
        lower.text(x, gain + 0.01, f"{gain:.2f}", fontsize=6.5, color=BLACK, **LABEL)
    for name, gain in OVER_TUTEL.items():
        lower.axhline(gain, color=GREEN, lw=1, ls=DASHES)
        below = "top" if gain == min(OVER_TUTEL.values()) else "bottom"
        lower.text(len(layouts) - 0.38, gain, f"{gain} {name}", fontsize=6, color=GREEN, va=below)
    lower.set_title("fsmoe over tutel")
    lower.set_ylim(0.9, max(*over, *OVER_TUTEL.values()) + 0.03)
    for panel in axes:
        panel.axhline(1, color=GREY, lw=1)
        panel.set_ylabel("times as fast")
        panel.set_xlim(-0.6, len(layouts) - 0.4)
        panel.set_xticks(range(len(layouts)), names, fontsize=5)
        panel.grid(axis="y")
    handles, labels = upper.get_legend_handles_labels()
    upper.figure.legend(handles, labels, loc="outside upper left", ncols=5, handlelength=1.2)
