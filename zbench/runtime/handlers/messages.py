"""Messages of a step between processes, counted where they are posted, by what they are for: the queue of their
operation, or the one that it is told as (zbench.step.operations.PURPOSE_OF).

Over gloo receives are posted ahead, each with the number of its message between two processes as its name, sends are
waited for an instance later, and what is passed on before it has arrived is sent by a thread. Over NCCL, where messages
have no names and are matched in the order they were posted in, those of one operation are one batch, posted in the
order of the step, which is the same on all processes; no GPU has run this.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.describe.arrays import Ints
from zbench.runtime.clocks.named import Name
from zbench.runtime.clocks.pace import Pacer
from zbench.runtime.clocks.step_notes import Posted
from zbench.runtime.clocks.step_times import StepTimes
from zbench.runtime.clocks.times import clock_on
from zbench.runtime.transport.arrivals import Arrival, AwaitedBytes
from zbench.runtime.transport.passing import PassedOn, PassingThread
from zbench.runtime.transport.transport import Endpoint
from zbench.step.operations import BOTH_WAYS, QUEUES

AHEAD = 8  # receives posted beyond the operation under way, as zbench.runtime.transport.gloo has them
KEPT = 2  # instances after which what was sent is waited for
WHOLE = slice(None)  # all bytes of a message
NAMES = 1 << 20  # of messages of a kind between two processes, then from the start again
Leaving = tuple[Any, Any, int]  # of what leaves: what to wait for, what it carries, its queue
Works = deque[list[Leaving]]  # by instance


class StepMessages(Protocol):
    """The messages of a process.

    ends: its end for every queue, each with its own count. ahead: how many receives may be posted before their
    operation is reached. leaves_later: whether what is sent may come to be there after it was asked for, and
    messages of different queues are told apart, so that they need no common order; else those of an operation are
    posted together. times: what is told where the process waits.
    """

    ends: Sequence[Endpoint]
    ahead: int
    times: StepTimes

    @property
    def leaves_later(self) -> bool: ...

    def receive(self, queue: int, size: int, peer: int, into: Tensor | None = None, relayed: bool = False) -> Arrival:
        """Posts the receive of a message of `size` bytes. into: the bytes that it arrives in; None: memory of its own.
        relayed: the process that it comes from passes it on for another."""

    def send(self, queue: int, data: Tensor, peer: int) -> None:
        """Posts the send of a message, whose bytes stay as they are until it is waited for."""

    def pass_on(self, queue: int, coming: AwaitedBytes, peer: int, part: slice = WHOLE) -> None:
        """Sends what may not be there yet. part: bytes of it."""

    def relay(self, queue: int, arrival: Arrival, peer: int) -> Leaving:
        """Sends on a message for others, of whose transfer the process is no end; `keep` says when that was to be."""

    def keep(self, one: Leaving) -> None:
        """Says that the operation is reached whose message was sent on: it has left when those have that are sent
        now."""

    def copied(self, queue: int, size: int) -> None:
        """Counts a copy between two places of this process, as to host memory: sent and received."""

    def posted(self) -> None:
        """Says that all messages of an operation were given."""

    def turn(self) -> None:
        """Says that an instance of a template has ended."""

    def settle(self) -> None:
        """Returns when all that was sent has left."""


@dataclass
class GlooMessages:
    """Messages over gloo. ends: the process's end for every queue, each with its own count. device: where they are.
    members: the numbers of the group's processes among all; (): they are all."""

    ends: Sequence[Endpoint]
    device: torch.device
    times: StepTimes
    ahead: int = AHEAD
    members: Sequence[int] = ()
    _sent: Counter[tuple[int, int]] = field(default_factory=Counter)  # by process and kind
    _received: Counter[tuple[int, int]] = field(default_factory=Counter)
    _works: Works = field(default_factory=lambda: deque([[]]))
    _passing: dict[tuple[int, bool, bool], PassingThread] = field(default_factory=dict)

    @property
    def leaves_later(self) -> bool:
        """Whether a thread may send what was not there yet: on a GPU it arrives by a copy in the order of the computing
        thread's stream."""
        return self.device.type == "cpu"

    def receive(self, queue: int, size: int, peer: int, into: Tensor | None = None, relayed: bool = False) -> Arrival:
        data = torch.empty(size, dtype=torch.uint8, device=self.device) if into is None else into
        name = _next_name(self._received, peer, queue, relayed)
        works = [self.ends[queue].receive(data, peer, name)]
        return Arrival(data, works, self._known(peer, name), self.times.notes.receives(queue, peer, size, name))

    def send(self, queue: int, data: Tensor, peer: int) -> None:
        thread = self._passing.get(self._line(queue, peer, False))
        if thread is not None and thread.is_busy:  # behind what was asked for before it
            self.pass_on(queue, Arrival(data, [], is_here=True), peer)
            return
        name = _next_name(self._sent, peer, queue, False)
        self._leaves(peer, name)
        self.times.notes.sends(queue, peer, data.numel(), name)
        self._works[-1].append((self.ends[queue].send(data, peer, name), data, queue))

    def pass_on(self, queue: int, coming: AwaitedBytes, peer: int, part: slice = WHOLE) -> None:
        if self.leaves_later:
            self.keep(self._given(queue, coming, peer, part, False))
        else:
            self.send(queue, self.times.wait(queue, coming.wait, of=coming.of)[part], peer)

    def relay(self, queue: int, arrival: Arrival, peer: int) -> Leaving:
        assert self.leaves_later, "transfers of GPUs that share a host's memory go straight"
        return self._given(queue, arrival, peer, WHOLE, True)

    def keep(self, one: Leaving) -> None:
        self._works[-1].append(one)

    def _given(self, queue: int, coming: AwaitedBytes, peer: int, part: slice, relayed: bool) -> Leaving:
        """Gives a message to the thread that sends it; returns what to wait for, as of `keep`."""
        end, line = self.ends[queue], self._line(queue, peer, relayed)
        size, name = len(range(coming.size)[part]), _next_name(self._sent, peer, queue, relayed)
        note = self.times.notes.sends(queue, peer, size, name)
        one = PassedOn(coming.wait, partial(self._post, end, coming, part, peer, name, note))
        end.traffic.sent(end.peers[peer], size)
        if line not in self._passing:
            self._passing[line] = PassingThread()
        self._passing[line].give(one)
        return one, coming, queue

    def _line(self, queue: int, peer: int, relays: bool) -> tuple[int, bool, bool]:
        """Returns which messages leave one after another, as the clock's queues have them: what goes to another node
        waits for nothing that stays, and what is relayed for nothing of the process's own."""
        end = self.ends[queue]
        back = BOTH_WAYS[queue] and peer < end.group.rank()
        return queue, end.peers[peer], relays or back

    def _post(self, end: Endpoint, coming: AwaitedBytes, part: slice, peer: int, name: int, note: Posted | None) -> Any:
        """Posts a message that was counted, in the thread that passes it on."""
        self._leaves(peer, name)
        if note is not None:
            note.leaves()
        return end.post(coming.wait()[part], peer, name)

    def _leaves(self, peer: int, name: int) -> None:
        if (known := self._known(peer, name)) is not None:
            self.times.leaves(known)

    def _known(self, peer: int, name: int) -> Name | None:
        """Returns by what times know a message to or from a process; None where they are a GPU's."""
        if self.device.type != "cpu":
            return None
        return (self.members[peer] if self.members else peer), name

    def copied(self, queue: int, size: int) -> None:
        _copied(self.ends[queue], size)
        self.times.notes.copies(queue, size)

    def posted(self) -> None:
        """Does nothing: messages are under way."""

    def turn(self) -> None:
        _turned(self._works, self.times)

    def settle(self) -> None:
        _settled(self._works, self.times)


