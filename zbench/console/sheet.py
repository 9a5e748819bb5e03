"""A titled table of text, for a terminal and for a document. Knows rich."""

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Sheet:
    """A titled table of text, rows of as many cells as there are columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self) -> Table:
        """Returns the table as rich prints it."""
        out = Table(*self.columns, title=Text(self.title))
        for row in self.rows:
            out.add_row(*map(Text, row))
        return out

    def markdown(self) -> str:
        """Returns the table as Markdown."""
        lines = [f"**{self.title}**", "", *("| " + " | ".join(row) + " |" for row in (self.columns, *self.rows)), ""]
        return "\n".join([*lines[:3], "|" + "---|" * len(self.columns), *lines[3:]])
