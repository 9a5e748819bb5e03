"""Sums gradients over all ranks, started while a backward goes on. Not when, nor of what.

Flat: one all-reduce each over all ranks; NCCL's own finds the nodes and takes every NIC. Gloo's does not: it goes round
one ring of ranks, which leaves a node, and enters it, through a single NIC. TwoLevel therefore reduces inside nodes
first and between them by rings of their own for every local rank, so that each NIC carries its share, as
zbench.cost.collective has it.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 1 << 25  # elements of one all-reduce: 128 MiB of float32, far above where any network reaches its rate
PIECES = 4  # of a part in two levels, even ones: the first and the last level take that share of their time alone
LEAST = 1 << 16  # elements of one of those: smaller messages are headers and acknowledgements by several per cent


class Reduction(Protocol):
    """A way to sum tensors over all ranks. unit: what the number of elements of a piece has to be a multiple of."""

    unit: int

    def start(self, piece: Tensor) -> None:
        """Starts to make `piece`, one-dimensional, its sum over ranks; all start the same ones in the same order."""

    def finish(self) -> None:
        """Returns when all that was started is summed (on a GPU: before what its queue is given from now on)."""

    def close(self) -> None: ...


class Flat:
    """A reduction by one all-reduce over `group`."""

    unit = 1

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._works: list[Any] = []

    def start(self, piece: Tensor) -> None:
        self._works += [dist.all_reduce(x, group=self._group, async_op=True) for x in piece.split(BUCKET)]

    def finish(self) -> None:
        for work in self._works:
            work.wait()
        self._works = []

    def close(self) -> None: ...


class TwoLevel:
    """A reduction on two levels: reduce-scatter in the node, all-reduce between ranks of the same place in their nodes,
    all-gather in the node.

    Each has a thread and a process group of its own, in which pieces follow one another in order: while one piece is
    between nodes the next is inside. A job waits for the same piece's job of the thread before only, so the
    earliest unfinished one can always go on. Collective: every rank of the default group makes one.
    """

    def __init__(self, num_nodes: int, per_node: int) -> None:
        self.unit = num_nodes * per_node
        nodes = [[node * per_node + local for local in range(per_node)] for node in range(num_nodes)]
        places = [list(ranks) for ranks in zip(*nodes, strict=True)]
        self._groups = [dist.new_subgroups_by_enumeration(lists)[0] for lists in (nodes, places, nodes)]
        self._threads = [ThreadPoolExecutor(1, f"zbench-reduction-{level}") for level in range(3)]
        self._gathers: list[Future[None]] = []

    def start(self, piece: Tensor) -> None:
        count = max(1, min(PIECES, len(piece) // LEAST), -(-len(piece) // BUCKET))
        for part in piece.split(-(-len(piece) // (count * self.unit)) * self.unit):
            scatter = self._threads[0].submit(self._scatter, part)
            between = self._threads[1].submit(self._between, scatter)
            self._gathers.append(self._threads[2].submit(self._gather, part, between))

    def finish(self) -> None:
        """Waits until all that was started is summed.

        Raises:
            what a collective raised.
        """
        for gather in self._gathers:
            gather.result()
        self._gathers = []

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()

    def _scatter(self, part: Tensor) -> Tensor:
        """Scatters sums in the node by an all-to-all: gloo's own reduce-scatter is an all-reduce."""
        return _scattered(part, self._groups[0])

    def _between(self, scatter: "Future[Tensor]") -> Tensor:
        """Sums between nodes in whole messages: gloo's all-reduce cuts them small, and headers are then 4 % of what a
        desk's NIC carries."""
        share = scatter.result()
        _gathered(share, _scattered(share, self._groups[1]), self._groups[1])
        return share

    def _gather(self, part: Tensor, between: "Future[Tensor]") -> None:
        _gathered(part, between.result(), self._groups[2])


def _scattered(whole: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Returns this rank's share of `whole`, [its elements / ranks], summed over the group in the order of its ranks."""
    theirs = torch.empty_like(whole)
    dist.all_to_all_single(theirs, whole, group=group)
    return theirs.view(group.size(), -1).sum(0)


def _gathered(whole: Tensor, share: Tensor, group: dist.ProcessGroup) -> None:
    """Fills `whole` with every rank's share."""
    dist.all_gather(list(whole.view(group.size(), -1)), share, group=group)
