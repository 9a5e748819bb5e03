"""Checks of what a user writes in a workload's yaml: one sentence with field, value and bound. Pure."""

import math
from typing import Any

from zbench.describe.checks import check_whole_number

MOST = 1 << 40  # tokens: far above any document or batch, far below where sums of them overflow


def whole(field: str, value: Any, low: int, high: float = MOST) -> None:
    """Raises ValueError unless `value` is a whole number of at least `low` and at most `high`."""
    check_whole_number(field, value, low)
    if value > high:
        raise ValueError(f"{field} is {value}; it takes a whole number of at most {high}")


def text(field: str, value: Any) -> None:
    """Raises ValueError unless `value` is text."""
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r}; it must be text")


def number(field: str, value: Any, low: float = -math.inf, high: float = math.inf, above: bool = False) -> None:
    """Raises ValueError unless `value` is a finite number in [low, high], or in (low, high] with `above`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and value <= high and (value > low if above else value >= low):
        return
    bounds = [f"{'above' if above else 'at least'} {low:g}"] if low > -math.inf else []
    bounds += [f"at most {high:g}"] if high < math.inf else []
    raise ValueError(f"{field} is {value!r}; it must be a finite number" + (f", {' and '.join(bounds)}" * bool(bounds)))


def choice(field: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{field} is {value!r}; it must be one of {', '.join(allowed)}")
