"""Finds a corpus's documents: their sizes at once, their bytes when asked. Pure; pyarrow only for parquet.

Documents of no bytes are left out, since a sequence has at least one token.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from zbench.describe.arrays import Ints
from zbench.workloads.tables import jsonl_rows, jsonl_value, need_path, parquet_column


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """The documents of a corpus. sizes: int64 [num_documents], bytes of each. read, name: a document's bytes, and what
    to call it."""

    sizes: Ints
    read: Callable[[int], bytes]
    name: Callable[[int], str]


def open_documents(path: str | None, field: str, pattern: str, exclude: Sequence[str]) -> Documents:
    """Opens the documents of a folder, a .jsonl or a .parquet file."""
    found = need_path(path, "a folder of documents, or a .jsonl or .parquet file (workload.path=FOLDER)")
    if found.is_dir():
        return _open_folder(found, pattern, exclude)
    if found.suffix == ".jsonl":
        return _open_jsonl(found, field)
    if found.suffix == ".parquet":
        return _open_parquet(found, field)
    raise ValueError(f"workload.path is '{found}'; it must be a folder, or a file that ends in .jsonl or .parquet")


def _open_folder(root: Path, pattern: str, exclude: Sequence[str]) -> Documents:
    # Sorted by the path inside the folder, so that a document's number is the same on every machine.
    files = sorted(_scan(root, "", pattern, frozenset(exclude)))
    if not files:
        raise ValueError(
            f"workload.path is '{root}'; it must hold at least 1 file that is not empty and fits {pattern!r}"
        )
    sizes = np.array([size for _, size in files], dtype=np.int64)
    return Documents(sizes, lambda i: (root / files[i][0]).read_bytes(), lambda i: f"'{root / files[i][0]}'")


def _scan(root: Path, inside: str, pattern: str, exclude: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yields (path inside root, bytes) of every file; linked folders are not entered, they may lead back."""
    with os.scandir(root / inside) as entries:
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in exclude:
                    yield from _scan(root, name, pattern, exclude)
            elif fnmatchcase(entry.name, pattern) and (root / name).is_file() and entry.stat().st_size:
                yield name, entry.stat().st_size  # Path.is_file() is false for a link in a loop, entry's raises


def _open_jsonl(path: Path, field: str) -> Documents:
    places: list[tuple[int, int, int]] = []  # line, byte offset, bytes of text
    for line, offset, value in jsonl_rows(path, field):
        size = len(_text(path, field, f"line {line}", value))
        if size:
            places.append((line, offset, size))
    _need_any(path, field, len(places))
    return Documents(
        np.array([size for _, _, size in places], dtype=np.int64),
        lambda i: _text(path, field, f"line {places[i][0]}", jsonl_value(path, places[i][1], field)),
        lambda i: f"line {places[i][0]} of '{path}'",
    )


def _open_parquet(path: Path, field: str) -> Documents:
    column = parquet_column(path, field)
    rows = [row for row in range(len(column)) if _text(path, field, f"row {row + 1}", column[row].as_py())]
    _need_any(path, field, len(rows))

    def read(i: int) -> bytes:
        return _text(path, field, f"row {rows[i] + 1}", column[rows[i]].as_py())

    sizes = np.array([len(read(i)) for i in range(len(rows))], dtype=np.int64)
    return Documents(sizes, read, lambda i: f"row {rows[i] + 1} of '{path}'")


def _text(path: Path, field: str, place: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(
            f"workload.field is {field!r}; it must be text in every row of '{path}', and {place} is "
            f"{type(value).__name__}"
        )
    return value.encode("utf-8", "surrogatepass")  # JSON can hold half a surrogate pair


def _need_any(path: Path, field: str, num: int) -> None:
    if num == 0:
        raise ValueError(f"workload.path is '{path}'; it must hold at least 1 document with text in {field!r}")
