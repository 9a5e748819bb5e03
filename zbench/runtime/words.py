"""What the processes of a local fleet print: shown line by line under their name, the last lines kept. Torch-free."""

import os
import sys
from collections import deque
from collections.abc import Sequence

LAST_LINES = 20


class Words:
    """The reading end of the pipe that one process prints to."""

    def __init__(self, name: str, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._name, self._rest = name, b""

    def read(self, show: bool) -> bool:
        """Takes what has come; whether anything had (if not where it seemed so, it was the end)."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._tell(lines, show)
        return bool(data)

    def close(self, show: bool) -> None:
        while self.read(show):
            pass
        self._tell([self._rest] if self._rest else [], show)
        os.close(self.descriptor)

    def _tell(self, lines: Sequence[bytes], show: bool) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            if text.strip():
                self.last.append(text)
            if show:
                print(f"{self._name}: {text}", file=sys.stderr)
