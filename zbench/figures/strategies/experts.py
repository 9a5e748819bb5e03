"""The gains of schedules of experts over all tokens at once, by model and by how experts are laid out, beside what
FSMoE published."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from zbench.describe.expert_schedule import CLOCK, FSMOE, LINA, PIPEMOE, SEQUENTIAL, TUTEL
from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("experts", "experts_zero3", "experts_cut")
PANELS = (1, 2)
SIZE = (WIDTH, 3.6)
COLOURS = {PIPEMOE: GREY, TUTEL: ORANGE, LINA: SKY, FSMOE: BLUE, CLOCK: VERMILLION}
BAR = 0.17
# Of arXiv 2501.10714, from notes on the paper, whose pages were not at hand: FSMoE over DeepSpeed-MoE, models, the
# least and the most; over Tutel, the mean of models, means of layers on two testbeds, and the most of a layer.
OVER_SEQUENTIAL = (1.28, 3.01)
OVER_TUTEL = {"layers, A": 1.18, "models": 1.19, "layers, B": 1.22, "a layer at most": 1.42}


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
    left, right = axes
    for number, (schedule, colour) in enumerate(COLOURS.items()):
        at = [place + (number - 2) * BAR for place, one in enumerate(layouts) if (one, schedule) in gains]
        mine = [gains[one, schedule] for one in layouts if (one, schedule) in gains]
        left.bar(at, mine, BAR, color=colour, label=schedule)
        for x, gain in zip(at, mine, strict=True):
            left.text(x, gain + 0.004, f"{gain:.2f}", ha="center", fontsize=5, rotation=90, va="bottom", color=BLACK)
    least, most = OVER_SEQUENTIAL
    left.axhline(least, color=GREEN, lw=1, ls=(0, (2, 1)))
    left.text(-0.5, least + 0.005, f"published, over DeepSpeed-MoE: {least} to {most}", fontsize=6, color=GREEN)
    left.set_title("over sequential")
    left.set_ylabel("times as fast")
    both = [one for one in layouts if (one, FSMOE) in gains and (one, TUTEL) in gains]
    over = [gains[one, FSMOE] / gains[one, TUTEL] for one in both]
    places = [layouts.index(one) for one in both]
    right.bar(places, over, 0.5, color=BLUE)
    for x, gain in zip(places, over, strict=True):
        right.text(x, gain + 0.004, f"{gain:.2f}", ha="center", fontsize=6.5, color=BLACK)
    for name, gain in OVER_TUTEL.items():
        right.axhline(gain, color=GREEN, lw=1, ls=(0, (2, 1)))
        right.text(len(layouts) - 0.45, gain, f"{gain} {name}", fontsize=6, color=GREEN, va="center")
    right.set_title("fsmoe over tutel")
    right.set_ylim(0.9, max(*over, *OVER_TUTEL.values()) + 0.03)
    left.set_ylim(0.9, max(least, *gains.values()) + 0.07)
    for panel in axes:
        panel.axhline(1, color=GREY, lw=1)
        panel.set_xticks(range(len(layouts)), names, fontsize=5.5, rotation=30, ha="right")
        panel.grid(axis="y")
    handles, labels = left.get_legend_handles_labels()
    left.figure.legend(handles, labels, loc="outside upper left", ncols=5, handlelength=1.2)