@dataclass
class BatchedStepMessages:
    """Messages in batches of an operation each, as NCCL takes them. device: where messages are."""

    ends: Sequence[Endpoint]
    device: torch.device
    times: StepTimes
    ahead: int = 0
    _batch: list[dist.P2POp] = field(default_factory=list)
    _queues: list[int] = field(default_factory=list)  # of the messages of the batch
    _arrivals: dict[int, Arrival] = field(default_factory=dict)  # by their place in the batch
    _works: Works = field(default_factory=lambda: deque([[]]))

    @property
    def leaves_later(self) -> bool:
        """Whether messages need no common order: here they do."""
        return False

    def receive(self, queue: int, size: int, peer: int, into: Tensor | None = None, relayed: bool = False) -> Arrival:
        data = torch.empty(size, dtype=torch.uint8, device=self.device) if into is None else into
        found = Arrival(data, [], note=self.times.notes.receives(queue, peer, size))
        end = self.ends[queue]
        end.traffic.received(end.peers[peer], size)
        self._arrivals[len(self._batch)] = found
        self._add(dist.P2POp(dist.irecv, found.data, group=end.group, group_peer=peer), queue)
        return found

    def send(self, queue: int, data: Tensor, peer: int) -> None:
        end = self.ends[queue]
        end.traffic.sent(end.peers[peer], data.numel())
        self.times.notes.sends(queue, peer, data.numel())
        self._add(dist.P2POp(dist.isend, data, group=end.group, group_peer=peer), queue)

    def pass_on(self, queue: int, coming: AwaitedBytes, peer: int, part: slice = WHOLE) -> None:
        self.send(queue, self.times.wait(queue, coming.wait, of=coming.of)[part], peer)

    def relay(self, queue: int, arrival: Arrival, peer: int) -> Leaving:
        raise AssertionError("over NCCL nothing is relayed: what comes in a batch is there when the batch is")

    def keep(self, one: Leaving) -> None:
        self._works[-1].append(one)

    def _add(self, one: dist.P2POp, queue: int) -> None:
        self._batch.append(one)
        self._queues.append(queue)

    def copied(self, queue: int, size: int) -> None:
        _copied(self.ends[queue], size)
        self.times.notes.copies(queue, size)

    def posted(self) -> None:
        if self._batch:
            works = dist.batch_isend_irecv(self._batch)
            alone = len(works) == len(self._batch)  # over gloo, where a message may be waited for once only
            for at, one in enumerate(self._batch):
                mine, arrival = [works[at]] if alone else list(works), self._arrivals.get(at)
                if arrival is None:
                    self._works[-1] += [(work, one.tensor, self._queues[at]) for work in mine]
                else:
                    arrival.works = mine
        self._batch, self._queues, self._arrivals = [], [], {}

    def turn(self) -> None:
        _turned(self._works, self.times)

    def settle(self) -> None:
        _settled(self._works, self.times)


