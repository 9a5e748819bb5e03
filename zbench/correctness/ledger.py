"""Findings as JSON lines, one a line and each found once: a command that was stopped goes on where it was. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zbench.record.kinds import VERDICTS
from zbench.record.outputs import check_output

Finding = dict[str, Any]
_KEY = "case"


@dataclass
class Ledger:
    """Findings that are kept in a file. The lines of `path`. A line is of a `case`, found under `circumstances`
    (sources, device, versions); only lines with the same ones count. A line that was torn when its writer was killed,
    or is none, counts as none.

    Raises:
        ValueError: `path` is another kind of file, or cannot be read or written.
    """

    path: Path
    circumstances: Mapping[str, Any]
    found: dict[str, Finding] = field(init=False)

    def __post_init__(self) -> None:
        self.found = {}
        for line in self._lines():
            try:
                verdict = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if (
                isinstance(verdict, dict)
                and isinstance(verdict.get(_KEY), str)
                and all(verdict.get(name) == value for name, value in self.circumstances.items())
            ):
                self.found[verdict[_KEY]] = verdict

    def _lines(self) -> list[str]:
        """Reads the file's lines; there are none where there is no file yet.

        Raises:
            ValueError: the file cannot be read, or could not be written to later.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            check_output("--out", self.path, VERDICTS, appended=True)
            return self.path.read_text(errors="replace").splitlines() if self.path.exists() else []
        except OSError as error:
            raise ValueError(f"--out is {str(self.path)!r}; it cannot be a file: {error.strerror}") from error

    def has(self, case: str) -> bool:
        """Returns whether a case was found; what failed is tried again."""
        return case in self.found and self.found[case].get("failed") is False

    def add(self, case: str, failed: bool, **values: Any) -> Finding:
        """Appends a finding about a case to the file and returns it."""
        verdict = {_KEY: case, "failed": failed, **values, **self.circumstances}
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size > 0
        with self.path.open("a") as file:
            file.write("\n" * torn + json.dumps(verdict, allow_nan=False) + "\n")
        self.found[case] = verdict
        return verdict
