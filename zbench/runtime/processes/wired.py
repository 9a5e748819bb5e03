"""A fleet over one wire per rank: sends calls, gathers answers, and when a rank fails finds out which and why.

Torch-free. Where the ranks run, and how they are ended, its two heirs know: LocalFleet and JoinedFleet.
"""

import pickle
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from zbench.runtime.processes.board import IDLE, SLOT_BYTES, WAITING, Watch, sight
from zbench.runtime.processes.fleet import RankFailed, failure_sentence
from zbench.runtime.processes.serve import CLOSE, CLOSING, DONE, FAILED, PULSE, STARTING, call_message
from zbench.runtime.processes.verdict import Troubles, stuck
from zbench.runtime.processes.wire import Wire

ROUND = 0.1  # seconds between two looks at the board
CLOSE_SECONDS = 5.0


class Wired(ABC):
    """A fleet of ranks that are called over wires. memory: of the board, a slot per rank, filled by the ranks or by the
    pulses they send.
    timeout: seconds without progress of any rank after which a call has failed."""

    def __init__(self, wires: Sequence[Wire], memory: Any, timeout: float) -> None:
        self._wires, self._memory, self._timeout = wires, memory, timeout
        self._selector = selectors.DefaultSelector()
        self._watch = Watch(memory, len(wires))
        self._asked = STARTING  # what the ranks were last asked to do
        self._answers: dict[int, bytes] = {}
        self._troubles = Troubles()
        self._connected = set(range(len(wires)))
        self._closing = self._ended = False
        for rank, wire in enumerate(wires):
            self._selector.register(wire.connection, selectors.EVENT_READ, partial(self._hear, rank))

    # -- what the heirs know ------------------------------------------------------------------------
    @abstractmethod
    def _end(self) -> None:
        """Ends all ranks now. Called once."""

    def _status(self, rank: int) -> int | None:
        """Returns how the process of a rank ended: negative for a signal, else its exit code; None while not known."""
        return None

    def _is_told(self, rank: int) -> bool:
        """Returns whether all that will be known of how the process of a rank ended is known."""
        return True

    def _stillness(self, rank: int) -> str:
        """Returns why a rank cannot make progress, where that can be seen from outside: "is stopped"."""
        return ""

    def _fault(self) -> RankFailed | None:
        """Returns a failure that is no rank's."""
        return None

    def _last_words(self, rank: int) -> list[str]:
        """Returns the last lines that a rank printed."""
        return []

    # -- a fleet ------------------------------------------------------------------------------------
    @property
    def num_ranks(self) -> int:
        return len(self._wires)

    def call(self, method: str, *arguments: Any, per_rank: Sequence[Any] | None = None) -> list[Any]:
        common = pickle.dumps(arguments, protocol=5)
        if per_rank is None:
            return self._ask(f"{method}()", [call_message(method, common)] * self.num_ranks, self._timeout)
        assert len(per_rank) == self.num_ranks, f"{len(per_rank)} arguments for {self.num_ranks} ranks"
        return self._ask(f"{method}()", [call_message(method, common, own) for own in per_rank], self._timeout)

    def close(self) -> None:
        if self._ended:
            return
        self._closing = True
        self._send(CLOSING, [(CLOSE,)] * self.num_ranks)
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            while self._connected and time.monotonic() < deadline:  # a rank leaves by closing its end
                self._listen()
                self._judge(CLOSE_SECONDS)
            if self._troubles:
                raise self._cause()
        finally:
            self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._finish()

    # -- asking -------------------------------------------------------------------------------------
    def _ask(self, what: str, messages: Sequence[tuple[bytes, ...]], patience: float) -> list[Any]:
        """Sends messages[r] to rank r and returns all answers; whatever goes wrong ends the fleet."""
        assert not self._ended, "the fleet has ended"
        try:
            self._listen(0.0)  # who ended since the last call did so between calls
            self._send(what, messages)
            while len(self._answers) < self.num_ranks:
                self._listen()
                self._judge(patience)
            return [self._unpickled(rank) for rank in range(self.num_ranks)]
        except BaseException:
            self._finish()
            raise

    def _send(self, what: str, messages: Sequence[tuple[bytes, ...]]) -> None:
        self._asked = what
        self._answers.clear()
        self._watch.begin()
        for wire, message in zip(self._wires, messages, strict=True):
            wire.put(*message)

    def _listen(self, seconds: float = ROUND) -> bool:
        """Sends what is queued, and hears who has something to say, waiting `seconds` at most; whether anybody had."""
        for rank in self._connected:
            wire = self._wires[rank]
            wire.flush()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.is_sending else 0)
            if self._selector.get_key(wire.connection).events != wanted:
                self._selector.modify(wire.connection, wanted, partial(self._hear, rank))
        ready = [key for key, events in self._selector.select(seconds) if events & selectors.EVENT_READ]
        # Wires first: what a rank prints must not be shown before it is known that all is lost anyway.
        for key in sorted(ready, key=lambda key: key.data.func != self._hear):
            key.data()
        return bool(ready)

    def _also_hear(self, source: Any, hear: Callable[..., None], *arguments: Any) -> None:
        """Calls `hear(*arguments)` whenever `source` has something to read."""
        self._selector.register(source, selectors.EVENT_READ, partial(hear, *arguments))

    def _hear(self, rank: int) -> None:
        messages, is_open = self._wires[rank].take()
        for message in messages:
            kind, body = message[:1], message[1:]
            if kind == PULSE:
                self._memory[rank * SLOT_BYTES : (rank + 1) * SLOT_BYTES] = body
            elif kind == DONE:
                self._answers[rank] = body
            else:
                assert kind == FAILED, kind
                self._troubles.raised(rank, pickle.loads(body))
        if not is_open:
            self._selector.unregister(self._wires[rank].connection)
            self._connected.discard(rank)
            if not (self._closing and rank in self._answers):
                self._troubles.lost(rank, self._at(rank))

    def _unpickled(self, rank: int) -> Any:
        try:
            return pickle.loads(self._answers[rank])
        except Exception as error:
            told = failure_sentence(
                f"rank {rank}", "returned what cannot be read here", "", f"{type(error).__name__}: {error}"
            )
            raise RankFailed(told, rank) from error

    # -- judging ------------------------------------------------------------------------------------
    def _judge(self, patience: float) -> None:
        """Raises RankFailed if it is time to."""
        silent = self._watch.look()
        if self._troubles or self._fault():
            if self._troubles.is_ripe(self._is_told):
                raise self._cause()
        elif silent > patience and not self._closing:
            raise self._stuck(patience)

    def _cause(self) -> RankFailed:
        return self._fault() or self._troubles.cause(self._status, self._last_words)

    def _stuck(self, patience: float) -> RankFailed:
        suspects = self._watch.suspects([rank for rank in range(self.num_ranks) if rank not in self._answers])
        is_waiting = sight(self._memory, suspects[0]).state == WAITING  # who does not wait comes first
        return stuck(suspects, self._stillness, is_waiting, self._at, patience)

    def _at(self, rank: int) -> str:
        seen = sight(self._memory, rank)
        if seen.state != IDLE:
            return f"in {seen.place}"
        return "between calls" if rank in self._answers else f"in {self._asked}"  # it has not said yet that it began

    # -- ending -------------------------------------------------------------------------------------
    @property
    def _is_orderly(self) -> bool:
        """Whether all ranks have left as they were told to."""
        return self._closing and not self._connected and not self._troubles

    def _finish(self) -> None:
        """Ends everything, once."""
        if self._ended:
            return
        self._ended = True
        try:
            self._end()
        finally:
            for wire in self._wires:
                wire.close()
            self._selector.close()
