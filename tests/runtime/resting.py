"""Ranks of executor=torch: one that shows what rests on it after a step, one that dies in a change."""

import os
import signal
from typing import Any

from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.stepping.rank import SteppingRank
from zbench.runtime.steps.resting import items_on


class RestingRank(SteppingRank):
    """Shows parameters and optimizer state."""

    def rests(self) -> list[tuple[str, int, Any, Any, list[Any]]]:
        """Returns (tensor, layer, parts of both axes, fields) of every place that has such cells."""
        rest, found = self.resting, []
        assert rest is not None
        for tensor, layer, places, first, second in items_on(rest.step, rest.items, self.runner.stores):
            name, of = rest.parts.layout.tensors[tensor].name, rest.parts.formats[tensor]
            for place in places if name != "loss" else ():
                fields = self.runner.stores[place].read(rest.parts.key(tensor, layer), of, first, second)
                found.append((name, layer, first, second, [one.clone() for one in fields]))
        return found


class LeavingRank(SteppingRank):
    """Is killed, as number 1, when the first tensor has moved for the second step."""

    def _run(self, prepared: PreparedStep, where: str, number: int | None, noted: bool = False) -> Any:
        if self.rank == 1 and self.updates == 2:
            self.runner.machine.messages.turn = self.leave  # type: ignore[method-assign]
        return super()._run(prepared, where, number, noted)

    def leave(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
