"""A rank that waited in vain for another one, or lost it, says who did not come, and where the others are.

A wait for a message ends by the process group's own timeout, and its error names nobody. So every rank that gives up
writes into the group's store where it waits; whoever has written nothing some seconds later is not waiting there.
"""

from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from torch import Tensor

from zbench.runtime.processes.board import SLOT_BYTES, Board
from zbench.runtime.transport.transport import Endpoint

GRACE = 3.0  # seconds within which ranks that began to wait at the same call give up
_RULE = "every rank of the group has to make the same calls, as often and in the same order"


@dataclass
class Patience:
    """A rank's patience with others, and what it says when that has ended.

    store: a torch.distributed.Store of the group. timeout: seconds, which the group's waits take. board: where the rank
    says where it is. ended: what was said, after which nothing can run on the group any more.
    """

    store: Any
    rank: int
    num_ranks: int
    timeout: float
    board: Board = field(default_factory=lambda: Board(bytearray(SLOT_BYTES), 0))
    ended: str = ""

    def failed(self, error: RuntimeError, peer: int | None = None) -> RuntimeError | TimeoutError:
        """Returns the error to raise in place of one that torch.distributed raised. peer: whom the rank waited for;
        None: all."""
        whom = "the others" if peer is None else f"rank {peer}"
        place = self.board.place
        self._tell(f"it waits in {place}")
        told = self._others()
        absent = [rank for rank, words in enumerate(told) if words is None and rank != self.rank]
        is_late = any(words in str(error).lower() for words in ("timed out", "timeout"))  # gloo has several sentences
        heard = [words for rank, words in enumerate(told) if rank != self.rank and words]
        found: RuntimeError | TimeoutError
        if not is_late and (peer in absent or not heard):  # not of one that gave up, and closed its connections, too
            found = RuntimeError(f"rank {self.rank} lost {whom} in {place}: {_first_line(error)}")
        else:
            waited = f"rank {self.rank} waited {f'{self.timeout:g} s ' if is_late else ''}for {whom} in {place}"
            names = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))} did not come there"
            where = "; ".join(f"rank {rank}: {words}" for rank, words in enumerate(told) if words)
            found = TimeoutError(f"{waited}, and {names if absent else f'all ranks wait ({where})'}; {_RULE}")
        self.ended = self.ended or str(found)
        return found

    def _tell(self, words: str) -> None:
        """Writes for the other ranks what this one does; its store may be gone with the rank that had it."""
        try:
            self.store.set(f"zbench/{self.rank}", words)
        except RuntimeError:
            return

    def _others(self) -> list[str | None]:
        """Returns what every rank wrote, once all have or GRACE seconds have passed; None: nothing, or the store is
        gone."""
        told: list[str | None] = [None] * self.num_ranks
        until = monotonic() + min(GRACE, self.timeout)
        while None in told and monotonic() < until:
            for rank in range(self.num_ranks):
                try:
                    if self.store.check([f"zbench/{rank}"]):
                        told[rank] = str(self.store.get(f"zbench/{rank}").decode())
                except RuntimeError:
                    return told
            sleep(0.1)
        return told


@dataclass
class PatientEndpoint(Endpoint):
    """A rank's messages on a process group, whose waits fail with a sentence of `patience`."""

    patience: Patience | None = None

    def send(self, data: Tensor, peer: int, tag: int) -> Any:
        return _Awaited(super().send(data, peer, tag), peer, self.patience)

    def receive(self, data: Tensor, peer: int, tag: int) -> Any:
        return _Awaited(super().receive(data, peer, tag), peer, self.patience)


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A message under way, from or to `peer`."""

    work: Any
    peer: int
    patience: Patience | None

    def wait(self) -> None:
        try:
            self.work.wait()
        except RuntimeError as error:
            if self.patience is None:
                raise
            raise self.patience.failed(error, self.peer) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
