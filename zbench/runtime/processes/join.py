"""The part of rank 0 in a fleet of processes that torchrun or Slurm started. zbench.runtime.processes.follow has the
others'.

    world = found(os.environ)
    if world and world.rank > 0: exit(follow(world))
    with lead(world), JoinedFleet(world, "module:Class", argument) as fleet: fleet.call(...)

Rank 0's process is driver and rank 0 at once: the driver is its main thread, the rank's object lives in another
thread, so the driver hears of a failure also while its own rank is stuck in a collective. Each other rank has a TCP
connection to the driver; by it come calls and go answers, and five times a second what it says on its board. Who
finds it closed knows that the other side is gone. Imports torch only when used.
"""

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

from zbench.runtime.processes.board import SLOT_BYTES, Board
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.meet import BROKEN, FLEETS, LEFT, OVER, PREFIX, gather_ranks, store_of, use_loopback
from zbench.runtime.processes.serve import BEAT, STARTING, serve, start_message
from zbench.runtime.processes.verdict import GRACE
from zbench.runtime.processes.wire import Wire, receive, send
from zbench.runtime.processes.wired import ROUND, Wired
from zbench.runtime.processes.world import ProcessPlace

BEAT_SECONDS = 1.0


@contextlib.contextmanager
def lead(world: ProcessPlace) -> Iterator[None]:
    """Frames all fleets of rank 0: serves the store where nobody else does, and lets the others go."""
    assert world.rank == 0
    store = store_of(world, is_server=not world.is_hosted)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the store is gone, so all are
            store.set(str(store.add(FLEETS, 0) + 1), OVER)
            deadline = time.monotonic() + 2.0
            while not world.is_hosted and time.monotonic() < deadline:  # ours ends with us: let them read it
                if store.add(LEFT, 0) >= world.num_ranks - 1 or store.check([BROKEN]):
                    break
                time.sleep(0.01)


class JoinedFleet(Wired):
    """A fleet of an object target(rank, num_ranks, rendezvous, argument) in every process of `world`; rank 0 makes it,
    in `lead`.

    target: "module:Class". argument: anything that can be pickled. timeout: seconds without progress on the board after
    which a call has failed. start_timeout: likewise for joining and making the objects.

    Raises:
        RankFailed: ranks did not join, or the object of one could not be made.
    """

    def __init__(
        self,
        world: ProcessPlace,
        target: str,
        argument: Any = None,
        timeout: float = 30.0,
        start_timeout: float = 120.0,
    ) -> None:
        assert world.rank == 0
        pickled = pickle.dumps(argument, protocol=5)
        self._store = store_of(world)
        if self._store.check([BROKEN]):
            raise RankFailed("an earlier fleet of this job failed, and its ranks are gone")
        number = self._store.add(FLEETS, 1)
        use_loopback(world)
        memory = bytearray(world.num_ranks * SLOT_BYTES)
        self._heard = [time.monotonic()] * world.num_ranks
        self._next_beat = 0.0
        self._handler: Any = None
        try:
            others, local_ranks = gather_ranks(world, self._store, number, start_timeout, silence=2 * timeout)
        except BaseException:
            self._store.set(BROKEN, b"1")
            raise
        ours, its = socket.socketpair()
        super().__init__([Wire(ours), *(Wire(others[rank]) for rank in sorted(others))], memory, timeout)
        self._thread = threading.Thread(target=_be_rank_0, args=(its, Board(memory, 0)), name="rank 0", daemon=True)
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        common = {
            "num_ranks": world.num_ranks,
            "num_local": world.num_local,
            "host": world.address,
            "port": world.port,
            "prefix": f"{PREFIX}/{world.attempt}/group/{number}",
            "seconds": 2 * timeout + 60,
            "may_be_bound": world.may_be_bound,
        }
        ways = [{"rank": rank, "local_rank": local, **common} for rank, local in enumerate(local_ranks)]
        self._ask(STARTING, [start_message(target, pickled, way) for way in ways], start_timeout)

    # -- what Wired asks ----------------------------------------------------------------------------
    def _stillness(self, rank: int) -> str:
        """Says why a rank cannot move: others send what they say five times a second, as long as their process runs at
        all."""
        is_silent = rank > 0 and time.monotonic() - self._heard[rank] > 2.0
        return "does not answer (it is stopped, or its machine is gone)" if is_silent else ""

    def _listen(self, seconds: float = ROUND) -> bool:
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + BEAT_SECONDS
            for rank in self._connected - {0}:
                self._wires[rank].put(BEAT)
        return super()._listen(seconds)

    def _hear(self, rank: int) -> None:
        self._heard[rank] = time.monotonic()
        super()._hear(rank)

    def _end(self) -> None:
        """Ends the fleet; orderly, all have left. Else the others end when this process does, and not before.

        For our own rank may be stuck in a collective with them: it would wake up with an error while this process,
        which has a sentence to tell and a record to write, takes itself apart. Likewise the launcher, when it sees
        another rank end, sends SIGTERM to this one.
        """
        if self._is_orderly:
            self._thread.join(1.0)
            self._set_sigterm(self._handler)
            return
        self._set_sigterm(signal.SIG_IGN)
        for wire in self._wires[1:]:
            wire.abandon()
        self._wires[0].close()
        _raise_in(self._thread)
        self._thread.join(0.5)  # stuck for good, or over by then: not amid its work when the interpreter goes
        with contextlib.suppress(Exception):  # the store may be gone too
            self._store.set(BROKEN, b"1")

    def _set_sigterm(self, handler: Any) -> None:
        if self._handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Handles SIGTERM: most likely a rank failed and the launcher ends the job, then to say so comes first. Does
        not return in vain: what it interrupted is not gone on with."""
        if self._ended:
            return
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            self._listen()
        if self._troubles:
            error = self._cause()
            self._finish()
            raise error
        signal.signal(signal.SIGTERM, self._handler)  # which ends the command
        os.kill(os.getpid(), signal.SIGTERM)


def _raise_in(thread: threading.Thread) -> None:
    """Has a thread raise SystemExit as soon as it runs Python again."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


def _be_rank_0(connection: socket.socket, board: Board) -> None:
    """Serves as rank 0, in a thread. Its socket is closed however it ends: so the driver knows."""
    with connection, contextlib.suppress(EOFError, OSError):
        serve(partial(receive, connection), partial(send, connection), board)
