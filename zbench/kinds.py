"""The kinds of files that commands write, each known by how its files begin. Pure."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HEAD = 1 << 20  # bytes of a file that are looked at


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file. name: with its article. fits: whether a file that begins so, which is not empty, is one."""

    name: str
    fits: Callable[[bytes], bool]


def _lines(*keys: str, **values: tuple[str, ...]) -> Callable[[bytes], bool]:
    """Whether a first line is a JSON object that has `keys` and one of the `values`; torn ones count by their begin."""

    def fits(head: bytes) -> bool:
        first = head.lstrip().partition(b"\n")[0]
        try:
            line: Any = json.loads(first)
        except (ValueError, RecursionError):
            begin = f'{{"{next(iter(values), keys[0] if keys else "")}"'.encode()
            return first.startswith(begin) or begin.startswith(first)
        return (
            isinstance(line, dict) and line.keys() >= {*keys, *values} and all(line[k] in v for k, v in values.items())
        )

    return fits


RECORD = Kind("a record of runs", _lines(kind=("start", "about", "step", "end")))
VERDICTS = Kind("a file of this command's findings", _lines("case", "failed"))
POINTS = Kind("a file of measured calls", _lines("backward", "seconds", "predicted"))
TRACE = Kind(
    "a trace of zbench's", lambda head: head.startswith(b'{"displayTimeUnit": "ms", "otherData": {"simulated": ')
)
PAGE = Kind("a report of zbench's", lambda head: b"<title>zbench report</title>" in head[:4096])
SHEET = Kind("a yaml of zbench.calibrate", lambda head: head.startswith(b"# Measured by zbench.calibrate"))
PICTURE = Kind(
    "a picture", lambda head: head.startswith(b"\x89PNG\r\n") or (head[:1] == b"<" and b"<!DOCTYPE svg" in head[:4096])
)
