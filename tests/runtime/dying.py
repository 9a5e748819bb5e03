"""Processes that are killed, as by the system, when they come to a certain place."""

import os
import signal
from typing import Any

from zbench.correctness.steps.cases import ProcessOptions
from zbench.correctness.steps.rank import StepRank
from zbench.runtime.job.job import Job
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.training.trainer import Trainer


class FatalBoard:
    """A board, deadly at the first place that contains `where`."""

    place = ""

    def __init__(self, board: Any, where: str) -> None:
        self._board, self._where = board, where

    def say(self, text: str) -> None:
        self._board.say(text)
        self._die(text)

    def wait(self, text: str = "") -> None:
        self._board.wait(text)
        self._die(text)

    def resume(self) -> None:
        self._board.resume()

    def _die(self, text: str) -> None:
        if self._where in text:
            os.kill(os.getpid(), signal.SIGKILL)


class Dying(Trainer):
    """argument: (job, the rank that dies, what its place has to contain)."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: tuple[Job, int, str]) -> None:
        job, victim, place = argument
        super().__init__(rank, num_ranks, rendezvous, job)
        if rank == victim:
            fatal: Any = FatalBoard(self.board, place)
            self.board = fatal
            object.__setattr__(self.engine, "board", fatal)


class DyingStep(StepRank):
    """argument: (the rank that dies, what its place has to contain)."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: tuple[int, str]) -> None:
        super().__init__(rank, num_ranks, rendezvous, ProcessOptions())
        if rank == argument[0]:
            fatal: Any = FatalBoard(self.board, argument[1])
            self.board = fatal
