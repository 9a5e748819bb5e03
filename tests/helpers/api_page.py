"""Writes the functions' part of docs/api.md from their docstrings: `python -m tests.helpers.api_page` changes the page.

Of a docstring the page has the first sentence and the paragraphs as text, the example as code and what is raised as a
list. A test holds the page to it.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zbench

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
NAMES = ("plan", "verify", "simulate", "bound", "load", "plan_schedule", "compare_runs")
_BEGIN, _END = "## Functions\n", "## StepPlans\n"


def with_functions(page: str) -> str:
    """Returns the page with the section of functions as docstrings have it now."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    told = "\n".join(section(f"zbench.{name}", getattr(zbench, name)) for name in NAMES)
    return f"{before}{_BEGIN}\n{told}\n{_END}{after}"


def section(name: str, function: Callable[..., Any]) -> str:
    """Returns a function's section: its call, and its docstring as markdown."""
    parameters = inspect.signature(function).parameters.values()
    bare = inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in parameters])
    text = inspect.getdoc(function) or ""
    return f"### `{name}{bare}`\n\n" + "\n".join(_markdown(text)) + "\n"


def _markdown(text: str) -> Iterator[str]:
    for part in re.split(r"\n\n", text):
        if part.startswith("Raises:\n"):
            yield "Raises:\n"
            for one in re.split(r"\n(?! )", textwrap.dedent(part.removeprefix("Raises:\n"))):
                kind, _, words = " ".join(one.split()).partition(": ")
                yield f"- `{kind}`: {words}"
        elif part.startswith("    "):
            yield f"```python\n{textwrap.dedent(part)}\n```\n"
        else:
            yield f"{part}\n"


def main() -> int:
    """Writes the page; returns the exit code."""
    PAGE.write_text(with_functions(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
