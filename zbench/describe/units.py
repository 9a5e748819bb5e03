"""Reads quantities with units, as people write them in yaml, as SI numbers.

Inside the program everything is in seconds, bytes, FLOP/s and bytes/s; only yaml and tables
speak of Gbit/s or TFLOP/s.
"""

import re

_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
# unit -> (kind, factor to SI)
_UNIT = {
    "B": ("bytes", 1.0),
    "B/s": ("bytes/s", 1.0),
    "bit/s": ("bytes/s", 1 / 8),
    "FLOP/s": ("FLOP/s", 1.0),
    "s": ("seconds", 1.0),
}
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([KMGT]i|[kMGTPmun]?)(B/s|bit/s|FLOP/s|B|s)\s*")


_EXAMPLES = {"bytes": "80 GiB", "bytes/s": "200 Gbit/s", "FLOP/s": "312 TFLOP/s", "seconds": "5 us"}


def with_noun(count: int, noun: str) -> str:
    """Writes a number with its noun: '1 GPU', '1,024 GPUs', '2 batches'."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith(("ch", "ss")) else "s")


def in_gib(size: float) -> str:
    """Writes bytes as GiB: '33.5', '0.03'."""
    found = size / 2**30
    return f"{found:.1f}" if found >= 0.05 else f"{found:.1g}"


def in_bytes(size: float) -> str:
    """Writes bytes with the largest unit of which there is half a one: '33.5 GiB', '100.0 KiB', '12 bytes'."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if (found := size / 1024**power) >= 0.5:
            return f"{found:,.1f} {unit}"
    return f"{size:,.0f} bytes"


def parse(field: str, value: float | int | str, kind: str) -> float:
    """Returns `value` as an SI number of `kind` ("bytes", "bytes/s", "FLOP/s" or "seconds").

    A number is a program's and SI already; text is a person's and carries its unit ("200 Gbit/s", "80 GiB").

    Raises:
        ValueError: not a quantity, without a unit, or with one of another kind; the message names `field`.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = str(value)
    if re.fullmatch(rf"\s*{_NUMBER}\s*", text):
        check_unit(field, float(text), kind)
    match = _QUANTITY.fullmatch(text)
    unit = _UNIT[match[3]] if match else None
    if match is None or unit is None or unit[0] != kind:
        raise ValueError(
            f"{field} is {value!r}; it takes {kind}, a number with its unit, as in '{_example(field, kind)}'"
        )
    prefix = _BINARY[match[2]] if match[2] in _BINARY else _PREFIX[match[2]]
    return float(match[1]) * prefix * unit[1]


def _example(field: str, kind: str) -> str:
    """Returns how a quantity may be written: of networks' rates in bits, of all others in bytes."""
    return "200 GB/s" if kind == "bytes/s" and "nic" not in field else _EXAMPLES[kind]


def check_unit(field: str, value: object, kind: str) -> None:
    """Refuses a number that a person wrote without its unit; 0 is the same in every unit.

    Raises:
        ValueError: `value` is a number other than 0; the message shows how to write it.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0:
        example = _example(field, kind)
        unit = example.partition(" ")[2]
        if not 0 < value < float("inf"):
            raise ValueError(
                f"{field} is {value:g}; it takes a number above 0 with its unit, as in {field}='{example}'"
            )
        raise ValueError(f"{field} is {value:g}, which has no unit; write it as in {field}='{value:g} {unit}'")
