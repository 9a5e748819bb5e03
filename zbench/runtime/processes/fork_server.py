"""The process that launchers of LocalFleets are forked from, so that only the first fleet of a kind waits for imports.

It imports torch and the module of the ranks' class, has the class prepare, and from then on forks a launcher, from its
only thread, whenever the driver asks for a fleet. It tells a fleet's driver how the launcher ended, as only a parent
can know. The kernel kills it when the driver ends, and its launchers when it does.
"""

import contextlib
import gc
import json
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from zbench.runtime.processes import launcher
from zbench.runtime.processes.fleet import Failure
from zbench.runtime.processes.serve import resolve
from zbench.runtime.processes.wire import send

_PROGRAM = (
    "import json, sys; setup = json.loads(sys.argv[1]); sys.path[:] = setup['path']; "
    "from zbench.runtime.processes import fork_server; fork_server.main(fork_server.ServerSetup(**setup))"
)
_MOST_DESCRIPTORS = 200  # in one message; the kernel takes 253 (SCM_MAX_FD of net/scm.h)
_REQUEST_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """The setup that the driver starts a fork server with.

    path: its sys.path. driver: its process id. target: "module:Class". requests: a socket on which the driver asks for
    launchers. errors: the driver's standard error, for what the server has to say once it has imported; before, it
    prints to the first fleet's pipe.
    """

    path: list[str]
    driver: int
    target: str
    requests: int
    errors: int

    def command(self) -> list[str]:
        """Returns the command that the driver runs."""
        return [sys.executable, "-c", _PROGRAM, json.dumps(asdict(self))]


def ask_for(requests: socket.socket, setup: launcher.Setup) -> None:
    """Asks the server for a launcher.

    Raises:
        OSError: the server is gone.
    """
    descriptors = setup.descriptors()
    requests.send(pickle.dumps(setup))
    for begin in range(0, len(descriptors), _MOST_DESCRIPTORS):
        socket.send_fds(requests, [b"+"], descriptors[begin : begin + _MOST_DESCRIPTORS])


def main(setup: ServerSetup) -> NoReturn:
    """Runs the server's whole life."""
    code = 1
    try:
        _serve(setup)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(setup: ServerSetup) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    launcher.die_with(setup.driver)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    failure = _prepare(setup.target)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(setup.errors, 1)
    os.dup2(setup.errors, 2)
    os.close(setup.errors)
    running: dict[int, tuple[int, socket.socket]] = {}  # by a descriptor of the launcher: its process id, its control
    with socket.socket(fileno=setup.requests) as requests:
        while True:
            ready, _, _ = select.select([requests.fileno(), *running], [], [])
            for ended in running.keys() & set(ready):
                pid, control = running.pop(ended)
                os.close(ended)
                _tell(control, (launcher.ENDED, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            if requests.fileno() not in ready:
                continue
            asked = _receive(requests)
            if asked is None:
                return
            pid = 0 if failure else _fork(asked, setup.target, requests, running)
            control = socket.socket(fileno=os.dup(asked.control))
            if failure:
                _tell(control, (launcher.NOT_STARTED, failure))
            else:
                running[os.pidfd_open(pid)] = pid, control
            for descriptor in asked.descriptors():
                os.close(descriptor)


def _prepare(target: str) -> Failure | None:
    """Imports what the ranks need, and returns why that fails if it does."""
    try:
        import torch.distributed  # noqa: F401

        made = resolve(target)
        if hasattr(made, "prepare"):
            made.prepare()
    except BaseException as error:
        return Failure.of(error, "", target.partition(":")[0].partition(".")[0])
    gc.collect()
    gc.freeze()  # what is there now stays shared with launchers and ranks
    return None


def _receive(requests: socket.socket) -> launcher.Setup | None:
    """Returns the setup of a launcher, with descriptors of this process; None where the driver is gone."""
    message = requests.recv(_REQUEST_BYTES)
    if not message:
        return None
    setup: launcher.Setup = pickle.loads(message)
    found: list[int] = []
    while len(found) < len(setup.descriptors()):
        more = socket.recv_fds(requests, 1, _MOST_DESCRIPTORS)[1]
        if not more:
            return None
        found += more
    return setup.received(found)


def _fork(
    asked: launcher.Setup, target: str, requests: socket.socket, running: dict[int, tuple[int, socket.socket]]
) -> int:
    """Forks a launcher, which keeps nothing of the server's open; returns its process id."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        requests.close()
        for descriptor, (_, control) in running.items():
            os.close(descriptor)
            control.close()
        launcher.main(asked, target, server)
    return pid


def _tell(control: socket.socket, message: tuple[Any, ...]) -> None:
    """Tells a fleet's driver what is the last there is to say."""
    with control, contextlib.suppress(OSError):  # it is done with its fleet already
        send(control, pickle.dumps(message))
