"""Prints measured numbers beside predicted ones, and how far they are apart. An edge: rich."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zbench.anchors.anchor import Anchor
from zbench.anchors.operations import StepOperations
from zbench.anchors.summary import summary_rows
from zbench.anchors.training import TrainingOperations
from zbench.describe.units import with_noun
from zbench.interfaces.result import SECONDS_FOR

KINDS = {True: "known", False: "blind"}
_SHOWN = 0.0005  # seconds below which an operation's are left out
_WIDE = 160  # columns where nobody watches a terminal


def show_groups(found: Sequence[Anchor], titles: dict[str, str], apart: str) -> None:
    """Prints every group's known and blind anchors apart, a table each with its errors summed up, and then all of a
    kind but those of the group `apart`."""
    console = _console()
    for group, title in titles.items():
        members = [anchor for anchor in found if anchor.anchor == group]
        kinds = [kind for kind in KINDS if any(anchor.known is kind for anchor in members)]
        for kind in kinds:
            alike = [anchor for anchor in members if anchor.known is kind]
            _show(console, alike, f"{group}, {KINDS[kind]}: {title}", f"{group}, {KINDS[kind]}", sources=True)
        if len(kinds) > 1:
            _say(console, words(f"{group}, known and blind", members))
            console.print()
    for kind, name in KINDS.items():
        alike = [anchor for anchor in found if anchor.known is kind]
        members = [anchor for anchor in alike if anchor.anchor != apart]
        but = f" but {apart}" if len(members) < len(alike) else ""
        if members:
            _say(console, errors_and_orders(f"all {name}{but}", members))
    console.print(
        "predicted: simulated by zbench on described devices and clusters. measured: published by others. "
        "known: looked at when a constant or an assumption was chosen (docs/cost.md); blind: not."
    )


def show_rows(found: Sequence[Anchor], left_out: Sequence[str], layouts: Sequence[str]) -> None:
    """Prints a user's rows in one table, the nodes they were played on, what was left out, and the errors of all, and
    of known and blind rows apart."""
    console = _console()
    if found:
        _show(console, found, "measured rows", "rows", sources=False)
        if len({anchor.known for anchor in found}) > 1:
            for kind, name in KINDS.items():
                _say(console, words(f"rows, {name}", [anchor for anchor in found if anchor.known is kind]))
    if layouts:
        console.print(Text(f"played on equal nodes: {'; '.join(layouts)}"))
    for line in left_out:
        console.print(Text(f"left out: {line}"))
    console.print(
        "predicted: simulated by zbench. known: of a configuration and method that constants were chosen with."
    )


def show_operations(found: Sequence[StepOperations]) -> None:
    """Prints what the seconds of steps go to, as they are played and by FlexSP's own constants, and what is missing."""
    console = _console()
    table = Table(
        title="seconds of FlexSP's published steps, 64 A100, GPT-7B, Wikipedia", title_justify="left", box=None
    )
    table.add_column("operation")
    for one in found:
        table.add_column(f"{one.system}, played", justify="right")
        table.add_column("by its constants", justify="right")
    every = [part for one in found for part in (one.played, one.constants)]
    published = [one.published for one in found for _ in range(2)]
    for name in dict.fromkeys(name for part in every for name in part):
        table.add_row(name, *(f"{part[name]:.2f}" if name in part else "" for part in every))
    sums = [sum(part.values()) for part in every]
    table.add_row("predicted", *(f"{seconds:.2f}" for seconds in sums), style="bold")
    table.add_row("published", *(f"{seconds:.2f}" for seconds in published))
    table.add_row("missing", *(f"{told - seconds:.2f}" for told, seconds in zip(published, sums, strict=True)))
    table.add_row("micro-batches", *(f"{one.micro_batches:.1f}" for one in found for _ in range(2)))
    console.print(table)
    console.print(
        "played: simulated by zbench as whole steps, means over GPUs and batches. all-to-alls: copies, and waiting for "
        "a link. collectives: waiting for parameters and gradients, as long as the GPU that waits least. by its "
        "constants: what those of FlexSP's public code give for the same plans; what its constant of a micro-batch is "
        "made of is not published."
    )


def show_training_operations(found: Sequence[TrainingOperations]) -> None:
    """Prints what the seconds of published training steps go to, a row each, and what is missing."""
    console = _console()
    table = Table(title="seconds of published training steps", title_justify="left", box=None)
    parts = [name for name in SECONDS_FOR if any(one.played.get(name, 0) >= _SHOWN for one in found)]
    for column in ("step", *(name.removeprefix("waiting_") for name in parts), "predicted", "published", "missing"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for one in found:
        predicted = sum(one.played.values())
        played = (f"{one.played[name]:.3f}" if one.played.get(name, 0) >= _SHOWN else "" for name in parts)
        sums = (predicted, one.published, one.published - predicted)
        table.add_row(one.case, *played, *(f"{seconds:.3f}" for seconds in sums))
    console.print(table)
    console.print(
        "attention and linear: computing. recomputation: what the backward makes again. parameters, gradients, link, "
        "rank: waiting for them, as the records of whole steps have it (docs/metrics.md). All but published and "
        "missing: simulated by zbench, means over GPUs."
    )


def words(name: str, members: Sequence[Anchor]) -> str:
    """Returns the summary line of some anchors, and under it every pair that is not in the measured order."""
    broken = summary_rows(members).broken
    lines = [f"  predicted in the wrong order: measured {high} above {low}" for high, low in broken]
    return "\n".join([errors_and_orders(name, members), *lines])


def errors_and_orders(name: str, members: Sequence[Anchor]) -> str:
    """Returns the number of cases, the sizes of their errors, and how many pairs are in the measured order."""
    s = summary_rows(members)
    errors = f"error median {s.median:.1%}, 9 in 10 within {s.p90:.1%}, worst {s.worst:.1%}"
    orders = f"; {s.pairs - len(s.broken)} of {s.pairs} orders kept" if s.pairs else ""
    return f"{name}: {with_noun(len(members), 'case')}, {errors}{orders}"


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _WIDE)


def _show(console: Console, members: Sequence[Anchor], title: str, name: str, sources: bool) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("case")
    for column in ("measured", "predicted", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    if sources:
        table.add_column("source", style="dim", overflow="fold")
    else:
        table.add_column("")
    for anchor in members:
        numbers = f"{anchor.measured:.4g}", f"{anchor.predicted:.4g}", f"{anchor.error:+.1%}"
        table.add_row(Text(anchor.case), *numbers, Text(anchor.source if sources else KINDS[anchor.known]))
    console.print(table)
    _say(console, words(name, members))
    console.print()


def _say(console: Console, line: str) -> None:
    console.print(Text(line, style="bold"))
