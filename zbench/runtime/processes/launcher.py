"""The process that starts the ranks of a LocalFleet.

It imports torch and the object's module once, then forks the ranks, from its only thread; then it serves the store
they meet at, and tells the driver which of them ended and how. When the driver says so by closing its end, or is
gone, it ends them all.

Nobody outlives anybody: the kernel kills the launcher when the driver ends, and the ranks when the launcher does,
whatever way. Ctrl-C reaches all processes of a terminal; launcher and ranks leave it to the driver.
"""

import contextlib
import ctypes
import gc
import json
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NoReturn

from zbench.runtime.network.namespaces import Links, Network
from zbench.runtime.network.place import Place
from zbench.runtime.processes.board import Board
from zbench.runtime.processes.fleet import Failure
from zbench.runtime.processes.rendezvous import store_at
from zbench.runtime.processes.serve import resolve, serve
from zbench.runtime.processes.wire import receive, send

_PR_SET_PDEATHSIG = 1
_PROGRAM = (
    "import json, sys; setup = json.loads(sys.argv[1]); sys.path[:] = setup['path']; "
    "from zbench.runtime.processes import launcher; launcher.main(launcher.Setup(**setup))"
)
STARTED, DIED, NOT_STARTED, LINKS = "started", "died", "not started", "links"
_LOOK_SECONDS = 0.5  # between looks at an emulated cluster's links


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup that the driver hands over: numbers, and descriptors.

    path: its sys.path. driver: its process id. target: "module:Class". num_threads: of torch in each rank.
    control: a socket to the driver. store: a socket that listens, for the store. board: memory for all slots.
    wires: a socket for each rank. words: a pipe for what each rank prints.
    wiring: of an emulated cluster, pickled, as hexadecimal digits; empty: the ranks are on the machine itself.
    """

    path: list[str]
    driver: int
    target: str
    num_threads: int
    control: int
    store: int
    board: int
    wires: list[int]
    words: list[int]
    wiring: str = ""

    def command(self) -> list[str]:
        """Returns the command that the driver runs."""
        return [sys.executable, "-c", _PROGRAM, json.dumps(asdict(self))]

    def descriptors(self) -> set[int]:
        """Returns the descriptors that the launcher inherits."""
        return {self.control, self.store, self.board, *self.wires, *self.words}


def main(setup: Setup) -> NoReturn:
    """Runs the launcher's whole life. It leaves at once: tearing torch down takes a while, and there is nothing to
    save."""
    code = 1
    try:
        code = _launch(setup)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _launch(setup: Setup) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(setup.driver)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    control = socket.socket(fileno=setup.control)
    try:
        network = Network(pickle.loads(bytes.fromhex(setup.wiring))) if setup.wiring else None
        pids = _start(setup, network)
        with contextlib.suppress(ConnectionError):  # if the driver is done with us already, _watch sees it
            send(control, pickle.dumps((STARTED, pids)))  # before the store, without which no rank can be ready
        store = _serve_store(setup.store)
    except BaseException as error:
        failure = Failure.of(error, "", setup.target.partition(":")[0].partition(".")[0])
        send(control, pickle.dumps((NOT_STARTED, failure)))
        return 1
    _watch(control, dict(enumerate(pids)), network.watched() if network else None)
    del store
    if network is not None:
        network.close()
    return 0


def _start(setup: Setup, network: Network | None) -> list[int]:
    """Imports what the ranks need, forks them, and keeps none of their descriptors."""
    import torch.distributed  # noqa: F401

    made = resolve(setup.target)
    if hasattr(made, "prepare"):
        made.prepare()
    gc.collect()
    gc.freeze()  # what is there now stays shared with the ranks
    pids = [_fork(setup, rank, network) for rank in range(len(setup.wires))]
    for descriptor in {*setup.wires, *setup.words, setup.board}:
        os.close(descriptor)
    return pids


def _die_with(parent: int) -> None:
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
        _die_with(launcher)
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
    for descriptor in setup.descriptors() - {setup.wires[rank]}:
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
