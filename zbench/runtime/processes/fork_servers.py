"""The fork servers of this process: which are kept, and for whom. Torch-free.

A fleet takes the server of the fleet before if all is the same that a process started now would have from here: the
ranks' class, sys.path, the environment and the cores. What a class prepares is therefore in no other's ranks. Two are
kept, and each is ended when the thread that started it ends, or this process does.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Self

from zbench.runtime.network.namespaces import NoDesk, as_root
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.fork_server import ServerSetup, ask_for
from zbench.runtime.processes.launcher import Setup

KEPT = 2  # a guess: fleets of two kinds in turn; an idle server has some 300 MB, most of it torch
_PATIENCE = 5.0
_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
_TOLD_ANEW = {"PYTEST_CURRENT_TEST"}  # the name of the test under way, which is no setting of anything


@dataclass(frozen=True, slots=True)
class Origin:
    """All that a fork server has from the process that starts it. own: words that its command begins with."""

    process: int
    target: str
    own: tuple[str, ...]
    path: tuple[str, ...]
    environment: frozenset[tuple[str, str]]
    cores: frozenset[int]

    @classmethod
    def here(cls, target: str, is_root: bool) -> Self:
        """Returns what a server started now would have. is_root: it takes root's rights.

        Raises:
            RankFailed: there are none to be had.
        """
        try:
            own = tuple(as_root()) if is_root else ()
        except NoDesk as error:
            raise RankFailed(f"the ranks could not start: {error}") from error
        told = frozenset((name, value) for name, value in os.environ.items() if name not in _TOLD_ANEW)
        return cls(os.getpid(), target, own, tuple(sys.path), told, frozenset(os.sched_getaffinity(0)))


class ForkServer:
    """A fork server that this process started. It is ended when nobody refers to it any more: no fleet, nor those who
    keep it. words: the pipe that it prints to until it has imported everything."""

    def __init__(self, origin: Origin, words: int) -> None:
        self.origin = origin
        self.has_forked = False  # whether a fleet has heard of its launcher, so that all is imported
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(_PATIENCE)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whose parent is killed is ours to reap
        with theirs, contextlib.ExitStack() as handed:
            errors = os.dup(2)
            handed.callback(os.close, errors)
            setup = ServerSetup(list(origin.path), origin.process, origin.target, theirs.fileno(), errors)
            self._process = subprocess.Popen(
                [*origin.own, *setup.command()],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",  # no thread before the fork; the ranks set torch's
                    "OPENBLAS_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                },
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                pass_fds=(theirs.fileno(), errors),
            )
        self._kill = weakref.finalize(self, _kill, origin.process, self._process, self._requests)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit code of a server that ended, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Waits for its end, which is there or near; returns `status`."""
        return self._process.wait(_PATIENCE)

    def launch(self, setup: Setup) -> bool:
        """Asks for a launcher; returns whether there was somebody to ask."""
        if self.status is not None:
            return False
        try:
            ask_for(self._requests, setup)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Kills it, and with it all of its launchers and their ranks."""
        self._kill()


class _Kept(threading.local):
    """The servers that a thread has started, that of the last fleet last: the kernel ends a server with the thread that
    started it."""

    def __init__(self) -> None:
        self.servers: list[ForkServer] = []


_kept = _Kept()


def launched(target: str, setup: Setup) -> ForkServer:
    """Has a launcher forked, by a server that is there or by a new one; returns the server.

    Raises:
        RankFailed: what the wiring of the setup takes is not to be had.
    """
    origin = Origin.here(target, bool(setup.wiring))
    server = next((server for server in _kept.servers if server.origin == origin), None)
    if server is None or not server.launch(setup):
        if server is not None:
            forget(server)
        server = ForkServer(origin, setup.own_words)
        server.launch(setup)
    forget(server)
    _kept.servers = [*_kept.servers, server][-KEPT:]
    return server


def forget(server: ForkServer) -> None:
    """Gives no other fleet to this server."""
    _kept.servers = [one for one in _kept.servers if one is not server]


def _kill(owner: int, process: "subprocess.Popen[bytes]", requests: socket.socket) -> None:
    requests.close()
    if os.getpid() == owner:  # and not a process that was forked from it
        process.send_signal(signal.SIGKILL)
        process.wait()
