"""Notes what a rank did in a whole step, operation by operation, to be drawn (zbench.runtime.measured_steps).

Nothing is noted unless asked for. Messages are noted where they are counted, so that their bytes sum to the counts.
Computes and waits are by the device's clock, as the step's seconds are; messages by the links': the host's, and on a
GPU moments of its compute stream, which stands still until a message that it waits for is there. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from zbench.runtime.clocks.times import Clock


NAMELESS = -1  # in place of a message's name


class NotedOperation(NamedTuple):
    """An operation under way. source: the object whose operation it is, a template's program; of parameters that move
    between two steps the tensor's name. op: its number in the template, -1 of these. layer: of the instance. src, dst:
    places that a message goes from and to; of a compute both are its own."""

    source: Any
    op: int
    layer: int
    src: int
    dst: int


class NotedCompute(NamedTuple):
    """A compute. began, ended: seconds since the step's begin, its operands being there."""

    of: NotedOperation
    began: float
    ended: float


class NotedWait(NamedTuple):
    """A wait for messages. of: the operation whose message it is; None: of one that was sent, that it has left, or that
    was posted in an earlier step. queue: of zbench.step.operations.QUEUES, its number. began, ended: as of
    NotedCompute."""

    of: NotedOperation | None
    queue: int
    began: float
    ended: float


class NotedMessage(NamedTuple):
    """One end of a message. peer: the other process; -1: a copy inside this one. size: bytes. began: when it was
    posted. ended: when it was found arrived, inf where it was under way when the step ended or is the sender's end.
    name: by which two processes know it; of those with the same one, as of all that have none, the n-th that a process
    sends to another is the n-th that this one receives from it."""

    of: NotedOperation
    queue: int
    peer: int
    size: int
    began: float
    ended: float
    name: int = NAMELESS


class RankNotes(NamedTuple):
    """The notes of a rank on a step. Operations' sources are the numbers of templates, or names of tensors. seconds:
    from the step's begin to its end."""

    seconds: float
    computes: Sequence[NotedCompute]
    waits: Sequence[NotedWait]
    sent: Sequence[NotedMessage]
    received: Sequence[NotedMessage]


@dataclass(slots=True)
class Posted:
    """An end of a message that is under way. began, ended: moments of the links' clock."""

    of: NotedOperation
    queue: int
    peer: int
    size: int
    began: Any
    links: "Clock"
    name: int
    ended: Any = None

    def leaves(self) -> None:
        """Says that the message is posted now, where that is later than what asked for it."""
        self.began = self.links.now()

    def arrives(self) -> None:
        """Says that the message is there; the first time counts."""
        if self.ended is None:
            self.ended = self.links.now()


@dataclass
class StepNotes:
    """The notes of the step under way. device, links: clocks. of: the operation under way."""

    device: "Clock"
    links: "Clock"
    is_on: bool = False
    of: NotedOperation | None = None
    _begun: tuple[Any, Any] = (None, None)  # moments of both clocks
    _operands: Any = None  # when the operands of the compute under way were there
    _computes: list[tuple[NotedOperation, Any, Any]] = field(default_factory=list)
    _waits: list[tuple[NotedOperation | None, int, Any, Any]] = field(default_factory=list)
    _sent: list[Posted] = field(default_factory=list)
    _received: list[Posted] = field(default_factory=list)

    def begin(self, is_on: bool) -> None:
        """Begins a step, to be noted or not."""
        self.is_on, self.of = is_on, None
        self._computes, self._waits, self._sent, self._received = [], [], [], []
        if is_on:
            self._begun = self.device.now(), self.links.now()

    def turn_to(self, source: Any, op: int, layer: int, src: int, dst: int) -> None:
        """Says that what follows is of an operation: as NotedOperation."""
        if self.is_on:
            self.of = NotedOperation(source, op, layer, src, dst)

    def operands(self) -> None:
        """Says that a compute's operands are there: what it waited for is no part of it."""
        if self.is_on:
            self._operands = self.device.now()

    def computed(self) -> None:
        """Says that the compute under way has ended."""
        if self.is_on and self.of is not None:
            self._computes.append((self.of, self._operands, self.device.now()))

    def asks(self) -> Any:
        """Returns the moment of a wait's begin."""
        return self.device.now() if self.is_on else None

    def waited(self, of: NotedOperation | None, queue: int, asked: Any) -> None:
        """Notes a wait from `asked` until now. of: as of NotedWait."""
        if self.is_on:
            self._waits.append((of, queue, asked, self.device.now()))

    def sends(self, queue: int, peer: int, size: int, name: int = NAMELESS) -> Posted | None:
        """Notes that a message was counted as sent, and is posted now or later. name: as of NotedMessage."""
        return self._posted(self._sent, queue, peer, size, name)

    def receives(self, queue: int, peer: int, size: int, name: int = NAMELESS) -> Posted | None:
        """Notes that a message was counted as received, whose receive is posted. name: as of NotedMessage."""
        return self._posted(self._received, queue, peer, size, name)

    def copies(self, queue: int, size: int) -> None:
        """Notes a copy inside this process, which is counted as sent and as received."""
        for one in (self.sends(queue, -1, size), self.receives(queue, -1, size)):
            if one is not None:
                one.arrives()

    def told(self, numbers: Mapping[int, int], seconds: float) -> RankNotes:
        """Returns the notes; to be read when the work is done, on a GPU after torch.cuda.synchronize. numbers: of
        templates, by the id of their program. seconds: of the step."""
        names = {id(one): self._named(one, numbers) for one in self._operations()}
        device, links = self._begun

        def since(clock: "Clock", begun: Any, *moments: Any) -> list[float]:
            return [float("inf") if one is None else clock.between(begun, one) for one in moments]

        def ends(every: list[Posted]) -> list[NotedMessage]:
            found = []
            for x in every:
                began, ended = since(self.links, links, x.began, x.ended)
                found.append(NotedMessage(names[id(x.of)], x.queue, x.peer, x.size, began, ended, x.name))
            return found

        computes = [NotedCompute(names[id(of)], *since(self.device, device, *span)) for of, *span in self._computes]
        waits = [
            NotedWait(None if of is None else names[id(of)], queue, *since(self.device, device, *span))
            for of, queue, *span in self._waits
        ]
        return RankNotes(seconds, computes, waits, ends(self._sent), ends(self._received))

    # -- inside ---------------------------------------------------------------------------------------
    def _posted(self, among: list[Posted], queue: int, peer: int, size: int, name: int) -> Posted | None:
        if not self.is_on:
            return None
        assert self.of is not None, "whoever moves something says for which operation"
        found = Posted(self.of, queue, peer, size, self.links.now(), self.links, name)
        among.append(found)
        return found

    def _operations(self) -> list[NotedOperation]:
        found = [of for of, *_ in self._computes] + [of for of, *_ in self._waits if of is not None]
        return found + [one.of for one in (*self._sent, *self._received)]

    @staticmethod
    def _named(one: NotedOperation, numbers: Mapping[int, int]) -> NotedOperation:
        return one if isinstance(one.source, str) else one._replace(source=numbers[id(one.source)])
