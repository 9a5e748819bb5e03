"""Receives of a step that are posted before their operation is reached, so that links work while a process computes.

What comes from other nodes is posted apart from the rest: many messages may come over one kind of link before the first
that travels on the other. Messages are named by their number between two processes, of a queue and of what is passed on
for others each by itself, so what comes from one process is posted in the order of the step.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from zbench.describe.links import share
from zbench.runtime.handlers.counted import CountedRows
from zbench.runtime.handlers.encoded import encoded_bytes
from zbench.runtime.handlers.machine import BatchParts
from zbench.runtime.handlers.messages import Leaving, StepMessages
from zbench.runtime.handlers.prepared import PreparedStep, ScheduledInstruction
from zbench.runtime.handlers.store import Store
from zbench.runtime.steps.instructions import Exchange, Parcel, RelayedShare, TemplateProgram
from zbench.runtime.transport.arrivals import Arrival

LOOKED = 64  # exchanges, beyond the one under way, among which messages are looked for


@dataclass
class _Expected:
    """An exchange with messages to come. arrivals: of its receives; relayed: what is sent on for others; counts, left:
    messages from the process's own node and from others, and those of them that are not posted yet."""

    program: TemplateProgram
    exchange: Exchange
    parts: BatchParts
    layer: int
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    relayed: list[Leaving] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0, 0])
    left: list[int] = field(default_factory=lambda: [0, 0])


class _Message(NamedTuple):
    """A message to come, a parcel or a share of one. number: of its parcel among the exchange's receives, or of what is
    passed on behind these; part, parts: which share of how many; peer: the process that sends it."""

    of: _Expected
    number: int
    part: int
    parts: int
    peer: int


