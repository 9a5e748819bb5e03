"""Messages that are under way to a process, and what it sends that is not there before they have come."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from zbench.runtime.clocks.named import Name
from zbench.runtime.clocks.step_notes import NotedOperation, Posted


class AwaitedBytes(Protocol):
    """Bytes that may not be there yet. Any thread may wait for them, any number of times."""

    @property
    def size(self) -> int:
        """The number of bytes that there will be."""

    @property
    def of(self) -> NotedOperation | None:
        """The operation whose message it is; None where nothing is noted, or it is of several."""

    def wait(self) -> Tensor:
        """Returns the bytes once they are there."""


@dataclass
class Arrival:
    """A message that is under way to this process. name: that it is known by where it came from; None: it has none.
    note: of its coming; None where nothing is noted. is_here: whether it was waited for."""

    data: Tensor
    works: list[Any]
    name: Name | None = None
    note: Posted | None = None
    shares: Sequence["Arrival"] = ()  # that it comes in, each of a part of `data`
    is_here: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def size(self) -> int:
        """The bytes of the message."""
        return self.data.numel()

    @property
    def of(self) -> NotedOperation | None:
        """The operation whose message it is; None where nothing is noted."""
        if self.shares:
            return self.shares[0].of
        return None if self.note is None else self.note.of

    def wait(self) -> Tensor:
        """Returns the message's bytes once they are there."""
        with self._lock:  # gloo's are waited for once only
            for work in (*self.works, *self.shares):
                work.wait()
            self.works = []
            if self.note is not None:
                self.note.arrives()
            self.is_here = True
        return self.data


@dataclass
class Later:
    """A message that leaves once others have come, which are added to it or which it is put together of. needs: these;
    make: puts it together then; size: its bytes."""

    needs: Sequence[Arrival]
    make: Callable[[], Tensor]
    size: int
    of: NotedOperation | None = None
    _made: Tensor | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def wait(self) -> Tensor:
        """Returns the bytes, put together once."""
        with self._lock:
            if self._made is None:
                for one in self.needs:
                    one.wait()
                self._made = self.make()
            return self._made
