"""Judges mutants in processes of their own: one that dies takes one mutant with it, and that one counts. An edge.

A process judges a hundred mutants, and before them the unbroken steps that they are made of. What it says is
taken at once, so that nothing is lost when it dies of a mutant; another one goes on with the rest.
"""

import resource
import signal
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess

import numpy as np

from zbench.correctness.cases import case
from zbench.correctness.mutations.kinds import KINDS, mutant
from zbench.correctness.mutations.words import changes
from zbench.correctness.reference.judge import Verifier, judge

OF_A_CASE = 20  # mutants of one step
OF_A_WORKER = 100
UNBROKEN = "unbroken"
PATIENCE = 300.0  # seconds without a word, after which a process counts as dead: a verdict takes a tenth of one
MEMORY = 8 << 30  # bytes of addresses, so that an array of a wild size ends one process and not the machine


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a mutant: a mutant is a function of its seed, system and number."""

    seed: int
    system: str
    number: int

    @property
    def kind(self) -> str:
        """The mutant's kind of mutation: all kinds in turn, of every system from another one on."""
        return KINDS[(self.number + zlib.crc32(self.system.encode())) % len(KINDS)]


Share = Sequence[Name]  # what a process judges, one after the other


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant, or the unbroken step that some are made of, and its verdict (zbench.correctness.reference.judge). died:
    how the process ended that judged it, "" if it lived; a mutant that nobody could judge counts as wrong."""

    name: Name
    kind: str
    change: str
    wrong: str
    rejected: str
    died: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the step is wrong, or nobody could judge it."""
        return bool(self.wrong or self.died)

    @property
    def is_missed(self) -> bool:
        """Whether the step is wrong and the verifier accepts it, or died over it."""
        return self.is_wrong and (not self.rejected or bool(self.died))


def mutant_shares(names: Share) -> list[Share]:
    """Divides mutants into shares of a hundred."""
    return [names[at : at + OF_A_WORKER] for at in range(0, len(names), OF_A_WORKER)]


@dataclass(slots=True)
class _Worker:
    """A process at work. current: the place in its share of the mutant that it began last, -1 if none; memory that this
    one broke may kill it later. verdicts: how many mutants it has judged."""

    share: Share
    process: ForkServerProcess
    connection: Connection
    current: int = -1
    verdicts: int = 0


def judged(given: Iterable[Share], jobs: int, verify: Verifier) -> Iterator[Judged]:
    """Yields every mutant of every share once, as they are done, with `jobs` processes at a time.

    Where a process dies of a step that nobody has broken, that step is told and the mutants of its share are not.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    left, at_work = deque(given), list[_Worker]()
    try:
        while left or at_work:
            while left and len(at_work) < jobs:
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(there, left[0], verify), daemon=True)
                process.start()
                there.close()
                at_work.append(_Worker(left.popleft(), process, here))
            ready = wait([worker.connection for worker in at_work], PATIENCE)
            for worker in [one for one in at_work if one.connection in ready or not ready]:
                told = _heard(worker) if ready else None
                if isinstance(told, Judged):
                    worker.verdicts += told.kind != UNBROKEN
                    yield told
                elif isinstance(told, int):
                    worker.current = told
                else:
                    at_work.remove(worker)
                    yield from _ended(worker, left, told is None)
    finally:
        for worker in at_work:
            worker.process.kill()
            worker.process.join()


def _heard(worker: _Worker) -> Judged | int | str:
    """Returns what a process says: the number of the mutant it begins, a verdict, or "" when it has ended."""
    try:
        told: Judged | int = worker.connection.recv()
    except (EOFError, OSError):
        return ""
    return told


def _ended(worker: _Worker, left: "deque[Share]", is_silent: bool) -> Iterator[Judged]:
    """Yields a verdict on the mutant that a process died of, and puts back those it has left."""
    if is_silent:
        worker.process.kill()
    worker.process.join()
    worker.connection.close()
    code, share, at = worker.process.exitcode, worker.share, worker.current
    if code == 0 and worker.verdicts == len(share):  # a verifier may end its process with code 0, too
        return
    how = (
        f"no word for {PATIENCE:g} s" if is_silent else f"signal {-code}" if code and code < 0 else f"exit code {code}"
    )
    if at < 0:
        yield Judged(share[0], UNBROKEN, "", "", "", how)
        return
    yield Judged(share[at], share[at].kind, "", "", "", how)
    if at + 1 < len(share):
        left.appendleft(share[at + 1 :])


def _work(told: Connection, share: Share, verify: Verifier) -> None:
    """Judges every mutant of a share, and says of each beforehand that it begins: what a process does in its life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    known: tuple[str, int] | None = None
    for at, name in enumerate(share):
        if known != (name.system, name.number // OF_A_CASE):
            known = (name.system, name.number // OF_A_CASE)
            made = case(name.seed, *known)
            found = judge(made, made.plans, verify)
            told.send(Judged(name, UNBROKEN, "", found.wrong, found.rejected))
        told.send(at)
        plans = mutant(
            np.random.default_rng([name.seed, zlib.crc32(name.system.encode()), name.number, 1]), made, name.kind
        )
        found = judge(made, plans, verify)
        change = changes(made.plans, plans) if found.missed or (found.rejected and not found.wrong) else ""
        told.send(Judged(name, name.kind, change, found.wrong, found.rejected))
    told.close()
