"""Reads one field of every row of a .jsonl or .parquet file. Pure; pyarrow only for parquet.

Shared by lengths_file, whose field is a number, and corpus, whose field is a text.
"""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zbench.console.extras import need


def need_path(path: str | None, takes: str) -> Path:
    """Returns `path` as a Path that exists, or raises a ValueError; `takes` says what the workload reads."""
    if path is None or path == "":
        raise ValueError(f"workload.path is needed and not given; it must be {takes}")
    found = Path(str(path)).expanduser()  # yaml makes a number of a name such as 2024
    if not found.exists():
        raise ValueError(f"workload.path is {path!r}, which does not exist; it must be {takes}")
    if not found.is_dir() and not found.is_file():  # a record may name one, and a pipe would never end
        raise ValueError(f"workload.path is {path!r}, a pipe or a device; it must be {takes}")
    return found


def jsonl_rows(path: Path, field: str) -> Iterator[tuple[int, int, Any]]:
    """Yields (line number from 1, byte offset, value of `field`) of every line that is not blank."""
    offset = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, offset, _json_field(path, number, line, field)
            offset += len(line)


def jsonl_value(path: Path, offset: int, field: str) -> Any:
    """Returns the value of `field` in the line that begins at `offset`."""
    with path.open("rb") as lines:
        lines.seek(offset)
        return json.loads(lines.readline())[field]


def _json_field(path: Path, number: int, line: bytes, field: str) -> Any:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        told = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"workload.path is '{path}'; line {number} must be a JSON object ({told})") from None
    if not isinstance(row, dict):
        raise ValueError(f"workload.path is '{path}'; line {number} must be a JSON object, not {type(row).__name__}")
    if field not in row:
        has = ", ".join(sorted(row)) or "none"
        raise ValueError(
            f"workload.field is {field!r}; it must be a field of every line of '{path}': line {number} has {has}"
        )
    return row[field]


def parquet_column(path: Path, field: str) -> Any:
    """Returns the column `field` as a pyarrow ChunkedArray."""
    need("pyarrow", f"workload.path='{path}', a parquet file,")
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        names = parquet.read_schema(path).names
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise ValueError(f"workload.path is '{path}'; it must be a readable parquet file ({error})") from None
    if field not in names:
        raise ValueError(f"workload.field is {field!r}; it must be a column of '{path}': {', '.join(names) or 'none'}")
    try:
        return parquet.read_table(path, columns=[field]).column(field)
    except (OSError, ValueError, MemoryError) as error:
        raise ValueError(f"workload.path is '{path}'; its column {field!r} must be readable ({error})") from None
