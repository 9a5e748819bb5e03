"""A store that knows the most bytes that it ever held, as they lie in memory: what the account of steps says is held.

Operands are there while what is made of them is put or added, as in the account. What kernels take for a moment besides
is in neither.
"""

from typing import Any

import torch

from zbench.runtime.handlers.store import Key, Merge, Slab, Store

Pieces = dict[int, int]  # the bytes of pieces of memory, by their address


class PeakStore(Store):
    """The cells on a place, with the bytes of them at the fullest moment (peak)."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        self.peak = 0
        self._known: dict[int, tuple[Any, Pieces]] = {}  # by the number of what has them

    def put(self, key: Key, slab: Slab, over: bool = False) -> None:
        """Puts cells, as zbench.runtime.handlers.store.Store does."""
        super().put(key, slab, over)
        self.peak = max(self.peak, self.num_bytes)

    def add(self, key: Key, slab: Slab, merge: Merge) -> None:
        """Adds contributions, as zbench.runtime.handlers.store.Store does."""
        super().add(key, slab, merge)
        self.peak = max(self.peak, self.num_bytes)

    @property
    def num_bytes(self) -> int:
        """The bytes of all pieces of memory in which cells lie, each once; of what is on its way, its message's."""
        slabs = {id(slab): slab for held in self.held.values() for slab in held.values()}
        known, self._known = self._known, {}
        every: Pieces = {}
        for slab in slabs.values():
            of = slab if slab.there is None else slab.there
            one = known.get(id(of)) or (of, _pieces(slab))
            self._known[id(of)] = one
            every |= one[1]
        return sum(every.values())


def _pieces(slab: Slab) -> Pieces:
    """Returns the pieces of memory that a slab lies in; what is on its way has no address yet."""
    if slab.there is None:
        return {-id(slab): slab.format.num_bytes(slab.first, slab.second)}
    return {memory.data_ptr(): memory.nbytes() for memory in (one.untyped_storage() for one in slab.there)}
