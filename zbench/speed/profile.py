"""Sums up where a device's time goes, of a profiler's trace (Chrome's format, as torch.profiler writes it). No torch.

Work on a GPU counts where it was asked for: a kernel has the number of the call that launched it, and that call lies
inside operations and named spans (zbench.runtime.kernels.span) of its thread. Names of kernels, which change with every
library, are not looked at. On a CPU the innermost operations are the work.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]

PREFIX = "zbench: "  # of the spans; zbench.runtime.kernels.span imports torch
WHOLE = ("attention", "cross-entropy", "optimizer")  # spans of which all work counts, matmuls included
MATMUL, OTHER = "matmul", "other"  # other: copies of weights, sums of gradients, the embedding
_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_MICROSECOND = 1e-6


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """The shares of a device's time. seconds: device time by what it was spent on. busy: of all, what is at the same
    time once. launches: how many."""

    seconds: dict[str, float]
    busy: float
    launches: int


def time_shares(events: Iterable[Event]) -> DeviceTime:
    """Returns the shares of time in a trace's events."""
    complete = [one for one in events if one.get("ph") == "X"]
    device = [one for one in complete if one.get("cat") in _ON_DEVICE]
    outer = _outer(one for one in complete if one.get("cat") in ("user_annotation", "cpu_op", *_CALLS))
    if device:
        owners = {call["args"]["correlation"]: path for call, path, _ in outer if call["cat"] in _CALLS}
        work = [(one, owners.get(one["args"].get("correlation"), ())) for one in device]
    else:
        work = [(one, path) for one, path, is_leaf in outer if one["cat"] == "cpu_op" and is_leaf]
    seconds: dict[str, float] = {}
    for one, path in work:
        group = _group([*path, one["name"]])
        seconds[group] = seconds.get(group, 0.0) + one["dur"] * _MICROSECOND
    origin = min((one["ts"] for one, _ in work), default=0.0)  # times since 1970 would round durations
    begun = [(one["ts"] - origin, one["dur"]) for one, _ in work]
    return DeviceTime(seconds, _union([(ts, ts + dur) for ts, dur in begun]) * _MICROSECOND, len(work))


def _outer(events: Iterable[Event]) -> list[tuple[Event, tuple[str, ...], bool]]:
    """Returns every event with the names of those around it on its thread, outermost first; and whether none is inside
    it."""
    found: list[tuple[Event, tuple[str, ...], bool]] = []
    stack: list[int] = []
    for one in sorted(events, key=lambda one: (one["pid"], one["tid"], one["ts"], -one["dur"])):
        while stack and not _holds(found[stack[-1]][0], one):
            stack.pop()
        if stack:
            event, path, _ = found[stack[-1]]
            found[stack[-1]] = (event, path, False)
        path = tuple(found[at][0]["name"] for at in stack)
        stack.append(len(found))
        found.append((one, path, True))
    return found


def _holds(outer: Event, inner: Event) -> bool:
    same = (outer["pid"], outer["tid"]) == (inner["pid"], inner["tid"])
    return same and bool(inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])


def _group(path: list[str]) -> str:
    spans = [name.removeprefix(PREFIX) for name in path if name.startswith(PREFIX)]
    for name in spans:
        if name in WHOLE:
            return name
    if any(name in _MATMULS for name in path):
        return MATMUL
    return next(iter(spans), OTHER)


def _union(spans: list[tuple[float, float]]) -> float:
    """Returns the length of what the spans cover."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered
