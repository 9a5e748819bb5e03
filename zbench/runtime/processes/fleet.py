"""A fleet: one object per rank, whose methods a driver calls on all ranks at once, and how a failure is told.

Torch-free. It knows nothing of training, nor of where the ranks run: zbench.runtime.processes.launch starts them on
this machine, zbench.runtime.processes.join finds them under torchrun or Slurm.
"""

import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

LONGEST_MESSAGE = 400  # characters; torch's own go on for pages
_OWN = {"zbench"}
_OF_PEERS = ("gloo", "nccl", "closed by peer", "reset by peer", "broken pipe", "c10d", "tcpstore", "socket")


class Fleet(Protocol):
    """A fleet of ranks with one object each. A context manager: leaving it closes the fleet."""

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""

    def call(self, method: str, *arguments: Any, per_rank: Sequence[Any] | None = None) -> list[Any]:
        """Runs `method(*arguments)` on the object of every rank, and returns what they return, in rank order.

        per_rank: one more argument, the last, of which rank r gets per_rank[r]. Arguments and results are
        pickled; results hold nothing whose unpickling imports torch where the driver shall stay without.

        Raises:
            RankFailed: a rank died, raised, or none made progress; the fleet has ended.
        """

    def close(self) -> None:
        """Ends the ranks orderly, in 5 s at most: their object's close() if it has one, then the processes.

        Raises:
            RankFailed: a rank died or raised while closing.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Closes; where an error is on its way already, failures of closing are not told."""


class RankFailed(Exception):
    """A rank failed and the fleet has ended. The message is one sentence: who, what, where.

    The rank's own traceback or last words are notes, which Python shows below a traceback.
    """

    def __init__(self, sentence: str, rank: int | None = None, details: str = "") -> None:
        super().__init__(sentence)
        self.rank = rank
        if details.strip():
            self.add_note(details.rstrip())


@dataclass(frozen=True, slots=True)
class Failure:
    """A message of a rank to the driver that a call of its object failed.

    place: what the rank was doing, as it said itself. where: "file.py:12", the innermost line of ours.
    of_peers: it reads like the consequence of another rank's end, so another cause is to be preferred.
    """

    what: str
    message: str
    place: str
    where: str
    details: str
    of_peers: bool

    @staticmethod
    def of(error: BaseException, place: str, package: str) -> "Failure":
        """Makes the message of an error. package: the one that the rank's object comes from; its lines count as
        ours."""
        kind, message = type(error).__name__, one_line(str(error))
        what = "ran out of memory" if is_out_of_memory(error) else f"raised {kind}"
        of_peers = isinstance(error, (RuntimeError, ConnectionError)) and any(
            word in f"{kind} {message}".lower() for word in _OF_PEERS
        )
        details = "".join(traceback.format_exception(error))
        return Failure(what, message, place, _innermost(error, {*_OWN, package}), details, of_peers)


def failure_sentence(who: str, what: str, at: str = "", message: str = "", where: str = "") -> str:
    """Writes a sentence like "rank 1 raised ValueError in step 3, backward: it is odd (trainer.py:12)"; at: "in step 3,
    backward"."""
    told = f"{who} {what}{f' {at}' if at else ''}"
    return f"{told}{f': {message}' if message else ''}{f' ({where})' if where else ''}"


def ending(status: int) -> str:
    """Says how a process ended, from what waitpid or subprocess say: negative for a signal, else an exit code."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = "a signal"
    guess = "; the system may be out of memory" if -status == signal.SIGKILL else ""
    return f"was killed by signal {-status} ({name}{guess})"


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error is of Python's memory, of CUDA's (torch.OutOfMemoryError), or of torch's CPU allocator
    (a RuntimeError)."""
    text = str(error)
    return type(error).__name__ in ("MemoryError", "OutOfMemoryError") or (
        isinstance(error, RuntimeError) and ("DefaultCPUAllocator" in text or "can't allocate memory" in text)
    )


def one_line(text: str) -> str:
    """Puts all of a message on one line, cut where it goes on too long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else f"{line[: LONGEST_MESSAGE - 3]}..."


def _innermost(error: BaseException, packages: set[str]) -> str:
    """Returns a place like "file.py:12", of the innermost frame of `packages`, this folder's plumbing aside; "" if
    there is none."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in packages and module != "zbench.runtime.processes.serve":
            found = f"{Path(frame.f_code.co_filename).name}:{line}"
    return found
