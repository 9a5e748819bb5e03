"""A step of some of a cluster's GPUs as a part of a trace of the whole: which tracks its events are on, and when. Pure:
no torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from zbench.describe.cluster import Cluster
from zbench.trace.file import Event
from zbench.trace.whole_step import track_titles

_OWNER = re.compile(r"(GPU|NIC) (\d+)")
_ENDS = ("from", "to")


@dataclass(frozen=True)
class StepPart:
    """The place of a step in a trace. own: the cluster that it was played on, a part of one node or some whole ones.
    whole: that of the trace. first: the rank there of its first GPU. begin: seconds from the trace's begin to its own.
    layers: the numbers that its layers have in the model, and what is after the last; None: their own. stages: whether
    they are on several, so that each GPU has a host memory of its own."""

    own: Cluster
    whole: Cluster
    first: int = 0
    begin: float = 0.0
    layers: Sequence[int] | None = None
    stages: bool = False

    @property
    def node(self) -> int:
        """The node of its first GPU."""
        return self.first // self.whole.gpus_per_node

    def layer(self, number: int) -> int:
        """Returns the number in the model of a layer of the step."""
        return number if self.layers is None else self.layers[number]

    def place(self, number: int) -> int:
        """Returns a place of the step as the whole cluster counts it: its GPUs, and after them the memories of nodes,
        or GPUs' parts of these."""
        own, memory = self.own.num_ranks, self.first if self.stages else self.node
        return self.first + number if number < own else self.whole.num_ranks + memory + number - own

    def moved(self, event: Event) -> Event:
        """Returns an event of the step (zbench.trace.whole_step) as one of the trace."""
        args = dict(event["args"])
        args |= {end: self.place(args[end]) for end in _ENDS if end in args} | {"layer": self.layer(args["layer"])}
        at = round(event["ts"] + 1e6 * self.begin, 3)
        tid = self._tracks[event["pid"]][event["tid"]]
        return event | {"pid": self.node + event["pid"], "tid": tid, "ts": at, "args": args}

    @cached_property
    def _tracks(self) -> list[list[int]]:
        """The numbers that the tracks of every node of its own cluster have in the whole one."""
        whole = track_titles(self.whole)[self.node :]
        first = {"GPU": self.first, "NIC": int(self.whole.nic_of[self.first])}

        def renamed(found: re.Match[str]) -> str:
            return f"{found[1]} {first[found[1]] + int(found[2])}"

        numbers = [{title: at for at, title in enumerate(titles)} for titles in whole]
        return [
            [number[_OWNER.sub(renamed, title)] for title in titles]
            for number, titles in zip(numbers, track_titles(self.own), strict=False)
        ]
