"""The whereabouts of every rank in the store of its group: the number of its call, its state, the place in words."""

import json
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zbench.runtime.processes.board import WAITING, WORKING, Board

PERIOD = 0.5  # seconds between two looks at the board; a judgement: short beside any timeout, long beside a message
GAVE_UP, RAISED, CLOSED = 3, 4, 5  # states besides the board's own: who comes to no further call as it is
_TEXT = 400  # characters of an error that are told


class CallBoard(Board):
    """A board that counts calls: every place that a rank says is one, a forward, a backward or another collective call,
    so that ranks which make the same calls have the same number in each. `begin` says the place of a call ahead of what
    it runs, which says it once more."""

    __slots__ = ("_begun", "calls", "state")

    def __init__(self, memory: Any, slot: int) -> None:
        super().__init__(memory, slot)
        self.calls, self.state, self._begun = 0, WORKING, ""

    def begin(self, place: str) -> None:
        """Begins a call, before its arguments are looked at."""
        self._begun = ""  # a call like the one before is another one
        self.say(place)
        self._begun = place

    def say(self, place: str, state: int = WORKING) -> None:
        self.calls, self.state = self.calls + (place != self._begun), state
        self._begun = ""
        super().say(place, state)

    def wait(self, place: str = "") -> None:
        self.state = WAITING
        super().wait(place)

    def resume(self) -> None:
        self.state = WORKING
        super().resume()


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The place that a rank has come to.

    calls: so far, with the one that it is in. state: of the board, GAVE_UP, RAISED or CLOSED. place: of its last call.
    words: of the error that it left with.
    """

    calls: int
    state: int
    place: str
    words: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it comes to nothing more by itself: it gave up, raised or closed."""
        return self.state in (GAVE_UP, RAISED, CLOSED)


class Teller:
    """Says in the store where a rank is, twice a second by a thread and at once where that is asked for.

    The thread ends with the main one, so that nothing of it is left while Python is taken down.
    """

    def __init__(self, store: Any, rank: int, board: CallBoard) -> None:
        self._store, self._key, self._board = store, _key(rank), board
        self._last: Whereabouts | None = None
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="zbench-whereabouts")
        self._thread.start()

    def tell(self, state: int, words: str = "") -> None:
        """Says that the rank gave up, raised or closed in or after the call it is in; stands until its next one."""
        with self._lock:
            self._write(Whereabouts(self._board.calls, state, self._board.place, words[:_TEXT]))

    def close(self) -> None:
        """Says that no call will come any more, and ends the thread; any number of times."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self.tell(CLOSED)

    def _run(self) -> None:
        while not self._closed.wait(PERIOD) and threading.main_thread().is_alive():
            self.look()

    def look(self) -> None:
        """Says where the rank is, unless that was said."""
        with self._lock:
            board = self._board
            found = Whereabouts(board.calls, board.state, board.place)
            last = self._last
            if found != last and not (last and last.calls == found.calls and last.has_ended):
                self._write(found)

    def _write(self, found: Whereabouts) -> None:
        """Writes for the other ranks; the store may be gone with the rank that had it."""
        self._last = found
        with suppress(RuntimeError):
            self._store.set(self._key, json.dumps([found.calls, found.state, found.place, found.words]))


def read_whereabouts(store: Any, rank: int) -> Whereabouts | None:
    """Reads where a rank is; None where it has not said so yet.

    Raises:
        RuntimeError: the store is gone.
    """
    if not store.check([_key(rank)]):
        return None
    calls, state, place, words = json.loads(store.get(_key(rank)).decode())
    return Whereabouts(int(calls), int(state), str(place), str(words))


def _key(rank: int) -> str:
    return f"zbench/{rank}"
