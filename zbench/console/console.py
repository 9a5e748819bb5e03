"""Prints tables and sentences: on a terminal as wide as it is, elsewhere as wide as what is printed."""

import sys

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 100_000


def width_of(shown: RenderableType) -> tuple[int, int]:
    """Returns the columns that a table needs, (least, most): if words are wrapped, and if nothing is."""
    console = Console(width=_ANY_WIDTH)
    found = Measurement.get(console, console.options, shown)
    return found.minimum, found.maximum


def terminal_width() -> int | None:
    """Returns the columns of the terminal that standard output is; None where it is none."""
    return Console().width if sys.stdout.isatty() else None


def show(shown: RenderableType) -> None:
    """Prints a table. Where nobody watches a terminal nothing is wrapped, so that a line of a file is one of the table;
    on a terminal too narrow for a table its words are, and nothing is cut off."""
    if isinstance(shown, Table):
        for column in shown.columns:
            column.overflow = "fold"
    console = Console() if sys.stdout.isatty() else Console(width=max(80, width_of(shown)[1]))
    console.print(shown)


def say(line: str, style: str = "") -> None:
    """Prints a sentence as it is: brackets in it are no markup."""
    show(Text(line, style=style))
