"""Moves messages of a running program over NCCL: what a rank sends and receives, one batch after another.

NCCL's messages have no names: between two ranks they are matched in the order they were posted in, and what is posted
as one is under way until all of its partners have joined. So a rank posts its batches (zbench.runtime.program.phases)
as torch.distributed.batch_isend_irecv, each as soon as the attends that it needs are started, always from the main
thread. Waiting holds up the compute stream, not the host; on the stream of the messages a batch begins when the one
before it is complete, and the compute stream has got to where it was posted.

On gloo, which the tests use, waiting holds up the host, and messages of a batch travel one by one, all with one tag.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from zbench.cost.cost import Cost
from zbench.plans.plan import Plan
from zbench.runtime.program.phases import with_message_batches
from zbench.runtime.program.program import HOME, MessageBatch, Relay
from zbench.runtime.transport.gloo import Sender
from zbench.runtime.transport.transport import Endpoint, Pair, Transport, TransportedRun

Issue = Callable[[list[Any]], list[Any]]  # posts dist.P2POps, returns what to wait for


def transport_of(group: dist.ProcessGroup) -> Transport:
    """Returns the transport for the group's backend. Collective: every rank of the group has to come there."""
    if dist.get_backend(group) != "nccl":
        return Sender()
    dist.barrier(group)  # makes the communicator, which takes all ranks; a batch is only some ranks'
    return Batches()


class Batches:
    """A transport of batches."""

    def __init__(self, issue: Issue = dist.batch_isend_irecv) -> None:
        self.issue = issue

    def prepare(self, plan: Plan, cost: Cost, pair: Pair) -> Pair:
        return with_message_batches(plan, cost, pair)

    def open(self, post: Endpoint, job: TransportedRun) -> "BatchedMessages":
        return BatchedMessages(self.issue, post, job)

    def settle(self) -> None:
        """Returns at once: runs waited for their own messages."""

    def close(self) -> None:
        """Does nothing, as there is nothing to end."""


class BatchedMessages:
    """Messages of one run."""

    def __init__(self, issue: Issue, post: Endpoint, job: TransportedRun) -> None:
        self.issue, self.post, self.job = issue, post, job
        self.in_order = dist.get_backend(post.group) == "nccl"
        self.batches = job.program.batches
        self.under_way: list[tuple[list[Any], list[Any]]] = []  # of each batch posted: messages, and what to wait for
        self.batch_of = {index: at for at, batch in enumerate(self.batches) for index in batch.receives}
        self.passing: dict[int, Tensor] = {}  # by receive: what is passed on
        self.waited = [False] * len(self.batches)

    def before(self, attended: int) -> None:
        while len(self.under_way) < len(self.batches) and self.batches[len(self.under_way)].at <= attended:
            ops = self._operations(self.batches[len(self.under_way)])
            self.under_way.append((ops, self.issue(ops)))  # memory of a message is not free before it is waited for

    def is_done(self, index: int) -> bool:
        return self.waited[self.batch_of[index]]

    def name(self, index: int) -> None:
        """Returns None: messages of a batch are waited for together."""

    def wait(self, index: int) -> None:
        self._wait(self.batch_of[index])

    def finish(self) -> None:
        for at in range(len(self.batches)):
            self._wait(at)

    def _wait(self, at: int) -> None:
        if not self.waited[at]:
            assert at < len(self.under_way), "an attend reads what its rank has not posted"
            for work in self.under_way[at][1]:
                work.wait()
            self.waited[at], self.under_way[at] = True, ([], [])

    def _operations(self, batch: MessageBatch) -> list[dist.P2POp]:
        """Lists the operations of the batch's messages, by hop: those between two ranks come in the same order on
        both."""
        hops = [hop for index in batch.sends for hop in self._sends(index)]
        hops += [self._receive(index) for index in batch.receives]
        return [op for _, op in sorted(hops, key=lambda pair: pair[0])]

    def _sends(self, index: int) -> list[tuple[int, dist.P2POp]]:
        """Returns (hop, operation) of what leaves of one message."""
        send = self.job.program.sends[index]
        if isinstance(send, Relay):
            if not self.in_order:
                self.wait(send.received)
            data = self.passing.pop(send.received)
            return [(send.hop, self._operation(dist.isend, data, send.peer))]
        data = self.job.message(send)
        return [(hop, self._operation(dist.isend, data[begin:end], peer)) for hop, peer, begin, end in send.hops]

    def _receive(self, index: int) -> tuple[int, dist.P2POp]:
        receive = self.job.program.receives[index]
        data = self.job.place(receive)
        if receive.slot == HOME:
            self.passing[index] = data
        return receive.hop, self._operation(dist.irecv, data, receive.peer)

    def _operation(self, way: Callable[..., Any], data: Tensor, peer: int) -> dist.P2POp:
        count = self.post.traffic.sent if way is dist.isend else self.post.traffic.received
        count(self.post.peers[peer], data.numel() * data.element_size())
        return dist.P2POp(way, data, group=self.post.group, group_peer=peer)
