"""A store that knows the most bytes that it ever held, as they lie in memory: what the account of steps says is held.

Operands are there while what is made of them is put or added, as in the account. What kernels take for a moment besides
is in neither.
"""

from zbench.runtime.handlers.store import Key, Merge, Slab, Store


class PeakStore(Store):
    """The cells on a place, with the bytes of them at the fullest moment (peak)."""

    peak = 0

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
        there: dict[int, int] = {}
        coming = 0
        for slab in slabs.values():
            if not slab.is_there:
                coming += slab.format.num_bytes(slab.first, slab.second)
                continue
            for one in slab.fields:
                memory = one.untyped_storage()
                there[memory.data_ptr()] = memory.nbytes()
        return coming + sum(there.values())
