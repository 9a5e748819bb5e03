"""Names of messages between two processes, and the order in which they leave."""

import threading
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from zbench.runtime.clocks.step_times import StepTimes
from zbench.runtime.clocks.times import NoClock
from zbench.runtime.handlers.messages import GlooMessages
from zbench.runtime.transport.arrivals import Arrival
from zbench.runtime.transport.transport import Traffic
from zbench.step.operations import QUEUES

ATTENTION, GRADIENTS = QUEUES.index("attention"), QUEUES.index("gradients")


class Sent:
    """A send that is under way."""

    def wait(self) -> None:
        """Returns at once."""


class Ends:
    """An end of every queue, on process 0 of four, of which the last two are on another node. posted: (bytes, process,
    name) of what was sent, in turn."""

    def __init__(self) -> None:
        self.peers, self.traffic, self.posted = [False, False, True, True], Traffic(), list[tuple[int, int, int]]()
        self.group = SimpleNamespace(rank=lambda: 0)

    def post(self, data: Tensor, peer: int, name: int) -> Sent:
        self.posted.append((data.numel(), peer, name))
        return Sent()

    def send(self, data: Tensor, peer: int, name: int) -> Sent:
        self.traffic.sent(self.peers[peer], data.numel())
        return self.post(data, peer, name)

    def receive(self, data: Tensor, peer: int, name: int) -> Sent:
        return Sent()


class Comes:
    """A message that comes when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()

    def wait(self) -> None:
        assert self.let.wait(60)


def messages_on(ends: Ends) -> GlooMessages:
    every: Any = [ends] * len(QUEUES)
    return GlooMessages(every, torch.device("cpu"), StepTimes(NoClock()))


def test_messages_of_a_queue_and_those_passed_on_are_counted_apart_at_both_ends() -> None:
    ends = Ends()
    messages = messages_on(ends)
    one, arrival = torch.zeros(1, dtype=torch.uint8), Arrival(torch.zeros(1, dtype=torch.uint8), [])
    for queue in (ATTENTION, GRADIENTS, ATTENTION):
        messages.send(queue, one, 1)
    messages.keep(messages.relay(ATTENTION, arrival, 1))
    messages.settle()
    received = [messages.receive(queue, 1, 1) for queue in (ATTENTION, ATTENTION, GRADIENTS)]
    received.append(messages.receive(ATTENTION, 1, 1, relayed=True))
    names = [one.name[1] for one in received if one.name is not None]
    sent = [name for *_, name in ends.posted]
    assert names == [sent[0], sent[2], sent[1], sent[3]]
    assert len(set(names)) == 4


def test_what_is_there_leaves_behind_what_its_queue_was_given_before_and_other_queues_wait_for_neither() -> None:
    """As from the clock's queues, which are by node as well, and by whether a message is relayed."""
    ends, work = Ends(), Comes()
    messages = messages_on(ends)
    messages.pass_on(ATTENTION, Arrival(torch.zeros(2, dtype=torch.uint8), [work]), 1)
    messages.send(ATTENTION, torch.zeros(3, dtype=torch.uint8), 1)
    messages.send(GRADIENTS, torch.zeros(4, dtype=torch.uint8), 1)
    messages.send(ATTENTION, torch.zeros(5, dtype=torch.uint8), 2)
    assert [size for size, *_ in ends.posted] == [4, 5]
    relayed = messages.relay(ATTENTION, Arrival(torch.zeros(6, dtype=torch.uint8), []), 1)
    relayed[0].wait()
    assert [size for size, *_ in ends.posted] == [4, 5, 6]
    work.let.set()
    messages.keep(relayed)
    messages.settle()
    assert [size for size, *_ in ends.posted] == [4, 5, 6, 2, 3]
    assert (ends.traffic.inside_tx, ends.traffic.across_tx) == (15, 5)


def test_a_part_of_what_comes_leaves() -> None:
    ends = Ends()
    messages = messages_on(ends)
    messages.pass_on(ATTENTION, Arrival(torch.arange(9, dtype=torch.uint8), []), 3, slice(2, 5))
    messages.settle()
    assert [(size, peer) for size, peer, _ in ends.posted] == [(3, 3)]
