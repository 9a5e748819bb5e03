"""Reads the words of zbench check loss and zbench check attention."""

from collections.abc import Sequence

import torch

from zbench.check.kinds import function_kind
from zbench.check.processes import FunctionCheck
from zbench.check.settings import split_settings, whole_number
from zbench.check.verdict import LIMITS
from zbench.console.sentence import not_among

MOST_RANKS = 64
_KEYS = ("case", "dtype", "device", "ranks", "over", "seconds")
_DEVICES = ("cpu", "cuda")


def read_job(kind: str, words: Sequence[str]) -> FunctionCheck:
    """Returns the job that the words after `zbench check KIND` ask for.

    Raises:
        ValueError: the function is missing, or a setting is none or has no such value.
    """
    named = [word for word in words if "=" not in word]
    if len(named) != 1:
        found = f"has {', '.join(named)}" if named else "has none"
        raise ValueError(f"zbench check {kind} {found}; it takes one function, as MODULE:FUNCTION")
    given = split_settings(words, _KEYS, f"zbench check {kind}")
    ranks = whole_number("ranks", given.get("ranks", "1"), MOST_RANKS)
    over, dtype, device = given.get("over", "mean"), given.get("dtype", "float64"), given.get("device", "cpu")
    for key, value, options in (
        ("over", over, ("mean", "sum")),
        ("dtype", dtype, LIMITS),
        ("device", device, _DEVICES),
    ):
        if value not in options:
            raise ValueError(not_among(key, value, options))
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda; this machine has no CUDA device that torch can use")
    cases = function_kind(kind, over).cases(ranks)
    chosen = given["case"].split(",") if "case" in given else list(cases)
    for case in chosen:
        if case not in cases:
            raise ValueError(not_among("case", case, cases))
    seconds = whole_number("seconds", given.get("seconds", "30"), 3600)
    return FunctionCheck(kind, named[0], tuple(chosen), ranks, dtype, device, over, seconds)
