"""The hops of a list of operations, seen from one rank: what arrives at it and what leaves it. No torch.

A message may travel in shares (a routed transfer); a share is the bytes [begin, end) of it. A rank that only
passes a share on receives it into no slot and sends it further.
"""

from dataclasses import dataclass

import numpy as np

from zbench.plans.plan import Ints
from zbench.runtime.program.program import HOME, Receive, Relay, Send, Slot
from zbench.simulator.hops import Hops


@dataclass(frozen=True)
class Ways:
    """The hops that touch a rank, with the bytes [begin, end) of its message that each carries."""

    rank: int
    hops: Hops
    begin: Ints
    to: Ints

    @staticmethod
    def of(parts: Hops, rank: int) -> "Ways":
        """Returns the hops with the bytes that each carries."""
        starts = (parts.after < 0) & (parts.link_a >= 0)
        chain = np.cumsum(starts) - 1
        size = parts.bytes[starts]
        before = np.cumsum(size) - size
        op = parts.op[starts]
        first = np.flatnonzero(np.concatenate([[True], op[1:] != op[:-1]])) if len(op) else np.zeros(0, np.int64)
        base = np.repeat(before[first], np.diff(np.concatenate([first, [len(op)]]))) if len(op) else before
        begin = np.where(parts.link_a >= 0, (before - base)[np.maximum(chain, 0)] if len(op) else 0, 0)
        return Ways(rank, parts, begin, parts.receiver)

    def out(self, op: int) -> tuple[tuple[int, int, int, int], ...]:
        """Returns (hop, peer, begin, end) of every hop that leaves this rank with a share of its own message `op`."""
        part = range(int(self.hops.first[op]), int(self.hops.first[op + 1]))
        return tuple(
            (hop, int(self.to[hop]), int(self.begin[hop]), int(self.begin[hop] + self.hops.bytes[hop]))
            for hop in part
            if self.hops.after[hop] < 0
        )

    def receives(
        self, arrivals: dict[int, int], slots: list[Slot]
    ) -> tuple[tuple[Receive, ...], tuple[tuple[int, ...], ...]]:
        """Returns what arrives here in plan order, and per slot which of it."""
        out: list[Receive] = []
        arrives: list[list[int]] = [[] for _ in slots]
        for hop in np.flatnonzero((self.to == self.rank) & (self.hops.link_a >= 0)).tolist():
            begin, size = int(self.begin[hop]), int(self.hops.bytes[hop])
            slot = arrivals[int(self.hops.op[hop])] if self.hops.last[hop] else HOME
            if slot != HOME:
                inside = slots[slot].inside
                for place in (slot, inside[0]) if inside else (slot,):
                    arrives[place].append(len(out))
            out.append(Receive(hop, int(self.hops.rank[hop]), slot, begin, begin + size))
        return tuple(out), tuple(map(tuple, arrives))

    def sends(self, own: dict[int, Send], receives: tuple[Receive, ...]) -> tuple[Send | Relay, ...]:
        """Lists own messages and shares passed on, in the order of their first hops."""
        index = {receive.hop: at for at, receive in enumerate(receives)}
        out: list[Send | Relay] = []
        done: set[int] = set()
        for hop in np.flatnonzero((self.hops.rank == self.rank) & (self.hops.link_a >= 0)).tolist():
            op = int(self.hops.op[hop])
            if self.hops.after[hop] >= 0:
                out.append(Relay(index[int(self.hops.after[hop])], hop, int(self.to[hop])))
            elif op not in done:
                done.add(op)
                out.append(own[op])
        return tuple(out)
