"""Verdicts as JSON lines, one a line and each found once: a command that was stopped goes on where it was. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zbench.kinds import VERDICTS
from zbench.outputs import check_output

Verdict = dict[str, Any]
_KEY = "case"


@dataclass
class Ledger:
    """The lines of `path`. A line is of a `case`, found under `circumstances` (sources, device, versions); only lines
    with the same ones count. A line that was torn when its writer was killed counts as none.

    Raises:
        ValueError: `path` is another kind of file, or cannot be written.
    """

    path: Path
    circumstances: Mapping[str, Any]
    found: dict[str, Verdict] = field(init=False)

    def __post_init__(self) -> None:
        self.found = {}
        if self.path.parent.is_dir():
            check_output("--out", self.path, VERDICTS, appended=True)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                verdict = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(verdict, dict) and all(
                verdict.get(name) == value for name, value in self.circumstances.items()
            ):
                self.found[verdict[_KEY]] = verdict

    def has(self, case: str) -> bool:
        """Whether a case was found; what failed is tried again."""
        return case in self.found and not self.found[case]["failed"]

    def add(self, case: str, failed: bool, **values: Any) -> Verdict:
        verdict = {_KEY: case, "failed": failed, **values, **self.circumstances}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size > 0
        with self.path.open("a") as file:
            file.write("\n" * torn + json.dumps(verdict, allow_nan=False) + "\n")
        self.found[case] = verdict
        return verdict
