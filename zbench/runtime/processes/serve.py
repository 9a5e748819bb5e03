"""A rank's main loop: it makes its object, calls its methods as told, answers. And the messages for it.

A message is one byte that says its kind, then pickles. To a rank: START (the object's class, its argument, the
rendezvous), CALL (method, arguments; then, if there is one, the rank's own), CLOSE, BEAT (the driver is alive).
From a rank: DONE (the result), FAILED (a Failure), PULSE (its slot of the board, where the driver cannot see it).
"""

import importlib
import io
import pickle
from collections.abc import Callable
from typing import Any

from zbench.runtime.processes.board import Board
from zbench.runtime.processes.fleet import Failure
from zbench.runtime.processes.rendezvous import Rendezvous

START, CALL, CLOSE, BEAT = b"s", b"c", b"x", b"b"
DONE, FAILED, PULSE = b"d", b"f", b"p"
STARTING, CLOSING = "start-up", "closing"  # what a rank says on its board then
_NOTHING = object()


def start_message(target: str, argument: bytes, rendezvous: dict[str, Any]) -> tuple[bytes, ...]:
    """Packs the message that makes a rank's object. target: "module:Class", called as target(rank, num_ranks,
    rendezvous, argument) on every rank.
    argument: pickled. rendezvous: the fields of Rendezvous, less its board."""
    return START, pickle.dumps((target, argument, rendezvous))


def call_message(method: str, arguments: bytes, own: Any = _NOTHING) -> tuple[bytes, ...]:
    """Packs the message that calls a method. arguments: pickled once for all ranks."""
    head = (CALL, pickle.dumps(method), arguments)
    return head if own is _NOTHING else (*head, pickle.dumps(own))


def resolve(target: str) -> Any:
    """Returns the class that "module:Class" names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def serve(
    receive: Callable[[], bytes | bytearray], send: Callable[[bytes], None], board: Board, place: Any = None
) -> None:
    """Serves one fleet until it closes. A call that fails is told to the driver, who ends all ranks.

    place: of Rendezvous.

    Raises:
        EOFError: the driver is gone (from `receive`).
        OSError: likewise (from `send`).
    """
    rank = _Rank(board, place)
    while True:
        command = receive()
        kind, body = bytes(command[:1]), io.BytesIO(memoryview(command)[1:])
        if kind == BEAT:
            continue
        try:
            answer = DONE + rank.do(kind, body)
        except BaseException as error:
            answer = FAILED + pickle.dumps(Failure.of(error, board.place, rank.package))
        board.rest()
        send(answer)
        if kind == CLOSE:
            return


class _Rank:
    """The object of a rank, once it is made."""

    def __init__(self, board: Board, place: Any) -> None:
        self.package = ""
        self._place = place
        self._board = board
        self._rendezvous: Rendezvous | None = None
        self._made: Any = None

    def do(self, kind: bytes, body: io.BytesIO) -> bytes:
        """Returns the pickled result."""
        if kind == START:
            return self._start(body)
        if kind == CLOSE:
            return self._close()
        assert kind == CALL, kind
        method = pickle.load(body)
        self._board.say(f"{method}()")
        arguments = pickle.load(body)
        own = () if body.tell() == body.getbuffer().nbytes else (pickle.load(body),)
        result = getattr(self._made, method)(*arguments, *own)
        try:
            return pickle.dumps(result, protocol=5)
        except Exception as error:
            raise TypeError(f"what {method} returned cannot be pickled: {error}") from error

    def _start(self, body: io.BytesIO) -> bytes:
        self._board.say(STARTING)
        target, argument, fields = pickle.load(body)
        self.package = target.partition(":")[0].partition(".")[0]
        self._rendezvous = Rendezvous(**fields, board=self._board, place=self._place)
        made = resolve(target)
        self._made = made(fields["rank"], fields["num_ranks"], self._rendezvous, pickle.loads(argument))
        return pickle.dumps(None)

    def _close(self) -> bytes:
        self._board.say(CLOSING)
        if hasattr(self._made, "close"):
            self._made.close()
        self._made = None
        if self._rendezvous is not None:
            self._rendezvous.close()
        return pickle.dumps(None)
