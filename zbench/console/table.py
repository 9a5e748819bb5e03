"""Tables of runs, for people: the systems of one run side by side, or runs compared. Knows rows (zbench.record.rows)
only.

A comparison is one table, a run a line, where there is room for it, and always where no terminal is watched. On a
terminal too narrow for that, runs of the same settings have a table of their own, with the figures that matter most.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from zbench.console.console import say, show, terminal_width, width_of
from zbench.interfaces.result import COMPUTES, SECONDS_FOR
from zbench.record.interval import LEAST
from zbench.record.metrics import PURPOSES
from zbench.record.words import convention_words, doubt_words, simulated_words, told_settings, typed

Row = Mapping[str, Any]
_LEAST_SHARE = 0.01  # of a step, that a table tells
_WAITS = "; waits: "


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A figure of a row, as a line or column of a table. title: with its unit. weight: figures of the least are the
    last to leave a narrow table.

    brief_title, brief: what a narrow table has in place of title and `show`. measured: only shown where some run was
    measured; others train and sample nothing, and their bytes are in the utilisation. in_parts: the figure is a list,
    of which the table of a run has a line each.
    """

    title: str
    explanation: str
    weight: int
    show: Callable[[Row], str]
    brief_title: str = ""
    brief: Callable[[Row], str] | None = None
    measured: bool = False
    in_parts: bool = False

    def cell(self, row: Row) -> str:
        """Returns the figure as the table of a run has it."""
        return "\n".join(_lines(self.show(row))) if self.in_parts else self.show(row)

    def briefly(self) -> "TableColumn":
        """Returns the figure as a narrow table has it."""
        return replace(self, title=self.brief_title or self.title, show=self.brief or self.show)


def _number(name: str, form: str, scale: float = 1.0) -> Callable[[Row], str]:
    return lambda row: "-" if row[name] is None else form.format(row[name] * scale)


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
    TableColumn("imbalance", "compute, max / mean of ranks", 8, _number("imbalance", "{:.2f}")),
    TableColumn("exposed", "share of communication not hidden", 7, _number("exposed_communication", "{:.1%}")),
    TableColumn("planning, ms", "median of the steps", 9, _number("plan_seconds", "{:.1f}", 1e3), "plan, ms"),
    TableColumn("peak memory, GiB", "fullest GPU", 6, _number("peak_bytes", "{:.1f}", 2.0**-30), "peak, GiB"),
    TableColumn("bound ratio", "fastest possible / this", 3, _number("bound_ratio", "{:.2f}"), "bound"),
    TableColumn("ceiling ratio", "the same with its collectives", 15, _number("ceiling_ratio", "{:.2f}"), "ceiling"),
    TableColumn("speed-up", "over the baseline", 1, _speedup),
    TableColumn("95 % interval", "of the speed-up, over batches", 11, _interval),
    TableColumn("over worlds", "of the speed-up, least - greatest", 14, _over_worlds),
)


def _shown(found: Sequence[Row]) -> list[TableColumn]:
    """Returns the figures that say something of these rows."""
    simulated = all(row["simulated"] for row in found)
    kept = [figure for figure in FIGURES if not (figure.measured and simulated)]
    return [figure for figure in kept if {figure.show(row) for row in found} != {"-"}]


def print_run(found: Sequence[Row]) -> None:
    """Prints the systems of one run side by side, a figure a line; without explanations where there is no room for
    them."""
    figures = _shown(found)
    for explained in (True, False):
        table = Table("", *([""] if explained else []))
        for row in found:
            name = Text(str(row["system"]))
            lines = [line for figure in figures for line in figure.cell(row).split("\n")]
            width = max(map(len, lines), default=0)  # no step may count
            table.add_column(name, justify="right", min_width=width)
        for figure in figures:
            explanation = [Text(figure.explanation, style="dim")] if explained else []
            table.add_row(figure.title, *explanation, *(figure.cell(row) for row in found))
        room = terminal_width()
        if room is None or width_of(table)[1] <= room:
            break
    show(table)
    for row in found:
        if row["verdict"]:
            say(f"{row['system']} runs {row['verdict']}; it has no throughput", "bold red")
        if row["speedup_told"] is False:
            say(f"? {row['system']}: too few steps to tell ({_doubt(row)}).")


