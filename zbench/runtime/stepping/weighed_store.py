"""A store that knows the most bytes that it had at a time, as they lie in memory: what a step's account says is held.

Operands are there while what is made of them is put or added, as in the account, and so are logits, which no store has.
What other kernels take for a moment besides is in neither. A tensor's pieces of memory are looked at anew where it was
read or written since, so that a small step takes some 4 % more of the cores (python -m tests.bench.runtimes, beside
the commit before it).
"""

from collections.abc import Collection, Sequence

import torch

from zbench.runtime.handlers.formats import Fields, Format
from zbench.runtime.handlers.store import Held, Key, Merge, Slab, Store
from zbench.runtime.steps.instructions import Cell, Parts

Pieces = dict[int, int]  # the bytes of pieces of memory, by their address


class WeighedStore(Store):
    """The cells on a place, with the bytes of them, and of logits, at the fullest moment (peak) since it began."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        self.peak = self._beside = 0
        self._changed: set[Key] = set()
        self._pieces: dict[Key, Pieces] = {}
        self._users: dict[int, int] = {}  # of each address, how many tensors have something there
        self._bytes = 0

    def begin(self, beside: int = 0) -> None:
        """Begins anew with what is there. beside: the bytes of what was set aside and stays there."""
        self._beside = beside
        self.peak = self._beside + self.num_bytes

    def weigh(self, beside: int) -> None:
        """Notes what there is now, if there is something beside: else it was noted when it was put or added."""
        if beside:
            self._note(beside)

    def read(self, key: Key, of: Format, first: Parts, second: Parts) -> Fields:
        """Returns fields, as zbench.runtime.handlers.store.Store does; what arrives lies elsewhere than was thought."""
        self._changed.add(key)
        return super().read(key, of, first, second)

    def put(self, key: Key, slab: Slab, over: bool = False) -> None:
        """Puts cells, as zbench.runtime.handlers.store.Store does."""
        super().put(key, slab, over)
        self._changed.add(key)
        self._note()

    def add(self, key: Key, slab: Slab, merge: Merge) -> None:
        """Adds contributions, as zbench.runtime.handlers.store.Store does."""
        super().add(key, slab, merge)
        self._changed.add(key)
        self._note()

    def forget(self, key: Key, cells: Sequence[Cell], settles: bool = True) -> None:
        """Lets cells go, as zbench.runtime.handlers.store.Store does."""
        self._changed.add(key)
        super().forget(key, cells, settles)

    def set_aside(self, keys: Collection[Key]) -> Held:
        """Takes tensors out, as zbench.runtime.handlers.store.Store does."""
        self._changed.update(keys)
        return super().set_aside(keys)

    def put_back(self, aside: Held) -> None:
        """Puts back what was set aside."""
        self._changed.update(aside)
        super().put_back(aside)

    @property
    def num_bytes(self) -> int:
        """The bytes of all pieces of memory in which cells lie, each once; of what is on its way, its message's."""
        for key in self._changed:  # all of them first: what one has let go of may be where another one lies now
            self._leave(key)
        for key in self._changed:
            self._look_at(key)
        self._changed.clear()
        return self._bytes

    def _note(self, logits: int = 0) -> None:
        """Notes what there is now."""
        self.peak = max(self.peak, self._beside + self.num_bytes + logits)

    def _leave(self, key: Key) -> None:
        """Counts the pieces of a tensor no more."""
        for address, size in self._pieces.pop(key, {}).items():
            self._users[address] -= 1
            if not self._users[address]:
                del self._users[address]
                self._bytes -= size

    def _look_at(self, key: Key) -> None:
        """Counts the pieces that a tensor has now."""
        found: Pieces = {}
        for slab in {id(slab): slab for slab in self.held.get(key, {}).values()}.values():
            found |= slab.pieces()
        for address, size in found.items():
            if address not in self._users:
                self._bytes += size
            self._users[address] = self._users.get(address, 0) + 1
        if found:
            self._pieces[key] = found


def held_bytes(held: Held) -> int:
    """Returns the bytes of all pieces of memory, each once, that cells take which were set aside: with what waits to be
    added to them, which stays there as long as they do."""
    pieces: Pieces = {}
    for slab in {id(slab): slab for cells in held.values() for slab in cells.values()}.values():
        pieces |= slab.every_piece()
    return sum(pieces.values())
