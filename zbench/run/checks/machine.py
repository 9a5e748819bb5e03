"""Resources that this machine has for a job: cores, free memory, room for a file. Linux; no torch."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def free_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """Returns the bytes that new work can have: the system's estimate, and no more than a container's limit leaves."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = 1024 * int(lines["MemAvailable"].split()[0])
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:  # no container, or one of an older kind
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - int(used)))


def free_disk(path: Path) -> int | None:
    """Returns the bytes that a file can grow by; None for what is no file, as /dev/null."""
    if path.exists() and not path.is_file():
        return None
    room = os.statvfs(path.resolve().parent)
    return room.f_bavail * room.f_frsize
