"""Notes what a rank did in a step and when, to be drawn (zbench.runtime.measured_trace): attends, waits and messages.

Nothing is noted unless asked for. Moments are the host's (seconds of time.perf_counter, which on Linux all processes of
a machine share), so on a GPU, where calls return early, they say when work was asked for.
"""

from dataclasses import dataclass, field
from time import perf_counter

from zbench.runtime.program.program import Receive

REDUCE, OPTIMIZER = "reduce gradients", "optimizer"  # names of spans


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which a rank did one thing. name: "attend forward", "waiting", ... began, ended: moments.
    run: of a program, as in Message; op: of an attend, in its list of operations; -1 where it is of none."""

    name: str
    began: float
    ended: float
    run: int
    op: int


@dataclass(frozen=True, slots=True)
class Message:
    """One end of a message: `moment` it was posted by the sender, or found arrived by the receiver.

    run: the number of the run of a program in this step, which is the same on both ends. hop: its number in the run.
    """

    peer: int
    run: int
    hop: int
    bytes: int
    moment: float


@dataclass(slots=True)
class Events:
    """The events that a rank notes in a step."""

    is_on: bool = False
    spans: list[Span] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    arrived: list[Message] = field(default_factory=list)
    _runs: int = 0

    def begin(self, is_on: bool) -> None:
        """Begins a step, to be noted or not."""
        self.is_on, self._runs = is_on, 0
        self.spans, self.sent, self.arrived = [], [], []

    def run(self) -> int:
        """Returns the number of a run of a program that begins."""
        self._runs += 1
        return self._runs - 1

    def span(self, name: str, began: float, run: int = -1, op: int = -1) -> None:
        """Notes what lasted from `began` until now."""
        if self.is_on:
            self.spans.append(Span(name, began, perf_counter(), run, op))

    def send(self, run: int, peer: int, hop: int, size: int) -> None:
        """Notes that a message was posted."""
        if self.is_on:
            self.sent.append(Message(peer, run, hop, size, perf_counter()))

    def arrive(self, run: int, receive: Receive) -> None:
        """Notes that a message was found arrived."""
        if self.is_on:
            size = receive.end - receive.begin
            self.arrived.append(Message(receive.peer, run, receive.hop, size, perf_counter()))
