"""Objects for fleets in tests to run on their ranks."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbench.runtime.processes.rendezvous import Rendezvous


class Summer:
    """Sums over all ranks, by torch.distributed."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any) -> None:
        self.rank, self.num_ranks, self.board, self.argument = rank, num_ranks, rendezvous.board, argument
        if argument == "odd" and rank == 1:
            raise ValueError("the argument is odd")
        self.port, self.device = rendezvous.port, rendezvous.open()

    def echo(self, *arguments: Any) -> tuple[Any, ...]:
        return (self.rank, *arguments)

    def about(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "argument": self.argument,
            "port": self.port,
            "directory": str(Path.cwd()),
            "mark": os.environ.get("MARK"),
            "torch threads": torch.get_num_threads(),
        }

    def total(self, value: float) -> float:
        return self._reduce("total", value + self.rank)

    def loop(self, times: int = 10**9) -> float:
        """Sums `times` times; for good, if nothing ends it."""
        value = 0.0
        for step in range(times):
            value += self._reduce(f"step {step}, all-reduce", 1.0)
        return value

    def unless(self, rank: int, deed: str) -> float:
        """One sum that `rank` does not take part in: it does `deed` instead."""
        self.board.say("step 7, reduction")
        if self.rank != rank:
            return self._reduce("step 7, reduction", 1.0)
        return float(getattr(self, deed)())

    def talk(self) -> None:
        print("a word")
        print("another", file=sys.stderr)
        os.write(2, b"half a line")

    def lambdas(self) -> Any:
        return lambda: None

    def close(self) -> None:
        if self.argument == "clings":
            raise OSError("it cannot let go")
        if self.argument == "hangs":
            time.sleep(1000)

    # -- deeds --------------------------------------------------------------------------------------
    def raise_error(self) -> None:
        raise ValueError("not\n  today")

    def raise_memory(self) -> None:
        raise MemoryError("a page too many")

    def leave(self) -> None:
        os.write(2, b"so long\n")
        os._exit(3)

    def leave_orderly(self) -> None:
        sys.exit(4)

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def sleep(self) -> None:
        time.sleep(1000)

    def wait_in_vain(self) -> None:
        self.board.wait()
        time.sleep(1000)

    def work(self) -> float:
        for part in range(25):
            time.sleep(0.1)
            self.board.say(f"step 7, part {part}")
        return self._reduce("step 7, reduction", 2.0)

    def _reduce(self, place: str, value: float) -> float:
        numbers = torch.tensor([value], device=self.device)
        self.board.wait(place)
        dist.all_reduce(numbers)
        self.board.resume()
        return float(numbers[0])
