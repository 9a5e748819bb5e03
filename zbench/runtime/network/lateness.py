"""Measures by how long messages were late because processors were busy, as the kernel's scheduler says.

A message between nodes of one machine takes a thread of gloo at each end. While such a thread could run and waits for a
processor, the message stands still, which no link and no device explains. No torch.
"""

from pathlib import Path

SCHEDSTAT = Path("/proc/self/schedstat")  # of kernels with CONFIG_SCHED_INFO
_TASKS = Path("/proc/self/task")
_THREADS = "gloo_tcp_loop"  # the name that gloo gives to them


class Lateness:
    """The lateness of this process's messages, from begin() on. Once gloo is open."""

    def __init__(self) -> None:
        self._tasks = [task for task in _TASKS.iterdir() if (task / "comm").read_text().strip() == _THREADS]
        assert self._tasks, f"gloo is open and has no thread {_THREADS}"
        self._before = 0.0

    def begin(self) -> None:
        """Counts from now on."""
        self._before = self._waited()

    def seconds(self) -> float:
        """Returns the seconds that all of these threads together waited for a processor."""
        return self._waited() - self._before

    def _waited(self) -> float:
        """Sums the seconds that threads waited so far; the second number counts nanoseconds
        (Documentation/scheduler/sched-stats.rst of Linux)."""
        return 1e-9 * sum(int((task / "schedstat").read_text().split()[1]) for task in self._tasks)
