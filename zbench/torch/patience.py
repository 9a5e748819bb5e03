"""A rank that waited in vain for another one, or lost it, says which ranks are to blame, and where all the others are.

A wait for a message ends by the process group's own timeout, and its error names nobody. So every rank counts its calls
and says twice a second in the group's store which one it is in (zbench.torch.whereabouts); who gives up, or refuses a
call, says so at once. Whoever waits in vain in call N reads there who has not come to call N, who came to another one,
and who left it with an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from torch import Tensor

from zbench.runtime.processes.board import SLOT_BYTES
from zbench.runtime.transport.transport import Endpoint
from zbench.torch.whereabouts import CLOSED, GAVE_UP, PERIOD, RAISED, CallBoard, Teller, Whereabouts, read_whereabouts

GRACE = 3.0  # seconds within which ranks that began to wait at the same call give up
_RULE = "every rank of the group has to make the same calls, as often and in the same order"
_CLOSED = "the Runtime is closed; attention, gather and micro_batches come before its close()"


@dataclass
class Patience:
    """A rank's patience with others, and what it says when that has ended.

    store: a torch.distributed.Store of the group. timeout: seconds, which the group's waits take. board: where the rank
    says where it is. ended: what was said, after which nothing can run on the group any more. is_closed: the Runtime
    was closed.
    """

    store: Any
    rank: int
    num_ranks: int
    timeout: float
    board: CallBoard = field(default_factory=lambda: CallBoard(bytearray(SLOT_BYTES), 0))
    ended: str = ""
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._teller = Teller(self.store, self.rank, self.board)

    @contextmanager
    def call(self, place: str) -> Iterator[None]:
        """Frames a collective call, which every rank counts; what it is refused for is told to those that wait in it.

        Raises:
            ValueError: the Runtime is closed.
            RuntimeError: a rank did not come before, so that nothing runs on the group any more.
        """
        if self.is_closed:
            raise ValueError(_CLOSED)
        if self.ended:
            raise RuntimeError(f"the group cannot be used any more: {self.ended}")
        self.board.begin(place)
        try:
            yield
        except ValueError as error:
            self._teller.tell(RAISED, _first_line(error))
            raise

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Frames a wait for all others; an error of torch.distributed becomes a sentence."""
        self.board.wait()
        try:
            yield
        except RuntimeError as error:
            raise self.failed(error) from error
        self.board.resume()

    def be_patient_once(self, seconds: float) -> None:
        """Returns once all ranks are in as many calls as this one, or after so many seconds: ranks that compile at once
        may be further apart than the timeout."""
        until = monotonic() + seconds
        self._teller.look()
        while monotonic() < until:
            told = [read_whereabouts(self.store, rank) for rank in range(self.num_ranks)]
            if all(at is not None and (at.calls >= self.board.calls or at.has_ended) for at in told):
                return
            sleep(PERIOD)

    def close(self) -> None:
        """Refuses calls from now on, says so to the others and ends the thread that does; any number of times."""
        self.is_closed = True
        self._teller.close()

    def failed(self, error: RuntimeError, peer: int | None = None) -> RuntimeError | TimeoutError:
        """Returns the error to raise in place of one that torch.distributed raised. peer: whom the rank waited for;
        None: all."""
        if self.is_closed:
            return RuntimeError(_CLOSED)
        whom = "the others" if peer is None else f"rank {peer}"
        place = self.board.place
        self._teller.tell(GAVE_UP)
        told, is_known = self._others()
        is_late = any(words in str(error).lower() for words in ("timed out", "timeout"))  # gloo has several sentences
        ended = [rank for rank, at in told.items() if at is not None and at.has_ended]
        found: RuntimeError | TimeoutError
        if not is_late and (not ended or (peer is not None and peer not in ended)):  # who ends closes connections, too
            found = RuntimeError(f"rank {self.rank} lost {whom} in {place}: {_first_line(error)}")
        else:
            waited = f"rank {self.rank} waited {f'{self.timeout:g} s ' if is_late else ''}for {whom} in {place}"
            unknown = "the group's store, which knows where they are, is gone with the rank that had it"
            blamed = blame(told, self.board.calls, place) if is_known else unknown
            found = TimeoutError(f"{waited}, and {blamed}; {_RULE}")
        self.ended = self.ended or str(found)
        return found

    def _others(self) -> tuple[dict[int, Whereabouts | None], bool]:
        """Returns where every other rank is, None where it never said, once all have ended or GRACE seconds have
        passed; and whether the store is still there to say it."""
        told: dict[int, Whereabouts | None] = {rank: None for rank in range(self.num_ranks) if rank != self.rank}
        until = monotonic() + max(min(GRACE, self.timeout), 2 * PERIOD)
        while monotonic() < until:
            for rank in told:
                try:
                    told[rank] = read_whereabouts(self.store, rank)
                except RuntimeError:
                    return told, False
            if all(at is not None and at.has_ended for at in told.values()):
                break
            sleep(0.1)
        return told, True


def blame(told: dict[int, Whereabouts | None], calls: int, place: str) -> str:
    """Says for whom a rank waited in vain in its call number `calls`, at `place`. told: where all others are.

    Who left a call with an error is to blame first; then who has not come to as many calls, unless it waits itself;
    then who came to another call in this one's place. Who is past the call, or waits in it, is named where nobody else
    is.
    """
    known = {rank: at for rank, at in told.items() if at is not None}
    raised = [rank for rank, at in known.items() if at.state == RAISED]
    closed = [rank for rank, at in known.items() if at.state == CLOSED and at.calls < calls]
    absent = [rank for rank, at in told.items() if at is None or (at.calls < calls and not at.has_ended)]
    here = {rank: at for rank, at in known.items() if rank not in (*raised, *closed, *absent) and at.calls <= calls}
    other = [rank for rank, at in here.items() if at.place != place]
    words = [f"rank {rank} left {known[rank].place} with an error ({known[rank].words})" for rank in raised]
    words += [f"rank {rank} closed its Runtime" for rank in closed]
    if absent:
        words.append(f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))} did not come there")
    words += [f"rank {rank} is in {known[rank].place} instead" for rank in other]
    if words:
        return " and ".join(words)
    return f"all ranks have come as far ({'; '.join(f'rank {rank}: {at.place}' for rank, at in known.items())})"


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
    return f"{type(error).__name__}: {str(error).strip()}".split("\n")[0]
