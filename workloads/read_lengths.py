"""Reads the lengths of a .txt, .npy, .npz, .jsonl or .parquet file, naming the line of a bad one. Pure."""

import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zbench.describe.arrays import Ints
from zbench.workloads.check import MOST, text
from zbench.workloads.tables import jsonl_rows, need_path, parquet_column

_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    OverflowError,
    MemoryError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)  # what numpy lets out of a file that is none of its kind
_SUFFIXES = (".txt", ".npy", ".npz", ".jsonl", ".parquet")
FILE_OF_LENGTHS = "a file of lengths, .txt, .npy, .npz, .jsonl or .parquet"


def read_lengths(path: str | None, field: str) -> Ints:
    """Reads every length of the file, in order, each checked to be a whole number of at least 1."""
    text("workload.field", field)
    found = need_path(path, f"{FILE_OF_LENGTHS} (workload.path=FILE)")
    if found.is_dir():
        raise ValueError(f"workload.path is '{found}', which is a folder; it must be {FILE_OF_LENGTHS}")
    if found.suffix not in _SUFFIXES or not found.is_file():
        raise ValueError(f"workload.path is '{found}'; it must be a file that ends in {', '.join(_SUFFIXES)}")
    if found.suffix in (".txt", ".jsonl"):
        read = _read_txt if found.suffix == ".txt" else _read_jsonl
        lines, values = read(found, field)
        lengths = _whole(found, values, "line", lines, "" if found.suffix == ".txt" else field)
    elif found.suffix == ".parquet":
        column = parquet_column(found, field).to_pylist()
        lengths = _whole(found, column, "row", range(1, len(column) + 1), field)
    else:
        array = _read_numpy(found, field)
        lengths = _whole(found, array.tolist(), "entry", range(1, array.size + 1))
    if lengths.size == 0:
        raise ValueError(f"workload.path is '{found}', which holds no lengths; it must hold at least 1")
    return lengths


def _read_txt(path: Path, field: str) -> tuple[list[int], list[Any]]:
    # A byte that is no text is left to fail as a number, where its line is known.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    kept = [(i, line.strip()) for i, line in enumerate(lines, start=1) if line.strip()]
    return [i for i, _ in kept], [_parse(text) for _, text in kept]


def _parse(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _read_jsonl(path: Path, field: str) -> tuple[list[int], list[Any]]:
    rows = list(jsonl_rows(path, field))
    return [line for line, _, _ in rows], [value for _, _, value in rows]


def _read_numpy(path: Path, field: str) -> Any:
    try:
        # Opened here, since numpy leaves a file open that turns out to be none of its kind.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            archive = isinstance(loaded, np.lib.npyio.NpzFile)
            names = loaded.files if archive else []
            array = loaded if not archive else loaded[field] if field in names else None
    except _UNREADABLE as error:
        told = str(error) or "it says that it holds more than this machine can"
        if "pickle" in told:  # numpy takes whatever is no array for a pickle, and says how to load one
            told = "its bytes are no numpy arrays"
        raise ValueError(f"workload.path is '{path}'; it must be a readable numpy file ({told})") from None
    if array is None:
        raise ValueError(f"workload.field is {field!r}; it must be an array of '{path}': {', '.join(names) or 'none'}")
    if isinstance(array, bytes) or array.dtype.itemsize == 0:  # no array, which numpy hands on, or one of nothing
        raise ValueError(f"workload.path is '{path}'; it must hold an array of numbers")
    if array.ndim != 1:
        raise ValueError(f"workload.path is '{path}' with an array of {array.ndim} dimensions; it must have 1")
    return array


def _whole(path: Path, values: Sequence[Any], kind: str, places: Sequence[int], field: str = "") -> Ints:
    """Returns the values as int64; the first that is no length is named by its place in the file, and by its field
    where rows have several."""
    of = f"{field} of " if field else ""
    for place, value in zip(places, values, strict=True):
        # 12.0 is a whole number (numpy's savetxt writes such); True and "12" are not numbers.
        is_number = type(value) is int or (type(value) is float and value.is_integer())
        if not is_number or not 1 <= value <= MOST:
            raise ValueError(
                f"workload.path is '{path}'; {of}{kind} {place} is {value!r}, and a length must be a whole number "
                f"of at least 1 and at most {MOST}"
            )
    return np.array(values, dtype=np.int64)
