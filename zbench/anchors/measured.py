"""Rows of measured attention: one mask, pass, method and number of GPUs each, and the CSV file they come in.

The columns are those of MagiAttention's published charts, in the order of COLUMNS. Pure: no torch.
"""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zbench.anchors.anchor import Row
from zbench.describe.units import with_noun
from zbench.record.fields import shortened

COLUMNS = ("hw", "mask", "pass", "cp_size", "seqlen_per_rank", "method", "tflops_per_gpu")
PASSES = ("fwd", "bwd")
MOST_BYTES = 16 << 20  # of a file: a hundred thousand rows
LONGEST_NAME = 80
MOST_GPUS = 1024
MOST_TOKENS = 1 << 24  # of a pack: 16K tokens on each of 1,024 GPUs, whose plans still fit this machine's memory


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row of a table of measurements: one layer's attention took `tflops_per_gpu`, the slowest rank's time, over
    `cp_size` GPUs.

    pass_: "fwd" or "bwd". seqlen_per_rank: tokens of a GPU; a pack has cp_size times as many.
    """

    hw: str
    mask: str
    pass_: str
    cp_size: int
    seqlen_per_rank: int
    method: str
    tflops_per_gpu: float

    @property
    def configuration(self) -> str:
        """The configuration within which methods are compared, in words."""
        return f"{self.hw} {self.mask} {self.pass_} {with_noun(self.cp_size, 'GPU')} x {self.seqlen_per_rank}"

    def plain(self) -> "MeasuredRow":
        """Returns the row with its names in lower case, in which they are looked up."""
        names = {name: getattr(self, name).lower() for name in ("hw", "mask", "pass_", "method")}
        return replace(self, **names)

    def columns(self) -> dict[str, Any]:
        """Returns the values by the names of the CSV's columns."""
        values = (self.hw, self.mask, self.pass_, self.cp_size, self.seqlen_per_rank, self.method, self.tflops_per_gpu)
        return dict(zip(COLUMNS, values, strict=True))


def measured_row(row: Row) -> MeasuredRow:
    """Returns a row of strings with its numbers and names read.

    Raises:
        ValueError: a value is not what its column takes; the message begins with the column.
    """
    if row["pass"].lower() not in PASSES:
        raise ValueError(f"pass is {shortened(row['pass'])}; it takes fwd or bwd")
    for name in ("hw", "mask", "method"):
        if not 1 <= len(row[name]) <= LONGEST_NAME:
            raise ValueError(f"{name} is {shortened(row[name])}; it takes a name of 1 to {LONGEST_NAME} characters")
    cp_size = _whole("cp_size", row["cp_size"], MOST_GPUS)
    seqlen = _whole("seqlen_per_rank", row["seqlen_per_rank"], MOST_TOKENS)
    if cp_size * seqlen > MOST_TOKENS:
        raise ValueError(
            f"seqlen_per_rank is {seqlen}; times cp_size, {cp_size}, it takes at most {MOST_TOKENS} tokens a pack"
        )
    rate = _number("tflops_per_gpu", row["tflops_per_gpu"])
    return MeasuredRow(row["hw"], row["mask"], row["pass"], cp_size, seqlen, row["method"], rate)


def read_measured(path: Path) -> list[MeasuredRow]:
    """Returns the rows of a CSV file, in order; columns with other names are not read.

    Raises:
        ValueError: the file cannot be read or a value is wrong; one sentence with file, line, column and value.
    """
    found = []
    for line, fields in _lines(path):
        try:
            found.append(measured_row(fields))
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    if not found:
        raise ValueError(f"{path} has no rows below its header; it takes at least one measured row")
    return found


def _lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yields (line, fields by column) of every row that is not blank."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    header: list[str] = []
    while True:
        try:
            fields = [field.strip() for field in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: it cannot be read as CSV ({error})") from None
        if not any(fields):
            continue
        if not header:
            header = fields
            _check_header(header, f"{path}, line {reader.line_num}")
        elif len(fields) != len(header):
            raise ValueError(f"{path}, line {reader.line_num}: it has {len(fields)} values for {len(header)} columns")
        else:
            yield reader.line_num, dict(zip(header, fields, strict=True))


def _check_header(header: list[str], where: str) -> None:
    for name in COLUMNS:
        if header.count(name) != 1:
            problem = f"no column {name}" if name not in header else f"the column {name} twice"
            raise ValueError(f"{where}: the header has {problem}; it takes {', '.join(COLUMNS)}, each once")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES} bytes; --rows takes a CSV file of at most that many")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {data[: error.start].count(10) + 1}: it is not UTF-8 text") from None
    if not text.strip():
        raise ValueError(f"{path} is empty; it takes a header with {', '.join(COLUMNS)}, and rows")
    return text


def _whole(name: str, text: str, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {shortened(text)}; it takes a whole number from 1 to {most}")
    return value


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {shortened(text)}; it takes a number above 0, TFLOP/s of a GPU")
    return value
