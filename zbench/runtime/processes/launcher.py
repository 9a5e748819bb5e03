"""The process that starts the ranks of a LocalFleet.

Forked from a fork server, which has imported torch and the object's module, it forks the ranks, from its only thread;
then it serves the store they meet at, and tells the driver which of them ended and how. When the driver says so by
closing its end, or is gone, it ends them all.

Nobody outlives anybody: the kernel kills the fork server when the driver ends, the launcher when the fork server does,
and the ranks when the launcher does, whatever way. Ctrl-C reaches all processes of a terminal; all but the driver
leave it to the driver.
"""

import contextlib
import ctypes
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from zbench.runtime.network.namespaces import Links, Network
from zbench.runtime.network.place import Place
from zbench.runtime.processes.board import Board
from zbench.runtime.processes.fleet import Failure
from zbench.runtime.processes.rendezvous import store_at
from zbench.runtime.processes.serve import serve
from zbench.runtime.processes.wire import receive, send

_PR_SET_PDEATHSIG = 1
FORKED, STARTED, DIED, NOT_STARTED, LINKS, ENDED = "forked", "started", "died", "not started", "links", "ended"
_LOOK_SECONDS = 0.5  # between looks at an emulated cluster's links


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup that the driver hands over: numbers, and descriptors.

    num_threads: of torch in each rank. control: a socket to the driver. store: a socket that listens, for the store.
    board: memory for all slots. directory: the driver's working directory. own_words: a pipe for what the launcher
    prints.
    wires: a socket for each rank. words: a pipe for what each rank prints.
    wiring: of an emulated cluster, pickled; empty: the ranks are on the machine itself.
    """

    num_threads: int
    control: int
    store: int
    board: int
    directory: int
    own_words: int
    wires: list[int]
    words: list[int]
    wiring: bytes = b""

    def descriptors(self) -> list[int]:
        """Returns all descriptors, in the order that `received` takes."""
        return [self.control, self.store, self.board, self.directory, self.own_words, *self.wires, *self.words]

    def received(self, descriptors: Sequence[int]) -> "Setup":
        """Returns the setup as another process has it, which got these descriptors in place of the driver's."""
        control, store, board, directory, own_words, *rest = descriptors
        wires, words = rest[: len(self.wires)], rest[len(self.wires) :]
        return replace(
            self,
            control=control,
            store=store,
            board=board,
            directory=directory,
            own_words=own_words,
            wires=wires,
            words=words,
        )


def main(setup: Setup, target: str, server: int) -> NoReturn:
    """Runs the launcher's whole life, in a process that was just forked. It leaves at once: tearing torch down takes a
    while, and there is nothing to save. target: "module:Class". server: the fork server's process id."""
    code = 1
    try:
        die_with(server)
        os.dup2(setup.own_words, 1)
        os.dup2(setup.own_words, 2)
        os.fchdir(setup.directory)
        code = _launch(setup, target)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _launch(setup: Setup, target: str) -> int:
    control = socket.socket(fileno=setup.control)
    try:
        with contextlib.suppress(ConnectionError):  # if the driver is done with us already, _watch sees it
            send(control, pickle.dumps((FORKED, os.getpid())))
        network = Network(pickle.loads(setup.wiring)) if setup.wiring else None
        pids = _start(setup, network)
        with contextlib.suppress(ConnectionError):  # likewise
            send(control, pickle.dumps((STARTED, pids)))  # before the store, without which no rank can be ready
        store = _serve_store(setup.store)
    except BaseException as error:
        failure = Failure.of(error, "", target.partition(":")[0].partition(".")[0])
        send(control, pickle.dumps((NOT_STARTED, failure)))
        return 1
    _watch(control, dict(enumerate(pids)), network.watched() if network else None)
    del store
    if network is not None:
        network.close()
    return 0


def _start(setup: Setup, network: Network | None) -> list[int]:
    """Forks the ranks, and keeps none of their descriptors."""
    pids = [_fork(setup, rank, network) for rank in range(len(setup.wires))]
    for descriptor in (*setup.wires, *setup.words, setup.board, setup.directory, setup.own_words):
        os.close(descriptor)
    return pids


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, whatever way."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError("the kernel refuses PR_SET_PDEATHSIG")
    if os.getppid() != parent:  # it was faster
        os._exit(1)


def _fork(setup: Setup, rank: int, network: Network | None) -> int:
    launcher = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        die_with(launcher)
        _rank(setup, rank, network)
        code = 0
    except (EOFError, OSError):  # the driver is gone
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _rank(setup: Setup, rank: int, network: Network | None) -> None:
    import torch

    os.dup2(setup.words[rank], 1)
    os.dup2(setup.words[rank], 2)
    memory = mmap.mmap(setup.board, 0)
    for descriptor in set(setup.descriptors()) - {setup.wires[rank]}:
        os.close(descriptor)
    torch.set_num_threads(setup.num_threads)
    with socket.socket(fileno=setup.wires[rank]) as wire:
        serve(partial(receive, wire), partial(send, wire), Board(memory, rank), network and Place.of(network, rank))


def _serve_store(descriptor: int) -> Any:
    """Serves the store; returns the server as an object to keep: it runs in a thread, so only after all forks."""
    listener = socket.socket(fileno=descriptor)
    host, port = listener.getsockname()
    return store_at(host, port, "", is_master=True, master_listen_fd=listener.detach())


def _watch(control: socket.socket, running: dict[int, int], links: Links | None) -> None:
    """Tells the driver of ranks that end and links that go down, until it closes its end of `control`; then ends them
    all."""
    told: list[str] = []
    bell, striker = os.pipe()
    os.set_blocking(striker, False)
    signal.set_wakeup_fd(striker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        while True:
            for rank, pid in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del running[rank]
                    with contextlib.suppress(
                        ConnectionError
                    ):  # if the driver is gone or done, the select below says so
                        send(control, pickle.dumps((DIED, rank, os.waitstatus_to_exitcode(status))))
            if links is not None and links.down() != told:
                told = links.down()
                with contextlib.suppress(ConnectionError):  # likewise
                    send(control, pickle.dumps((LINKS, told)))
            ready, _, _ = select.select([control.fileno(), bell], [], [], None if links is None else _LOOK_SECONDS)
            if control.fileno() in ready:
                return
            if bell in ready:
                os.read(bell, 4096)
    finally:
        for pid in running.values():
            os.kill(pid, signal.SIGKILL)
        for pid in running.values():
            os.waitpid(pid, 0)
