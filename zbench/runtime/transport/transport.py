"""Defines what a run asks of a transport, what a transport asks of a run, and how one message is posted and counted.

There are two transports. That of gloo (zbench.runtime.transport.gloo) posts message by message, by Endpoint.send and
Endpoint.receive here; that of NCCL posts messages in batches (BatchedMessages.before in zbench.runtime.transport.nccl).
"""

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.plans.plan import Plan
from zbench.runtime.clocks.events import Events
from zbench.runtime.clocks.named import Name, NamedMoments
from zbench.runtime.program.program import Program, Receive, Send

Pair = tuple[Program, Program]


@dataclass
class Traffic:
    """The bytes that this rank sent and received, inside its node and across nodes, counted where messages are
    posted."""

    inside_tx: int = 0
    inside_rx: int = 0
    across_tx: int = 0
    across_rx: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def sent(self, across: bool, size: int) -> None:
        """Counts bytes that were sent."""
        with self._lock:
            if across:
                self.across_tx += size
            else:
                self.inside_tx += size

    def received(self, across: bool, size: int) -> None:
        """Counts bytes that were received."""
        with self._lock:
            if across:
                self.across_rx += size
            else:
                self.inside_rx += size


@dataclass
class Endpoint:
    """One rank's messages on a process group; `peers[r]`: whether rank r is on another node.

    tag: of the program under way, so that the forward's and the backward's hops are told apart.
    events: where what is sent and arrives is noted; named: where it is noted when, by the machine's clock.
    through_host: messages go through copies in host memory: gloo's take a GPU's memory for the host's.
    """

    group: Any
    peers: list[bool]
    traffic: Traffic = field(default_factory=Traffic)
    events: Events = field(default_factory=Events)
    named: NamedMoments = field(default_factory=NamedMoments)
    through_host: bool = False

    @classmethod
    def on(cls, group: dist.ProcessGroup, node_of: Ints, device: torch.device) -> Self:
        """Makes this rank's endpoint on `group`. node_of: the node of every rank, int64 [num_ranks]. device: where
        messages are."""
        elsewhere = [bool(node != node_of[group.rank()]) for node in node_of]
        return cls(group, elsewhere, through_host=device.type == "cuda" and dist.get_backend(group) == "gloo")

    def send(self, data: Tensor, peer: int, tag: int) -> Any:
        """Posts a send of `data`; returns what to wait for."""
        self.traffic.sent(self.peers[peer], data.numel() * data.element_size())
        return self.post(data, peer, tag)

    def post(self, data: Tensor, peer: int, tag: int) -> Any:
        """Posts a send that was counted; returns what to wait for."""
        return self.group.send([data.to("cpu", copy=True) if self.through_host else data], peer, tag)

    def receive(self, data: Tensor, peer: int, tag: int) -> Any:
        """Posts a receive; returns what to wait for; `data` may be read after that."""
        self.traffic.received(self.peers[peer], data.numel() * data.element_size())
        if not self.through_host:
            return self.group.recv([data], peer, tag)
        host = torch.empty_like(data, device="cpu")
        return _ThroughHost(self.group.recv([host], peer, tag), host, data)


@dataclass(frozen=True, slots=True)
class _ThroughHost:
    """A message that arrives in `host` and, when it is waited for, is copied to `data`.

    Both copies are in the order of the device's current stream, which is the same in all threads of a rank: work that
    was started before a message leaves is in it, and what is started after a wait reads what arrived.
    """

    work: Any
    host: Tensor
    data: Tensor

    def wait(self) -> None:
        self.work.wait()
        self.data.copy_(self.host)


class TransportedRun(Protocol):
    """The part of a run that a transport asks for. tag: tells the forward's messages from the backward's. number: of
    the run in its step (zbench.runtime.clocks.events). tag: tells the forward's messages from the backward's. number:
    of the run in its step (zbench.runtime.clocks.events)."""

    program: Program
    tag: int
    number: int

    def place(self, receive: Receive) -> Tensor:
        """Returns the bytes that a message arrives in."""

    def message(self, send: Send) -> Tensor:
        """Returns the bytes of a message, put together from what is there; waits for the receives it needs."""


class Messages(Protocol):
    """The messages of one run, under way from `before(0)` on.

    in_order: what was received is there by itself for what is sent later, as it stands, without `wait`.
    """

    in_order: bool

    def before(self, attended: int) -> None:
        """Prepares for the run to go on, with so many attends started."""

    def is_done(self, index: int) -> bool:
        """Returns whether receive `index` was waited for."""

    def name(self, index: int) -> Name | None:
        """Returns by what the message of receive `index` is known where it came from; None where moments of messages
        are not the host's."""

    def wait(self, index: int) -> None:
        """Returns when receive `index` can be read by what is started from now on; any number of times."""

    def finish(self) -> None:
        """Returns when all sends are under way; what they carry must not be changed before Transport.settle()."""


class Transport(Protocol):
    """The way in which the messages of all runs on a rank travel."""

    def prepare(self, plan: Plan, cost: Cost, pair: Pair) -> Pair:
        """Returns a plan's programs with what else this transport needs to know of the plan."""

    def open(self, post: Endpoint, job: TransportedRun) -> Messages:
        """Opens the messages of one run."""

    def settle(self) -> None:
        """Returns when all that was sent may be changed."""

    def close(self) -> None:
        """Ends the transport."""
