"""Shows what the processes of a local fleet print, line by line under their name, and keeps the last lines.
Torch-free."""

import math
import os
import sys
import time
from collections import deque

LAST_LINES = 20


class Words:
    """The words of one process: the reading end of the pipe that it prints to. Lines are taken first and shown later,
    or not."""

    def __init__(self, name: str, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._name, self._rest = name, b""
        self._unshown: deque[tuple[float, str]] = deque()  # with the time it came

    def take(self) -> bool:
        """Takes what has come; returns whether anything had (if not where it seemed so, it was the end)."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._keep(line)
        return bool(data)

    def show(self, until: float = math.inf) -> None:
        """Prints the lines that came before `until` (of time.monotonic)."""
        while self._unshown and self._unshown[0][0] < until:
            print(f"{self._name}: {self._unshown.popleft()[1]}", file=sys.stderr)

    def close(self) -> None:
        """Takes the rest; the process is gone, or no matter."""
        while self.take():
            pass
        if self._rest:
            self._keep(self._rest)
        os.close(self.descriptor)

    def _keep(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        self._unshown.append((time.monotonic(), text))
        if text.strip():
            self.last.append(text)