def _doubt(row: Row) -> str:
    if row["speedup_low"] is None:
        return f"fewer than {LEAST} that count"
    return "the 95 % interval of its speed-up has 1 in it"


# What runs that are compared may differ in, and what is only told where they do.
_SETTINGS = (
    "workload",
    "cluster",
    "model",
    "executor",
    "world",
    "planners",
    "mask",
    "seed",
    "tokens_per_gpu",
    "free",
    "baseline",
    "sources",
)


def print_comparison(found: Sequence[Row], said: Sequence[str] = ()) -> None:
    """Prints a run a line; what all runs have in common stands above, what is `said` of them below.

    said: sentences about the runs; without any, whether they are simulated.
    """
    states = [_steps(row) for row in found]
    differing = [name for name in _SETTINGS if len({str(row[name]) for row in found}) > 1]
    common = _settings(found[0], [name for name in told_settings(found[0], _SETTINGS[:-1]) if name not in differing])
    say(", ".join(common + ([f"steps {states[0]}"] if len(set(states)) == 1 else [])))
    figures, room = _shown(found), terminal_width()
    whole = _comparison(found, ["run", "system", *differing, "steps"], figures)
    narrow = room if room is not None and width_of(whole)[1] > room else None
    if narrow is None:
        show(whole)
    else:
        _print_narrow(found, differing, figures, narrow)
    for row in found:
        if row["verdict"]:
            place = [f"run {row['run']}"] if narrow is None else _settings(row, differing)  # as its table names it
            say(f"{', '.join([*place, row['system']])}: {row['verdict']}", "bold red")
    if not said and any(row["simulated"] for row in found):
        said = [
            f"Runs of executor {simulated_words(found)} are SIMULATED on a described cluster; nothing was measured."
        ]
    for line in (*doubt_words(found), *said):
        say(line)
    say(convention_words(found[0]["mfu_convention"]))


def _print_narrow(found: Sequence[Row], differing: Sequence[str], figures: Sequence[TableColumn], room: int) -> None:
    """Prints a table for each of the settings, all with the same figures: as many as there is room for."""
    tables: dict[str, list[Row]] = {}
    for row in found:
        tables.setdefault(", ".join(_settings(row, differing)), []).append(row)
    names = ["system"] + (["steps"] if len({_steps(row) for row in found}) > 1 else [])
    kept, left = [figure.briefly() for figure in figures], []
    while len(kept) > 1 and width_of(_comparison(found, names, kept))[0] > room:
        left.append(max(kept, key=lambda one: one.weight))
        kept.remove(left[-1])
    for title, members in tables.items():
        if title:
            say(f"\n{title}", "bold")
        show(_comparison(members, names, kept))
    if left:
        wider = "; ".join(figure.title for figure in sorted(left, key=lambda one: one.weight))
        say(f"Left out in {room} columns: {wider}. A wider terminal shows them, or | cat.")


def _comparison(found: Sequence[Row], names: Sequence[str], figures: Sequence[TableColumn]) -> Table:
    table = Table(*names, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    cells = [[figure.show(row) for row in found] for figure in figures]
    for figure, column in zip(figures, cells, strict=True):
        table.add_column(figure.title, justify="right", width=max(map(len, [figure.title, *column])))
    for at, row in enumerate(found):
        words = [Text(_steps(row) if name == "steps" else _setting(row, name)) for name in names]
        table.add_row(*words, *(column[at] for column in cells))
    return table


def _setting(row: Row, name: str) -> str:
    return "null" if row[name] is None else typed(row[name])


def _settings(row: Row, names: Sequence[str]) -> list[str]:
    return [f"{name} {_setting(row, name)}" for name in names]


def _steps(row: Row) -> str:
    whole = row["status"] == "finished"
    return str(row["steps"]) if whole else f"{row['steps']} of {row['steps_asked']}, {row['status']}"
