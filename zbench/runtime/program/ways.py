"""The legs of a list of operations, seen from one rank: what arrives at it and what leaves it. No torch.

A message may travel in shares (a routed transfer); a share is the bytes [begin, end) of it. A rank that only
passes a share on receives it into no slot and sends it further.
"""

from dataclasses import dataclass

import numpy as np

from zbench.plans.plan import Ints
from zbench.runtime.program.program import HOME, Receive, Relay, Send, Slot
from zbench.simulator.legs import Legs


@dataclass(frozen=True)
class Ways:
    """The legs that touch a rank, with the bytes [begin, end) of its message that each carries."""

    rank: int
    legs: Legs
    begin: Ints
    to: Ints

    @staticmethod
    def of(parts: Legs, rank: int) -> "Ways":
        """Returns the legs with the bytes that each carries."""
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
        """Returns (leg, peer, begin, end) of every leg that leaves this rank with a share of its own message `op`."""
        part = range(int(self.legs.first[op]), int(self.legs.first[op + 1]))
        return tuple(
            (leg, int(self.to[leg]), int(self.begin[leg]), int(self.begin[leg] + self.legs.bytes[leg]))
            for leg in part
            if self.legs.after[leg] < 0
        )

    def receives(
        self, arrivals: dict[int, int], slots: list[Slot]
    ) -> tuple[tuple[Receive, ...], tuple[tuple[int, ...], ...]]:
        """Returns what arrives here in plan order, and per slot which of it."""
        out: list[Receive] = []
        arrives: list[list[int]] = [[] for _ in slots]
        for leg in np.flatnonzero((self.to == self.rank) & (self.legs.link_a >= 0)).tolist():
            begin, size = int(self.begin[leg]), int(self.legs.bytes[leg])
            slot = arrivals[int(self.legs.op[leg])] if self.legs.last[leg] else HOME
            if slot != HOME:
                inside = slots[slot].inside
                for place in (slot, inside[0]) if inside else (slot,):
                    arrives[place].append(len(out))
            out.append(Receive(leg, int(self.legs.rank[leg]), slot, begin, begin + size))
        return tuple(out), tuple(map(tuple, arrives))

    def sends(self, own: dict[int, Send], receives: tuple[Receive, ...]) -> tuple[Send | Relay, ...]:
        """Lists own messages and shares passed on, in the order of their first legs."""
        index = {receive.leg: at for at, receive in enumerate(receives)}
        out: list[Send | Relay] = []
        done: set[int] = set()
        for leg in np.flatnonzero((self.legs.rank == self.rank) & (self.legs.link_a >= 0)).tolist():
            op = int(self.legs.op[leg])
            if self.legs.after[leg] >= 0:
                out.append(Relay(index[int(self.legs.after[leg])], leg, int(self.to[leg])))
            elif op not in done:
                done.add(op)
                out.append(own[op])
        return tuple(out)
