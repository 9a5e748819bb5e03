"""Figures of a run as tables show them: a title, what it is, and how a row has it (zbench.record.rows)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zbench.describe.units import in_gib
from zbench.interfaces.result import COMPUTES, SECONDS_FOR
from zbench.record.iterations import STAGES
from zbench.record.metrics import PURPOSES

Row = Mapping[str, Any]
_LEAST_SHARE = 0.01  # of a step, that a table tells
_WAITS = "; waits: "


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A figure of a row, as a line or column of a table. title: with its unit. weight: figures of the least are the
    last to leave a narrow table.

    brief_title, brief: what a narrow table has in place of title and `show`. measured: only shown where some run was
    measured; others train and sample nothing, and their bytes are in the utilisation. in_parts: the figure is a list,
    of which the table of a run has a line each. needs: a figure that some run has to have; "": none.
    """

    title: str
    explanation: str
    weight: int
    show: Callable[[Row], str]
    brief_title: str = ""
    brief: Callable[[Row], str] | None = None
    measured: bool = False
    in_parts: bool = False
    needs: str = ""

    def cell(self, row: Row) -> str:
        """Returns the figure as the table of a run has it."""
        return "\n".join(_lines(self.show(row))) if self.in_parts else self.show(row)

    def briefly(self) -> "TableColumn":
        """Returns the figure as a narrow table has it."""
        return replace(self, title=self.brief_title or self.title, show=self.brief or self.show)


def _number(name: str, form: str, scale: float = 1.0) -> Callable[[Row], str]:
    return lambda row: "-" if row[name] is None else form.format(row[name] * scale)


def _gib(name: str) -> Callable[[Row], str]:
    return lambda row: "-" if row[name] is None else in_gib(row[name])


def _of_step(row: Row) -> str:
    """Returns the bytes of a step's tensors and logits: measured where its peak memory is a process's, and accounted
    where the step is simulated, whose peak memory they are."""
    size = row["peak_bytes"] if row["simulated"] else row["store_bytes"]
    return "-" if size is None else f"{size / 1e6:,.5g}"


def _spread(name: str, form: str, scale: float = 1.0) -> Callable[[Row], str]:
    """Returns the mean over NICs, and the lowest and the highest of them."""

    def told(row: Row) -> str:
        mean, low, high = (_number(f"{name}{end}", form, scale)(row) for end in ("", "_min", "_max"))
        return "-" if row[name] is None else f"{mean}, {low} - {high}"

    return told


def _purposes(row: Row) -> str:
    """Returns what NICs send for, the most first."""
    found = [(row[f"nic_{purpose}"], purpose.replace("_", " ")) for purpose in PURPOSES if row[f"nic_{purpose}"]]
    return ", ".join(f"{purpose} {share:.1%}" for share, purpose in sorted(found, reverse=True)) or "-"


def _stages(unit: str, form: str) -> Callable[[Row], str]:
    """Returns how a figure of an iteration's stages is told, those that take the most first."""

    def told(row: Row) -> str:
        found = [(row[f"{stage}_seconds"] or 0.0, stage, row.get(f"{stage}_{unit}")) for stage in STAGES]
        shown = [f"{stage} {value:{form}}" for _, stage, value in sorted(found, reverse=True) if value]
        return ", ".join(shown) or "-"

    return told


def _staleness(row: Row) -> str:
    """Returns the share of what was trained on that an older policy generated, and by how many updates."""
    if row["off_policy"] is None:
        return "-"
    return f"{row['off_policy']:.0%}, {row['policy_age']:.2g} old" if row["off_policy"] else "0 %"


def _layouts(row: Row) -> str:
    """Returns the seconds of generation by two layouts: reading prompts, decoding, and changing between them."""
    if row["prefill_seconds"] is None:
        return "-"
    told = "prefill {prefill_seconds:.4g}, decode {decode_seconds:.4g}, change {layout_change_seconds:.3g} "
    return (told + "({layout_changes:.3g} x)").format(**row)


def _parts(row: Row) -> str:
    """Returns what a step's seconds go to, the most first: what computes, then what waits; parts of at least 1 %."""
    told = []
    for names in (COMPUTES, [name for name in SECONDS_FOR if name not in COMPUTES]):
        shares = [(row[f"time_{name}"], name.removeprefix("waiting_")) for name in names if row[f"time_{name}"]]
        found = [f"{name} {share:.0%}" for share, name in sorted(shares, reverse=True) if share >= _LEAST_SHARE]
        told += [", ".join(found)] if found else []
    return _WAITS.join(told) or "-"


def _lines(told: str) -> list[str]:
    """Returns the parts of what `_purposes` or `_parts` tells."""
    first, *waits = told.split(_WAITS)
    return [*first.split(", "), *(f"{_WAITS[2:]}{one}" for some in waits for one in some.split(", "))]


def _experts(row: Row) -> str:
    """Returns the shares that a capacity of experts comes to."""
    shares = (("dropped", row["dropped_choices"]), ("padded", row["padded_rows"]))
    return ", ".join(f"{name} {share:.1%}" for name, share in shares if share is not None) or "-"


def _tokens(row: Row) -> str:
    return "out of memory" if row["verdict"] else _number("tokens_per_second", "{:,.0f}")(row)


