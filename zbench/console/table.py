"""Tables of runs, for people: the systems of one run side by side, or runs compared. Knows rows (zbench.record.rows)
only.

A comparison is one table, a run a line, where there is room for it, and always where no terminal is watched. On a
terminal too narrow for that, runs of the same settings have a table of their own, with the figures that matter most.
"""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from zbench.console.console import say, show, terminal_width, width_of
from zbench.console.figures import Row, TableColumn, figures_compared, figures_shown
from zbench.describe.units import with_noun
from zbench.record.interval import LEAST
from zbench.record.words import convention_words, doubt_words, simulated_words, told_settings, typed


def print_run(found: Sequence[Row]) -> None:
    """Prints the systems of one run side by side, a figure a line; without explanations where there is no room for
    them."""
    figures = figures_shown(found)
    if not figures:
        for row in found:
            say(f"{row['system']}: {_invalid(row) or 'no figures'}", "bold red")
        return
    for explained in (True, False):
        table = Table("", *([""] if explained else []))
        for row in found:
            name = Text(str(row["system"]))
            lines = [line for figure in figures for line in figure.cell(row).split("\n")]
            width = max(map(len, lines))
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


def _invalid(row: Row) -> str:
    """Says why a row has no figures, of which no step counts; "" of any other."""
    if not row["steps"] or row["invalid_steps"] < row["steps"]:
        return ""
    return f"no figures, as none of {with_noun(row['steps'], 'step')} counts: the machine was too busy"


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
    (figures, left_out), room = figures_compared(found), terminal_width()
    whole = _comparison(found, ["run", "system", *differing, "steps"], figures)
    narrow = room if room is not None and width_of(whole)[1] > room else None
    if narrow is None:
        show(whole)
    else:
        _print_narrow(found, differing, figures, narrow)
    for row in found:
        if problem := row["verdict"] or _invalid(row):
            place = [f"run {row['run']}"] if narrow is None else _settings(row, differing)  # as its table names it
            say(f"{', '.join([*place, row['system']])}: {problem}", "bold red")
    if not said and any(row["simulated"] for row in found):
        said = [
            f"Runs of executor {simulated_words(found)} are SIMULATED on a described cluster; nothing was measured."
        ]
    for line in (*doubt_words(found), *said):
        say(line)
    if left_out:
        say(f"Left out: {'; '.join(figure.title for figure in left_out)}. --json has them.")
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
    return typed(row[name])


def _settings(row: Row, names: Sequence[str]) -> list[str]:
    return [f"{name} {_setting(row, name)}" for name in names]


def _steps(row: Row) -> str:
    whole = row["status"] == "finished"
    return str(row["steps"]) if whole else f"{row['steps']} of {row['steps_asked']}, {row['status']}"
