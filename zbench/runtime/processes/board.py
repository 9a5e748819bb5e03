"""The board: where every rank says what it is doing, so that whoever ends a run can name place and culprit.

Torch-free. A slot of 256 bytes per rank, in memory that rank and driver share (or of which the driver is sent
copies): a counter of progress, a state, and the place in words. Saying something costs about a third of a
microsecond, so a rank may say every layer and every wait. Slots are read while they are written: a torn text is
possible, and harmless.
"""

import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

SLOT_BYTES = 256
IDLE, WORKING, WAITING = range(3)
_TEXT_BYTES = SLOT_BYTES - 10
_SLOT = struct.Struct(f"<QBB{_TEXT_BYTES}s")  # counter, state, bytes of text, text
_STATE = struct.Struct("<QB")


class Board:
    """A slot of the board, for one rank to write to. Every word is progress: say nothing in a loop that gets
    nowhere."""

    __slots__ = ("_counter", "_memory", "_offset")

    def __init__(self, memory: Any, slot: int) -> None:
        """Takes a slot of the memory. memory: writable, of SLOT_BYTES for each slot (an mmap, a bytearray)."""
        self._memory, self._offset, self._counter = memory, slot * SLOT_BYTES, 0

    def say(self, place: str, state: int = WORKING) -> None:
        """Says that the rank works at `place`, such as "step 14, layer 1, forward attention"."""
        text = place.encode()[:_TEXT_BYTES]
        self._counter += 1
        _SLOT.pack_into(self._memory, self._offset, self._counter, state, len(text), text)

    def wait(self, place: str = "") -> None:
        """Says that the rank is about to block until others have done something; at `place`, or where it is."""
        if place:
            self.say(place, WAITING)
        else:
            self._turn(WAITING)

    def resume(self) -> None:
        """Says that what the rank waited for has come; it works on where it is. (`say` does the same at a new
        place.)"""
        self._turn(WORKING)

    def rest(self) -> None:
        """Says that the rank has nothing to do until it is called again."""
        self.say("", IDLE)

    @property
    def place(self) -> str:
        """The place that the rank said last."""
        return sight(self._memory, self._offset // SLOT_BYTES).place

    def _turn(self, state: int) -> None:
        self._counter += 1
        _STATE.pack_into(self._memory, self._offset, self._counter, state)


@dataclass(frozen=True, slots=True)
class Sight:
    """The content of a slot as it is read. counter: words so far. place: "" where nothing was said."""

    counter: int
    state: int
    place: str


def sight(memory: Any, slot: int) -> Sight:
    """Reads a slot of the board."""
    counter, state, length, text = _SLOT.unpack_from(memory, slot * SLOT_BYTES)
    return Sight(counter, state, text[:length].decode(errors="ignore"))


class Watch:
    """A watch over the board: how long each rank has made no progress, as seen by who looks every now and then."""

    def __init__(self, memory: Any, num_ranks: int) -> None:
        self._memory = memory
        self._counters = [-1] * num_ranks
        self._since = [0.0] * num_ranks
        self._looked = 0.0
        self.begin()

    def begin(self) -> None:
        """Begins a watch: nobody is to blame for what was before."""
        self._looked = time.monotonic()
        self._since = [self._looked] * len(self._since)

    def look(self) -> float:
        """Looks at the board and returns the seconds since any rank made progress."""
        now = time.monotonic()
        if now - self._looked > 2.0:  # we did not run ourselves: stopped by Ctrl-Z, like the ranks, or starved
            self.begin()
        self._looked = now
        for rank, counter in enumerate(self._counters):
            seen = sight(self._memory, rank).counter
            if seen != counter:
                self._counters[rank], self._since[rank] = seen, now
        return now - max(self._since)

    def suspects(self, pending: Collection[int]) -> list[int]:
        """Orders the `pending` ranks by whom to blame first: who does not wait for others, then who stands longest."""
        state = {rank: sight(self._memory, rank).state for rank in pending}
        return sorted(pending, key=lambda rank: (state[rank] == WAITING, self._since[rank], rank))