def _next_name(counted: Counter[tuple[int, int]], peer: int, queue: int, relayed: bool) -> int:
    """Returns the name of the next message to or from a process. Messages of different queues, and those that a process
    passes on for others, are counted apart, as they leave in orders of their own."""
    kind = 2 * queue + relayed
    number = counted[peer, kind] % NAMES
    counted[peer, kind] += 1
    return kind * NAMES + number


def _copied(end: Endpoint, size: int) -> None:
    end.traffic.sent(False, size)
    end.traffic.received(False, size)


def _turned(works: Works, times: StepTimes) -> None:
    """Begins a list of messages for another instance, and waits for those of earlier ones."""
    works.append([])
    _wait(works, times, KEPT)


def _settled(works: Works, times: StepTimes) -> None:
    _wait(works, times, 0)
    works.append([])


def _wait(works: Works, times: StepTimes, kept: int) -> None:
    """Waits for the messages of all instances but the last `kept`."""
    while len(works) > kept:
        for work, _, queue in works.popleft():
            times.wait(queue, work.wait)


def open_messages(
    group: dist.ProcessGroup,
    node_of: Ints,
    device: torch.device,
    batched: bool = False,
    pace: Pacer | None = None,
    members: Sequence[int] = (),
) -> StepMessages:
    """Opens the messages of this process on a group. node_of: the node of every process, int64 [processes]. batched:
    in batches, as NCCL takes them, over gloo, too. pace: of the device; None: it is not paced. members: as GlooMessages
    has them."""
    ends, times = [Endpoint.on(group, node_of, device) for _ in QUEUES], StepTimes(clock_on(device), pace)
    if batched or dist.get_backend(group) == "nccl":
        return BatchedStepMessages(ends, device, times)
    return GlooMessages(ends, device, times, members=members)


def bytes_by_queue(ends: Sequence[Endpoint]) -> dict[str, tuple[int, int]]:
    """Returns (bytes sent, bytes received) by queue, of the queues that had messages."""
    found = {}
    for name, end in zip(QUEUES, ends, strict=True):
        sent, received = (end.traffic.inside_tx + end.traffic.across_tx, end.traffic.inside_rx + end.traffic.across_rx)
        if sent or received:
            found[name] = (sent, received)
    return found
