"""Compares two runs over the same batches: how many times faster one is, and how sure that is. Pure: no torch."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any, TypeVar

from zbench.record.interval import log_ratio
from zbench.record.metrics import counted

Step = Mapping[str, Any]
T = TypeVar("T", bound=Step)


def speedup(steps: Sequence[Step], baseline: Sequence[Step]) -> float | None:
    """Returns how many times faster a run is than the baseline on the same batches, by sums of seconds; None where
    `_pairs` is."""
    paired = _pairs(steps, baseline)
    if paired is None:
        return None
    return float(sum(other["seconds"] for _, other in paired) / sum(step["seconds"] for step, _ in paired))


def speedup_interval(steps: Sequence[Step], baseline: Sequence[Step]) -> tuple[float, float] | None:
    """Returns (lowest, highest): the speed-up's 95 % interval over batches; None where there are too few
    (zbench.record.interval)."""
    paired = _pairs(steps, baseline)
    if paired is None:
        return None
    middle, half = log_ratio([step["seconds"] for step, _ in paired], [other["seconds"] for _, other in paired])
    return None if half is None else (exp(middle - half), exp(middle + half))


def _pairs(steps: Sequence[T], baseline: Sequence[T]) -> list[tuple[T, T]] | None:
    """Returns every step beside the baseline's on the same batch, told by step and digest, if both count.

    None where the baseline lacks one of the batches, none is left, or either ran out of memory.
    """
    of = {(step["step"], step["batch"]): step for step in baseline}
    found = [(step, of.get((step["step"], step["batch"]))) for step in steps]
    matched = [(step, other) for step, other in found if other is not None]
    if len(matched) < len(steps):
        return None
    matched = [pair for pair in matched if len(counted(pair)) == 2]
    if not matched or any(step["out_of_memory"] or other["out_of_memory"] for step, other in matched):
        return None
    return matched
