"""Messages between the ranks of a calibration: one peer, all peers, one peer through all NICs of its node, and a ring
beside a gather.

Collective, as zbench.calibrate.measure is, of which these are a part: on gloo and NCCL, CPUs, GPUs and a desk alike.
"""

from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.calibrate.subject import Subject
from zbench.runtime.processes.board import Board


class Exchanges:
    """One rank's part of the messages that a calibration times."""

    def __init__(self, rank: int, subject: Subject, board: Board, device: torch.device) -> None:
        self.rank, self.subject, self.board, self.device = rank, subject, board, device
        self._gathers: dist.ProcessGroup | None = None

    def exchange(self, across: bool, alone: bool, size: int, rounds: int) -> float | None:
        """Returns the seconds of a message of `size` bytes while every rank sends one and receives one; mean over
        partners.

        A round is a message each way with each partner (Subject.partners), all ranks with the same distance at a time.
        alone: only the first rank of each NIC, so that none has more than one peer at a time; None on the others.
        """
        pairs = self.subject.partners(self.rank, across)
        data, into = (self._bytes(size) for _ in range(2))
        self._together()
        if alone and across and self.rank not in self.subject.proxies(self.rank // self.subject.gpus_per_node):
            return None
        began = perf_counter()
        for _ in range(rounds):
            for to, source in pairs:
                self._move([(data, to)], [(into, source)])
        return (perf_counter() - began) / rounds / len(pairs)

    def together(self, across: bool, size: int, rounds: int) -> float:
        """Returns the seconds in which every rank sends `size` bytes, as many to each peer (Subject.peers), and
        receives them."""
        pairs = self.subject.peers(self.rank, across)
        each = -(-size // len(pairs))
        data, into = self._bytes(each), [self._bytes(each) for _ in pairs]
        self._together()
        began = perf_counter()
        for _ in range(rounds):
            sources = [source for _, source in pairs]
            self._move([(data, to) for to, _ in pairs], list(zip(into, sources, strict=True)))
        return (perf_counter() - began) / rounds

    def routed(self, size: int, rounds: int) -> float | None:
        """Returns the seconds of a message of `size` bytes from the first rank of every node to that of the next, in
        shares through all NICs: handed to the proxies of its node, sent to those of the other, and handed on. None on
        other ranks.

        As zbench.passes.route has it. A proxy passes a share on when all of it has come.
        """
        subject = self.subject
        node = self.rank // subject.gpus_per_node
        own, after, before = (subject.proxies((node + d) % subject.num_nodes) for d in (0, 1, -1))
        share = self._bytes(-(-size // len(own)))
        self._together()
        if self.rank not in own:
            return None
        place, is_first = own.index(self.rank), self.rank == own[0]
        shares = [self._bytes(len(share)) for _ in own]  # of a first rank: of all proxies
        began = perf_counter()
        for _ in range(rounds):
            if is_first:
                self._move([(share, proxy) for proxy in own[1:]], [])
            else:
                self._move([], [(share, own[0])])
            self._move([(share, after[place])], [(shares[place], before[place])])
            if is_first:
                self._move([], list(zip(shares[1:], own[1:], strict=True)))
            else:
                self._move([(shares[place], own[0])], [])
        return (perf_counter() - began) / rounds if is_first else None

    def beside(self, gathered: int, hop: int, which: str) -> tuple[float, float]:
        """Returns the seconds until a ring of messages was around, and until an all-gather was done; 0 of what `which`
        leaves out. All ranks begin both at once, the gather first.

        gathered: bytes of each rank's share. hop: of a message, from each rank to the next one, and one after another
        as often as there are other ranks, as a ring's keys and values move. which: "ring", "gather" or "both". The
        gather has a group and connections of its own, as parameters' gathers have beside attention's messages.
        """
        ranks, rank = self.subject.num_ranks, self.rank
        if self._gathers is None:
            self._gathers = dist.new_group(list(range(ranks)))
        share, whole = self._bytes(gathered), self._bytes(gathered * ranks)
        data, into = self._bytes(hop), self._bytes(hop)
        self._together()
        began = perf_counter()
        ring = gather = 0.0
        if which != "ring":
            work = dist.all_gather(list(whole.view(ranks, -1)), share, group=self._gathers, async_op=True)
        if which != "gather":
            for _ in range(ranks - 1):
                self._move([(data, (rank + 1) % ranks)], [(into, (rank - 1) % ranks)])
            ring = perf_counter() - began
        if which != "ring":
            assert work is not None
            work.wait()
            self._finish()
            gather = perf_counter() - began
        return ring, gather

    # -- inside ---------------------------------------------------------------------------------------
    def _bytes(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    def _move(self, sent: list[tuple[Tensor, int]], received: list[tuple[Tensor, int]]) -> None:
        """Sends and receives messages, given with who gets them or whose they are, all at once, and waits until they
        are there."""
        moves = [dist.P2POp(dist.irecv, into, source) for into, source in received]
        moves += [dist.P2POp(dist.isend, data, to) for data, to in sent]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        self._finish()

    def _together(self) -> None:
        self._finish()
        self.board.wait()
        dist.barrier()
        self.board.resume()

    def _finish(self) -> None:
        """Waits until what was asked of the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