class PostedAhead:
    """The receives of a step, posted in order, some of them before their operation is reached. schedule: of the step;
    stores: by place; they may have room for what arrives."""

    def __init__(
        self,
        messages: StepMessages,
        prepared: PreparedStep,
        schedule: Iterable[ScheduledInstruction],
        stores: Mapping[int, Store],
    ) -> None:
        self.messages, self.stores = messages, stores
        self._coming = (
            _Expected(program, one, prepared.batches[program.layout], layer)
            for program, one, layer in schedule
            if isinstance(one, Exchange)
        )
        self._expected: deque[_Expected] = deque()
        self._unposted: tuple[deque[_Message], deque[_Message]] = (deque(), deque())  # of each side
        self._posted = [0, 0]  # messages of exchanges that are not reached yet
        self._next: _Expected | None = None  # whose sizes are not known yet

    def arrivals(self) -> list[Arrival]:
        """Returns the arrivals of the next exchange's receives, and posts receives beyond it. What comes for others is
        sent on from then on that its receive is posted."""
        if not self._expected:
            self._look()
        now = self._expected[0]
        for side, left in enumerate(self._unposted):
            while now.left[side]:
                self._post(side)
            while self._posted[side] - now.counts[side] < self.messages.ahead:
                if left:
                    self._post(side)
                elif len(self._expected) > LOOKED or not self._look():
                    break
            self._posted[side] -= now.counts[side]
        self._expected.popleft()
        for one in now.relayed:
            self.messages.keep(one)
        return [now.arrivals[number] for number in range(len(now.exchange.receives))]

    def _look(self) -> bool:
        """Finds the messages of another exchange; returns whether there was one. How large messages of counted rows are
        is known when their numbers have come, which are waited for when the exchange is reached."""
        following = self._next or next(self._coming, None)
        if following is None:
            return False
        self._next, one, counted = None, following.exchange, following.parts.counted
        if counted is not None and not counted.know(one.receives, following.layer):
            if self._expected:
                self._next = following
                return False
            self._count(counted, one, following.parts, following.layer)
        found = [
            _Message(following, number, part, max(len(parcel.shares), 1), peer)
            for number, parcel in enumerate(one.receives)
            for part, peer in enumerate(parcel.shares or (parcel.peer,))
        ]
        found += [
            _Message(following, len(one.receives) + number, relay.part, relay.parts, relay.way[0])
            for number, relay in enumerate(one.relays)
        ]
        peers = self.messages.ends[one.purpose].peers
        for message in found:
            side = int(peers[message.peer])
            self._unposted[side].append(message)
            following.counts[side] += 1
            following.left[side] += 1
        self._expected.append(following)
        return True

    def _post(self, side: int) -> None:
        """Posts the next message of a side."""
        message = self._unposted[side].popleft()
        of, number = message.of, message.number
        receives = of.exchange.receives
        if number < len(receives):
            self._post_own(message, receives[number])
        else:
            relay = of.exchange.relays[number - len(receives)]
            begin, end = share(self._size(of, relay), message.part, message.parts)
            self._note(of, *relay.way[:2])
            arrival = self._receive(of, end - begin, message.peer, relayed=not relay.is_first)
            if end > begin:
                self._note(of, *relay.way[1:])
                of.relayed.append(self.messages.relay(of.exchange.purpose, arrival, relay.way[2]))
        of.left[side] -= 1
        self._posted[side] += 1

    def _post_own(self, message: _Message, parcel: Parcel) -> None:
        """Posts a message of a parcel, which arrives in one piece, whatever shares it comes in."""
        of, cells, size = message.of, parcel.cells, self._size(message.of, parcel)
        if message.number not in of.arrivals:
            key = of.parts.key(cells.tensor, of.layer + cells.layer)
            form = of.parts.format(cells.tensor, of.layer + cells.layer)
            # What is encoded is decoded into memory of its own.
            room = self.stores[parcel.dst].room if of.exchange.encoding is None else None
            into = None if room is None else room(key, form, cells.first, cells.second)
            self.messages.times.posted(1)
            if message.parts == 1:
                self._note(of, parcel.src, parcel.dst)
                of.arrivals[message.number] = self._receive(of, size, message.peer, into)
                return
            data = torch.empty(size, dtype=torch.uint8, device=self._device) if into is None else into
            of.arrivals[message.number] = Arrival(data, [])
        whole = of.arrivals[message.number]
        begin, end = share(size, message.part, message.parts)
        self._note(of, message.peer, parcel.dst)
        piece = whole.data[begin:end]
        received = self._receive(of, end - begin, message.peer, piece, message.peer != parcel.peer)
        whole.shares = (*whole.shares, received)

    def _receive(
        self, of: _Expected, size: int, peer: int, into: torch.Tensor | None = None, relayed: bool = False
    ) -> Arrival:
        """Posts a receive; of a message without a row there is none, as nobody sends it."""
        if size:
            return self.messages.receive(of.exchange.purpose, size, peer, into, relayed)
        return Arrival(torch.empty(0, dtype=torch.uint8, device=self._device), [])

    def _note(self, of: _Expected, src: int, dst: int) -> None:
        """Says between which places the message goes that is posted next."""
        self.messages.times.notes.turn_to(of.program, of.exchange.op, of.layer, src, dst)

    def _size(self, of: _Expected, one: Parcel | RelayedShare) -> int:
        """Returns the bytes of a parcel."""
        form = of.parts.format(one.cells.tensor, of.layer + one.cells.layer)
        return encoded_bytes(form, (one.cells.first, one.cells.second), of.exchange.encoding)

    @property
    def _device(self) -> torch.device | str:
        return next(iter(self.stores.values())).device

    def _count(self, counted: CountedRows, one: Exchange, parts: BatchParts, layer: int) -> None:
        """Waits for the numbers of rows that messages have."""
        for parcel in one.receives:
            if not counted.know_of(cells := parcel.cells, layer):
                own = replace(cells, tensor=counted.counts(cells.tensor))
                key, store = parts.key(own.tensor, layer + own.layer), self.stores[parcel.dst]
                numbers = store.read(key, parts.formats[own.tensor], own.first, own.second)[0]
                counted.note(layer + own.layer, own, numbers)
