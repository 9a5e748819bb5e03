"""Messages by name: when each was posted and how long it was waited for, by the clock that the processes of a machine
share, and so whether a wait was for another rank or for a link. Imports no torch.

CLOCK_MONOTONIC is the kernel's, so that it is the same in all namespaces and containers of a machine; of two machines
it is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

Name = tuple[int, int]  # of a message: the other process's number among all, the message's between the two


class Waited(NamedTuple):
    """A wait for a message, from one moment to another. name: of the message, where it came from."""

    name: Name
    began: float
    ended: float


class NamedMessages(NamedTuple):
    """The messages of a rank in a step. machine: that the rank is on, "" where nothing tells it. sent: the moment at
    which each was posted. waited: for those of others."""

    machine: str = ""
    sent: Mapping[Name, float] = {}
    waited: Sequence[Waited] = ()


@dataclass
class NamedMoments:
    """Notes the moments of a step's messages, from the first `begin` on: whoever runs programs for months wants no list
    of them."""

    _is_on: bool = False
    _sent: dict[Name, float] = field(default_factory=dict)
    _waited: list[Waited] = field(default_factory=list)

    def begin(self) -> None:
        """Begins a step."""
        self._is_on, self._sent, self._waited = True, {}, []

    def end(self) -> NamedMessages:
        """Ends the step; returns what was noted."""
        self._is_on = False
        return NamedMessages(machine(), self._sent, self._waited)

    def leaves(self, name: Name) -> None:
        """Notes that a message is posted now; from any thread."""
        if self._is_on:
            self._sent[name] = perf_counter()

    def waited(self, name: Name | None, began: float, ended: float) -> None:
        """Notes that a message was waited for; without a name nothing."""
        if self._is_on and name is not None:
            self._waited.append(Waited(name, began, ended))


def machine() -> str:
    """Returns what tells this machine, from its last start on, from others: Linux's number of that start."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def seconds_for_ranks(every: Sequence[NamedMessages]) -> list[float] | None:
    """Returns the seconds for which each rank waited for messages that were not posted yet, in order of ranks: another
    rank was late; the rest of its waiting was for links. None where ranks have no clock in common, or no message that
    they waited for has a name."""
    machines = {one.machine for one in every}
    if len(machines) > 1 or "" in machines or not any(one.waited for one in every):
        return None
    return [
        sum(_late(one, every[one.name[0]].sent.get((rank, one.name[1]), one.began)) for one in told.waited)
        for rank, told in enumerate(every)
    ]


def _late(one: Waited, posted: float) -> float:
    """Returns the seconds of a wait before the message was posted."""
    return min(max(posted - one.began, 0.0), one.ended - one.began)
