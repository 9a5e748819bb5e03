"""A trainer that is killed, as by the system, when it comes to a certain place."""

import os
import signal
from typing import Any

from zbench.runtime.job.job import Job
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.training.trainer import Trainer


class Dying(Trainer):
    """argument: (job, the rank that dies, what its place has to contain)."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: tuple[Job, int, str]) -> None:
        job, victim, place = argument
        super().__init__(rank, num_ranks, rendezvous, job)
        if rank == victim:
            board: Any = self.board
            say, wait = board.say, board.wait

            class Fatal:
                """The board, deadly at one place."""

                place = ""

                def say(self, text: str) -> None:
                    say(text)
                    self._die(text)

                def wait(self, text: str = "") -> None:
                    wait(text)
                    self._die(text)

                def resume(self) -> None:
                    board.resume()

                def _die(self, text: str) -> None:
                    if place in text:
                        os.kill(os.getpid(), signal.SIGKILL)

            fatal: Any = Fatal()
            self.board = fatal
            object.__setattr__(self.engine, "board", fatal)