def _losses(row: Row) -> str:
    return "-" if row["loss"] is None else f"{row['first_loss']:.4f} - {row['loss']:.4f}"


def _speedup(row: Row) -> str:
    return _number("speedup", "{:.2f} x")(row) + (" ?" if row["speedup_told"] is False else "")


def _interval(row: Row) -> str:
    return "-" if row["speedup_low"] is None else f"{row['speedup_low']:.2f} - {row['speedup_high']:.2f} x"


def _over_worlds(row: Row) -> str:
    if row["speedup_least"] is None:
        return "-"
    return f"{row['speedup_least']:.2f} - {row['speedup_greatest']:.2f} x"


_STAGES = TableColumn("stages, s", "of an iteration, each by itself", 5, _stages("seconds", ".4g"), in_parts=True)
FIGURES = (
    TableColumn("tokens/s", "", 0, _tokens),
    TableColumn("step, s", "mean of the steps", 5, _number("step_seconds", "{:.4g}")),
    TableColumn("MFU", "", 2, _number("mfu", "{:.1%}")),
    TableColumn(
        "NIC utilisation",
        "mean, lowest - highest",
        4,
        _spread("nic_utilization", "{:.1%}"),
        "NIC use",
        _number("nic_utilization", "{:.1%}"),
    ),
    TableColumn("NICs send for", "share of their rate", 16, _purposes, in_parts=True),
    TableColumn("NIC idle", "share of time below 5 % of its rate", 10, _number("nic_idle", "{:.1%}"), measured=True),
    TableColumn(
        "NIC bytes, MB", "a step: mean, lowest - highest", 13, _spread("nic_bytes", "{:,.3f}", 1e-6), measured=True
    ),
    TableColumn("loss", "first - last step", 12, _losses, "last loss", _number("loss", "{:.4f}"), measured=True),
    TableColumn("seconds go to", "parts of at least 1 %, means of ranks", 17, _parts, in_parts=True),
    _STAGES,
    TableColumn("stages, tokens/s", "", 14, _stages("tokens_per_second", ",.0f"), in_parts=True),
    TableColumn(
        "generation imbalance",
        "seconds, slowest / mean of replicas",
        8,
        _number("generation_imbalance", "{:.2f}"),
    ),
    TableColumn("layouts of generation, s", "of the slowest replica", 14, _layouts, in_parts=True),
    TableColumn("off policy", "of trained responses, updates", 9, _staleness),
    TableColumn("given up", "of generated tokens", 14, _number("given_up", "{:.1%}")),
    TableColumn("imbalance", "compute, max / mean of ranks", 8, _number("imbalance", "{:.2f}")),
    TableColumn("exposed", "share of communication not hidden", 7, _number("exposed_communication", "{:.1%}")),
    TableColumn("planning, ms", "median of the steps", 9, _number("plan_seconds", "{:.1f}", 1e3), "plan, ms"),
    TableColumn("peak memory, GiB", "fullest GPU", 6, _gib("peak_bytes"), "peak, GiB"),
    TableColumn("step's memory, MB", "tensors and logits, fullest GPU", 6, _of_step, "step's, MB", needs="store_bytes"),
    TableColumn("host memory, GiB", "fullest node", 15, _gib("host_bytes"), "host, GiB"),
    TableColumn("capacity of experts", "of tokens' choices, of experts' rows", 16, _experts, in_parts=True),
    TableColumn("chosen", "for each batch, by the run", 16, lambda row: row["chosen"] or "-", in_parts=True),
    TableColumn("bound ratio", "fastest possible / this", 3, _number("bound_ratio", "{:.2f}"), "bound"),
    TableColumn("ceiling ratio", "the same with its collectives", 15, _number("ceiling_ratio", "{:.2f}"), "ceiling"),
    TableColumn("speed-up", "over the baseline", 1, _speedup),
    TableColumn("95 % interval", "of the speed-up, over batches", 11, _interval),
    TableColumn("over worlds", "of the speed-up, least - greatest", 14, _over_worlds),
)


def figures_shown(found: Sequence[Row]) -> list[TableColumn]:
    """Returns the figures that say something of these rows."""
    simulated = all(row["simulated"] for row in found)
    kept = [figure for figure in FIGURES if not (figure.measured and simulated)]
    kept = [one for one in kept if not one.needs or any(row[one.needs] is not None for row in found)]
    return [figure for figure in kept if {figure.show(row) for row in found} != {"-"}]


def figures_compared(found: Sequence[Row]) -> tuple[list[TableColumn], list[TableColumn]]:
    """Returns (the figures of runs that are compared, those that are left out). Of iterations of rollouts the seconds
    of a stage are a column, other lists are left out, and titles are brief: a line would have hundreds of letters."""
    shown = figures_shown(found)
    if all(row["generate_seconds"] is None for row in found):
        return shown, []
    kept, left = list[TableColumn](), list[TableColumn]()
    for figure in shown:
        if figure is _STAGES:
            kept += [TableColumn(f"{name}, s", "", 5, _number(f"{name}_seconds", "{:.4g}")) for name in STAGES]
        else:
            (left if figure.in_parts else kept).append(figure.briefly())
    return kept, left
