"""A fleet of processes on this machine. Linux. The driver's side: imports no torch.

    driver -- fork server (imports torch) -- launcher of a fleet (forked from it) -- rank 0, rank 1, ... (forked)

The fork server is kept for fleets to come, zbench.runtime.processes.fork_servers says for how long.
Each rank has a wire of its own to the driver and a slot of the board in memory that they share. What ranks print
comes through pipes: the driver shows it as "rank 1: ..." on standard error, but not what libraries have to say once
a rank has failed. All stays in the driver's process group.
"""

import contextlib
import math
import mmap
import os
import pickle
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zbench.runtime.network.wiring import Wiring
from zbench.runtime.processes.board import SLOT_BYTES
from zbench.runtime.processes.fleet import Failure, RankFailed, ending, failure_sentence
from zbench.runtime.processes.fork_servers import forget, launched
from zbench.runtime.processes.launcher import DIED, ENDED, FORKED, LINKS, NOT_STARTED, STARTED, Setup
from zbench.runtime.processes.serve import STARTING, start_message
from zbench.runtime.processes.wire import Wire
from zbench.runtime.processes.wired import ROUND, Wired
from zbench.runtime.processes.words import Words

END_SECONDS = 3.0
HOST = "127.0.0.1"


class LocalFleet(Wired):
    """A fleet of num_ranks processes on this machine, each with an object target(rank, num_ranks, rendezvous,
    argument).

    target: "module:Class"; the module is imported before the ranks are forked, so importing it starts no thread and
    touches no GPU. prepare(), a static method of the class if it has one, is called then, for what every object would
    else load by itself; the same holds for it.
    argument: anything that can be pickled. timeout: seconds without progress on the board after which a call has
    failed. start_timeout: likewise for importing and making the objects.
    wiring: of the emulated cluster that the ranks are to be on; None: they are on the machine itself.
    The thread that makes the fleet has to outlive it.

    Raises:
        RankFailed: the ranks could not be started, or the object of one could not be made.
    """

    def __init__(
        self,
        num_ranks: int,
        target: str,
        argument: Any = None,
        timeout: float = 30.0,
        start_timeout: float = 120.0,
        wiring: Wiring | None = None,
    ) -> None:
        assert num_ranks >= 1
        pickled = pickle.dumps(argument, protocol=5)
        with contextlib.ExitStack() as handed:  # what only the launcher is to have open
            board = os.memfd_create("board")
            handed.callback(os.close, board)
            os.ftruncate(board, num_ranks * SLOT_BYTES)
            store = handed.enter_context(socket.create_server((HOST, 0)))
            control, its_control = socket.socketpair()
            pairs = [socket.socketpair() for _ in range(num_ranks)]
            pipes = [os.pipe() for _ in range(num_ranks + 1)]  # the last is the launcher's own
            for end in (its_control, *(theirs for _, theirs in pairs)):
                handed.enter_context(end)
            for _, end_to_write in pipes:
                handed.callback(os.close, end_to_write)
            super().__init__([Wire(ours) for ours, _ in pairs], mmap.mmap(board, 0), timeout)
            self._control = Wire(control)
            self._words = [Words(f"rank {rank}", pipes[rank][0]) for rank in range(num_ranks)]
            self._words.append(Words("launcher", pipes[-1][0]))
            self._launcher_pid: int | None = None
            self._launcher_status: int | None = None
            self._is_over = False  # the launcher has ended, and its fork server has said so
            self._pids: list[int] = []
            self._statuses: dict[int, int] = {}
            self._lost: RankFailed | None = None
            self._links_down: list[str] = []
            directory = os.open(".", os.O_RDONLY)
            handed.callback(os.close, directory)
            setup = Setup(
                num_threads=_num_threads(num_ranks),
                control=its_control.fileno(),
                store=store.fileno(),
                board=board,
                directory=directory,
                own_words=pipes[-1][1],
                wires=[theirs.fileno() for _, theirs in pairs],
                words=[end_to_write for _, end_to_write in pipes[:-1]],
                wiring=pickle.dumps(wiring) if wiring else b"",
            )
            self._server = launched(target, setup)
            port = store.getsockname()[1]
        self._also_hear(control, self._hear_launcher)
        for words in self._words:
            self._also_hear(words.descriptor, self._hear_words, words)
        ways = _rendezvous(num_ranks, port, timeout)
        self._ask(STARTING, [start_message(target, pickled, way) for way in ways], start_timeout)

    @property
    def pids(self) -> Sequence[int]:
        """The process id of each rank."""
        return tuple(self._pids)

    @property
    def server_pid(self) -> int:
        """The process id of the fork server."""
        return self._server.pid

    @property
    def launcher_pid(self) -> int:
        """The process id of the launcher."""
        assert self._launcher_pid is not None
        return self._launcher_pid

    # -- what Wired asks ----------------------------------------------------------------------------
    def _status(self, rank: int) -> int | None:
        return self._statuses.get(rank)

    def _is_told(self, rank: int) -> bool:
        return rank in self._statuses or self._lost is not None

    def _stillness(self, rank: int) -> str:
        try:
            stat = Path(f"/proc/{self._pids[rank]}/stat").read_text()
        except (IndexError, OSError):
            return ""
        return "is stopped (by a signal or a debugger)" if stat.rpartition(")")[2].split()[0] in "Tt" else ""

    def _fault(self) -> RankFailed | None:
        return self._lost

    def _last_words(self, rank: int) -> list[str]:
        return list(self._words[rank].last)

    def _stuck(self, patience: float) -> RankFailed:
        if not self._pids:
            return RankFailed(f"the launcher has not started the ranks after {patience:g} s")
        failure = super()._stuck(patience)
        return RankFailed("; ".join([str(failure), *self._links_down]), failure.rank)

    def _listen(self, seconds: float = ROUND) -> bool:
        heard = super()._listen(seconds)
        if not (self._troubles or self._lost):
            self._show(time.monotonic() - ROUND)
        return heard

    def _end(self) -> None:
        self._signal_launcher(signal.SIGCONT)  # should it be stopped
        with contextlib.suppress(OSError):
            self._control.connection.shutdown(socket.SHUT_WR)  # then it kills and reaps whom there is, and ends
        if self._pids:
            self._await_launcher()
        if not self._server.has_forked:  # it still imports, or could not
            forget(self._server)
            self._server.kill()
        if not self._is_over:  # it does not answer; the kernel kills what ranks there are
            self._signal_launcher(signal.SIGKILL)
            self._await_launcher()
        del self._server  # for the next fleet, or nobody
        if self._launcher_status != 0:
            self._reap()
        self._control.close()
        deadline = time.monotonic() + END_SECONDS
        while self._connected and time.monotonic() < deadline:
            super()._listen(0.02)
        for words in self._words:
            words.close()
        if self._is_orderly:
            self._show()
        self._memory.close()

    def _reap(self) -> None:
        """Reaps those whose parents were killed, which the kernel has given to this process."""
        deadline = time.monotonic() + END_SECONDS
        for pid in (self._launcher_pid, *self._pids):
            while pid is not None and time.monotonic() < deadline:
                try:
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        break
                except ChildProcessError:  # its own parent has
                    break
                time.sleep(0.01)

    def _signal_launcher(self, number: int) -> None:
        if self._launcher_pid is not None and not self._is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._launcher_pid, number)

    def _await_launcher(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        while not self._is_over and time.monotonic() < deadline:
            super()._listen(0.02)

    def _show(self, until: float = math.inf) -> None:
        """Shows what the ranks printed, a moment late: when a rank fails, libraries in the others have much to say,
        and it would bury the one sentence that counts."""
        for words in self._words:
            words.show(until)

    # -- what is heard ------------------------------------------------------------------------------
    def _hear_launcher(self) -> None:
        messages, is_open = self._control.take()
        for message in map(pickle.loads, messages):
            match message:
                case (str(kind), int(pid)) if kind == FORKED:
                    self._launcher_pid = pid
                    self._server.has_forked = True
                case (str(kind), int(status)) if kind == ENDED:
                    self._launcher_status = status
                case (str(kind), list(pids)) if kind == STARTED:
                    self._pids = pids
                    self._watch.begin()
                case (str(kind), int(rank), int(status)) if kind == DIED:
                    self._statuses[rank] = status
                case (str(kind), list(down)) if kind == LINKS:
                    self._links_down = down
                case (str(kind), Failure() as failure) if kind == NOT_STARTED:
                    who = "the ranks could not start: the launcher"
                    told = failure_sentence(who, failure.what, "", failure.message, failure.where)
                    self._lost = RankFailed(told, None, failure.details)
        if not is_open:
            self._selector.unregister(self._control.connection)
            self._is_over = True
            if self._lost is None and not self._ended:
                if self._launcher_status is not None:
                    told = f"the launcher of the ranks {ending(self._launcher_status)}"
                else:  # who would have said it is gone
                    told = f"the fork server of the ranks {ending(self._server.wait())}"
                self._lost = RankFailed(told, None, "\n".join(self._words[-1].last))

    def _hear_words(self, words: Words) -> None:
        if not words.take():
            self._selector.unregister(words.descriptor)


def _num_threads(num_ranks: int) -> int:
    """Returns the number of torch's threads in each rank: as the user says by OMP_NUM_THREADS, else this process's
    cores shared out."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(asked) if asked.isdecimal() and int(asked) else max(1, len(os.sched_getaffinity(0)) // num_ranks)


def _rendezvous(num_ranks: int, port: int, timeout: float) -> list[dict[str, Any]]:
    """Returns the fields of each rank's Rendezvous."""
    common = {"num_ranks": num_ranks, "num_local": num_ranks, "host": HOST, "port": port, "prefix": "fleet"}
    common |= {"seconds": 2 * timeout + 60, "may_be_bound": False}
    return [{"rank": rank, "local_rank": rank, **common} for rank in range(num_ranks)]
