"""The kinds of files that commands write, each known by how its files begin. Pure."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HEAD = 1 << 20  # bytes of a file that are looked at


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that commands write. name: with its article. fits: whether a file that begins so, which is not
    empty, is one."""

    name: str
    fits: Callable[[bytes], bool]


def _lines(*keys: str, torn: tuple[str, ...] = (), **values: tuple[str, ...]) -> Callable[[bytes], bool]:
    """Tests for files of JSON objects, a line each, by the first: it has `keys` and one of the `values` of each name.

    torn: how such lines begin, without spaces. A first line that was torn counts where it begins so and nothing
    follows it, or lines that count: who appends to a torn line starts a fresh one.
    """

    def whole(line: bytes) -> bool:
        try:
            found: Any = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(found, dict) or not found.keys() >= {*keys, *values}:
            return False
        return all(found[name] in some for name, some in values.items())

    def begun(line: bytes) -> bool:
        laid = line[:200].replace(b'": ', b'":').replace(b', "', b',"').rstrip()
        return len(laid) > 1 and any(laid.startswith(one) or one.startswith(laid) for one in map(str.encode, torn))

    def fits(head: bytes) -> bool:
        for line in head.split(b"\n"):
            if whole(line):
                return True
            if line.strip() and not begun(line):
                return False
        return True

    return fits


_RECORDED = ("start", "about", "step", "end")
RECORD = FileKind(
    "a record of runs",
    _lines("run", kind=_RECORDED, torn=tuple(f'{{"kind":"{kind}","run":"' for kind in _RECORDED)),
)
VERDICTS = FileKind("a file of this command's findings", _lines("case", "failed", torn=('{"case":"',)))
POINTS = FileKind("a file of measured calls", _lines("backward", "seconds", "predicted"))
TRACE = FileKind(
    "a trace of zbench's", lambda head: head.startswith(b'{"displayTimeUnit": "ms", "otherData": {"simulated": ')
)
ADVICE = FileKind(
    "an answer of zbench advise",
    lambda head: head.replace(b" ", b"").replace(b"\n", b"").startswith(b'{"format":"zbench-advice/'),
)
PAGE = FileKind("a report of zbench's", lambda head: b"<title>zbench report</title>" in head[:4096])
PATH = FileKind("a critical path of zbench's", lambda head: head.startswith(b"Critical path of step "))
SHEET = FileKind("a yaml of zbench.calibrate", lambda head: head.startswith(b"# Measured by zbench.calibrate"))
PICTURE = FileKind(
    "a picture", lambda head: head.startswith(b"\x89PNG\r\n") or (head[:1] == b"<" and b"<!DOCTYPE svg" in head[:4096])
)
