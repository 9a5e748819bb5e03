"""The part of the ranks above 0 in a fleet of processes that torchrun or Slurm started. See
zbench.runtime.processes.join."""

import json
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from datetime import timedelta
from typing import Any, NoReturn

from zbench.console.signals import ENDING
from zbench.runtime.processes.board import SLOT_BYTES, Board
from zbench.runtime.processes.meet import LEFT, OVER, call, store_of, use_loopback
from zbench.runtime.processes.serve import BEAT, PULSE, serve
from zbench.runtime.processes.wire import Wire
from zbench.runtime.processes.world import ProcessPlace

PULSE_SECONDS = 0.2
_FOREVER = timedelta(days=365)


def follow(world: ProcessPlace) -> int:
    """Serves the fleets of rank 0, one after another; returns what the process exits with: 0 when rank 0 is done.

    If rank 0 goes, or ends a fleet because a rank failed (it tells, we do not), the process exits with 1 at once.
    Ctrl-C is left to rank 0 during a fleet, and ends us silently otherwise; SIGTERM does at any time.

    Raises:
        RankFailed: the store or rank 0 cannot be reached.
    """
    assert world.rank > 0
    for ending in ENDING:  # also of a process that is stuck in a collective, where Python's handlers do not run
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, signal.SIG_DFL)
    use_loopback(world)
    store = store_of(world)
    number = 1
    while (told := _told(store, number)) not in (OVER, None):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _serve_one(world, json.loads(told))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        number += 1
    if told is None:
        return 1
    store.add(LEFT, 1)
    return 0


def _told(store: Any, number: int) -> Any:
    """Returns what rank 0 says of its next fleet, however long that takes; None if the store is gone, and rank 0 with
    it."""
    try:
        store.wait([str(number)], _FOREVER)
        return bytes(store.get(str(number)))
    except Exception:  # torch has several, most of them RuntimeErrors
        return None


def _serve_one(world: ProcessPlace, told: dict[str, Any]) -> None:
    memory = bytearray(SLOT_BYTES)
    post = DriverConnection(call(world, told), memory, told["silence"], world.rank)
    serve(post.receive, post.send, Board(memory, 0))
    post.close()


class DriverConnection:
    """The rank's end of the wire to the driver, served by a thread of its own while the main thread works.

    The thread hands on what comes, and while a call is under way sends a pulse (what the rank says on its board) five
    times a second. It ends the process when the driver is gone, and when the driver, who beats every second while it
    awaits an answer, has not done so for `silence` seconds.
    """

    def __init__(self, connection: socket.socket, memory: bytearray, silence: float, rank: int) -> None:
        self._wire, self._memory, self._rank = Wire(connection), memory, rank
        self._silence = silence + (1.0 if rank > 1 else 0.0)  # one speaks, and the launcher ends the others
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._bell, self._striker = socket.socketpair()
        self._is_busy = self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="post", daemon=True)
        self._thread.start()

    def receive(self) -> bytes:
        """Waits for the driver's next message."""
        return self._inbox.get()

    def send(self, message: bytes) -> None:
        """Sends a message to the driver, after what the board says."""
        self._is_busy = False
        self._wire.put(PULSE, bytes(self._memory))
        self._wire.put(message)
        self._striker.send(b"!")

    def close(self) -> None:
        """Leaves when all is sent; only then may the driver be gone."""
        self._is_closing = True
        self._striker.send(b"!")
        self._thread.join()
        for end in (self._wire, self._bell, self._striker):
            end.close()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException:  # without this thread the rank would wait for ever
            traceback.print_exc()
            os._exit(1)

    def _run(self) -> None:
        heard = looked = pulsed = time.monotonic()
        while not (self._is_closing and not self._wire.is_sending):
            self._wire.flush()
            sending = [self._wire.connection] if self._wire.is_sending else []
            ready, _, _ = select.select([self._wire.connection, self._bell], sending, [], PULSE_SECONDS)
            now = time.monotonic()
            if self._bell in ready:
                self._bell.recv(4096)
            if self._wire.connection in ready:
                heard = now
                self._hear()
            if now - looked > 2.0:  # we did not run ourselves (stopped by Ctrl-Z): nobody is to blame
                heard = now
            looked = now
            if self._is_busy and now - pulsed >= PULSE_SECONDS:
                self._wire.put(PULSE, bytes(self._memory))
                pulsed = now
            if self._is_busy and now - heard > self._silence:
                self._give_up()

    def _give_up(self) -> NoReturn:
        place = Board(self._memory, 0).place
        told = f"rank 0 has not been heard of for {self._silence:g} s; rank {self._rank} was in {place}"
        print(f"zbench: {told}", file=sys.stderr, flush=True)
        os._exit(1)

    def _hear(self) -> None:
        messages, is_open = self._wire.take()
        for message in messages:
            if message[:1] != BEAT:
                self._is_busy = True
                self._inbox.put(message)
        if not is_open and not self._is_closing:
            os._exit(1)
