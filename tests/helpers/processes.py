"""What tests need to know of processes: who lives, who started whom, and how to wait for the end."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def until(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether `holds` within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return holds()


def lives(pid: int) -> bool:
    """A process that ended but that nobody has asked about yet does not live."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def all_gone(pids: Iterable[int], seconds: float = 60.0) -> bool:
    kept = list(pids)
    return until(lambda: not any(map(lives, kept)), seconds)


def children(pid: int) -> list[int]:
    """Of all threads of `pid`, those that live."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in path.read_text().split()]
    return [child for child in found if lives(child)]


def descendants(pid: int) -> list[int]:
    own = children(pid)
    return own + [further for child in own for further in descendants(child)]
