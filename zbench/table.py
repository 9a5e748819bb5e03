"""Tables, closing words and progress of runs, for people. Knows rows (zbench.rows), not records."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from zbench.metrics import CONVENTIONS

Row = Mapping[str, Any]
_WIDE = 240  # columns where nobody watches a terminal: nothing is cut off
_SECONDS_BETWEEN_LINES = 5.0

# title, unit or explanation, what it shows of a row
_FIGURES: tuple[tuple[str, str, Any], ...] = (
    ("tokens/s", "", lambda row: "out of memory" if row["verdict"] else _number(row["tokens_per_second"], "{:,.0f}")),
    ("step", "seconds", lambda row: _number(row["step_seconds"], "{:.4g}")),
    ("MFU", "", lambda row: _number(row["mfu"], "{:.1%}")),
    ("NIC utilisation", "mean, lowest - highest", lambda row: _spread(row, "nic_utilization", "{:.1%}")),
    ("NIC idle", "share of time below 5 % of its rate", lambda row: _number(row["nic_idle"], "{:.1%}")),
    ("NIC bytes", "MB a step, mean, lowest - highest", lambda row: _spread(row, "nic_bytes", "{:,.3f}", 1e-6)),
    ("loss", "first - last step", lambda row: _losses(row)),
    ("imbalance", "compute, max / mean of ranks", lambda row: _number(row["imbalance"], "{:.2f}")),
    ("exposed", "share of communication not hidden", lambda row: _number(row["exposed_communication"], "{:.1%}")),
    ("planning", "ms", lambda row: _number(row["plan_seconds"], "{:.1f}", 1e3)),
    ("peak memory", "GiB, fullest GPU", lambda row: _number(row["peak_bytes"], "{:.1f}", 2.0**-30)),
    ("bound ratio", "fastest possible / this", lambda row: _number(row["bound_ratio"], "{:.2f}")),
    ("speed-up", "over the baseline", lambda row: _number(row["speedup"], "{:.2f} x")),
)


# Shown where some run was measured: the others train and sample nothing, and their bytes are in the utilisation.
_MEASURED = ("NIC idle", "NIC bytes", "loss")


def _shown(found: Sequence[Row]) -> list[tuple[str, str, list[str]]]:
    """(title, explanation, a cell for each row) of the figures that say something of these rows."""
    cells = [(title, explanation, [show(row) for row in found]) for title, explanation, show in _FIGURES]
    simulated = all(row["simulated"] for row in found)
    return [one for one in cells if one[0] not in _MEASURED or not (simulated or set(one[2]) == {"-"})]


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)


def _spread(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """Mean over NICs, and the lowest and the highest of them."""
    if row[name] is None:
        return "-"
    mean, low, high = (form.format(row[f"{name}{end}"] * scale) for end in ("", "_min", "_max"))
    return f"{mean}, {low} - {high}"


def _losses(row: Row) -> str:
    return "-" if row["loss"] is None else f"{row['first_loss']:.4f} - {row['loss']:.4f}"


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def print_run(found: Sequence[Row]) -> None:
    """The systems of one run side by side, a figure a line."""
    table = Table("", "", *(str(row["system"]) for row in found))
    for column in table.columns[2:]:
        column.justify = "right"
    for title, explanation, cells in _shown(found):
        table.add_row(title, Text(explanation, style="dim"), *cells)
    console = _console()
    console.print(table)
    for row in found:
        if row["verdict"]:
            console.print(Text(f"{row['system']} runs {row['verdict']}; it has no throughput", style="bold red"))


def print_comparison(found: Sequence[Row]) -> None:
    """A run a line; what all runs have in common stands above the table."""
    names = ("workload", "cluster", "model", "executor", "seed", "tokens_per_gpu", "baseline")
    common = {name: found[0][name] for name in names if len({str(row[name]) for row in found}) == 1}
    differing = [name for name in names if name not in common]
    figures = _shown(found)
    table = Table("run", "system", *differing, "steps", *(title for title, *_ in figures))
    for column in table.columns[len(differing) + 2 :]:
        column.justify = "right"
    for at, row in enumerate(found):
        cells = [str(row["run"]), str(row["system"]), *(str(row[name]) for name in differing), _steps(row)]
        table.add_row(*cells, *(of_rows[at] for *_, of_rows in figures))
    console = _console()
    if common:
        console.print(Text(", ".join(f"{name} {value}" for name, value in common.items())))
    console.print(table)
    for row in found:
        if row["verdict"]:
            console.print(Text(f"run {row['run']}, {row['system']}: {row['verdict']}", style="bold red"))
    if any(row["simulated"] for row in found):
        console.print(Text("Runs of executor simulated are SIMULATED on a described cluster; nothing was measured."))
    console.print(Text(convention_words(found[0]["mfu_convention"])))


def _steps(row: Row) -> str:
    whole = row["status"] == "finished"
    return str(row["steps"]) if whole else f"{row['steps']} of {row['steps_asked']}, {row['status']}"


def convention_words(convention: str) -> str:
    return f"MFU by convention {convention}: {CONVENTIONS[convention]}."


def cluster_words(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['cluster']}: {facts['num_nodes']} nodes x {facts['gpus_per_node']} {facts['device']}, "
        f"{facts['nics_per_node']} NICs of {facts['nic_bandwidth'] * 8 / 1e9:g} Gbit/s a node"
    )


def print_words(lines: Sequence[str]) -> None:
    console = _console()
    for line in lines:
        console.print(Text(line))


@dataclass(slots=True)
class Meter:
    """Progress on stderr: a bar a system on a terminal; elsewhere a line now and then."""

    total: int
    _bars: Progress | None = field(default=None, init=False)
    _tasks: dict[str, TaskID] = field(default_factory=dict, init=False)
    _spoke: float = field(default=0.0, init=False)

    def __enter__(self) -> "Meter":
        self._spoke = time.monotonic()
        if sys.stderr.isatty():
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, system: str, done: int, loss: float | None = None, doing: str = "") -> None:
        """done: steps. doing: what the next one is at, as steps of thousands of ranks take minutes."""
        told = f", {doing}" if doing else "" if loss is None else f", loss {loss:.4f}"
        if self._bars is not None:
            if system not in self._tasks:
                self._tasks[system] = self._bars.add_task(system, total=self.total)
            self._bars.update(self._tasks[system], completed=done, description=f"{system}{told}")
        elif time.monotonic() - self._spoke >= _SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            with suppress(BrokenPipeError):  # nobody listens any more: no reason to stop
                print(f"{system}: step {done} of {self.total}{told}", file=sys.stderr, flush=True)
