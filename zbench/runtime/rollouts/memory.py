"""The memory of a GPU's weights while it generates: no byte of them twice, unless an engine keeps some twice.

Of each weight, what the GPU generates with is one piece of memory. A training shard that is part of it moves in and is
a view of it from then on; one that is not stays where it is. What else an engine gathers has pieces of its own, which
go before generation begins. Messages arrive where their elements belong, so nothing is copied after them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Flags
from zbench.runtime.handlers.formats import Format
from zbench.runtime.handlers.store import Key, Slab, Store
from zbench.runtime.kernels.memory import bytes_of
from zbench.runtime.steps.instructions import Parts


@dataclass(frozen=True)
class Piece:
    """Memory of parts of a weight that follow one another, [begin, end)."""

    begin: int
    end: int
    memory: Tensor

    @staticmethod
    def new(of: Format, parts: range, device: torch.device | str) -> "Piece":
        """Returns a piece whose elements are not written yet."""
        size = of.shape(0, tuple(parts), (0,))
        return Piece(parts.start, parts.stop, torch.empty(size, dtype=of.fields[0][1], device=device))

    def has(self, parts: Parts) -> bool:
        """Returns whether all of some parts are in it, one behind the other."""
        together = parts == tuple(range(parts[0], parts[-1] + 1))
        return together and self.begin <= parts[0] and parts[-1] < self.end

    def view(self, of: Format, parts: Parts) -> Tensor:
        """Returns the elements of parts that it has."""
        sizes = of.sizes[0]
        first = int(sizes[self.begin : parts[0]].sum())
        return self.memory.narrow(0, first, int(sizes[list(parts)].sum()))


class WeightStore(Store):
    """The weights on a GPU. generated: by tensor, what it generates with; passing: what is gathered besides."""

    SHRINKS = False  # they lie in memory that was made for them

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        self.generated: dict[Key, Piece] = {}
        self.passing: dict[Key, list[Piece]] = {}

    def make_room(self, key: Key, of: Format, held: tuple[Flags, Flags, Flags]) -> None:
        """Makes memory for a weight. held: what the GPU trains with, generates with, and has while it changes from one
        to the other, bool [parts] each."""
        trained, generated, there = held
        for own in _runs(generated):
            assert key not in self.generated, "parts that a GPU generates with follow one another"
            self.generated[key] = Piece.new(of, own, self.device)
        self.passing[key] = [Piece.new(of, run, self.device) for run in _runs(there & ~trained & ~generated)]
        if not (trained & generated).any():
            return
        assert not (trained & ~generated).any(), (
            "a training shard is part of what its GPU generates with, or none of it"
        )
        parts = tuple(np.flatnonzero(trained).tolist())
        inside = self.generated[key].view(of, parts).copy_(self.take(key, of, parts, (0,))[0])
        self.put(key, Slab.of(of, parts, (0,), (inside,)))

    def room(self, key: Key, of: Format, first: Parts, second: Parts) -> Tensor | None:
        """Returns the bytes in which a message with these cells is to arrive; None: in memory of its own."""
        own = [self.generated[key]] if key in self.generated else []
        for piece in (*own, *self.passing.get(key, ())):
            if piece.has(first):
                return bytes_of(piece.view(of, first))
        return None

    def drop_passing(self, key: Key) -> None:
        """Lets go of what was gathered of a weight and is neither generated with nor trained with."""
        for piece in self.passing.pop(key):
            self.forget(key, [(part, 0) for part in range(piece.begin, piece.end)])

    def end_generation(self, key: Key, of: Format, trained: Flags) -> None:
        """Leaves of a weight what training has of it, in memory of its own."""
        parts = tuple(np.flatnonzero(trained).tolist())
        kept = self.read(key, of, parts, (0,)) if parts else ()
        kept = tuple(one.clone() if self.is_inside(key, one) else one for one in kept)
        self.generated.pop(key, None)
        self.passing.pop(key, None)
        self.forget(key, list(self.held.get(key, ())))
        if parts:
            self.put(key, Slab.of(of, parts, (0,), kept))

    def num_bytes(self) -> int:
        """Returns the bytes of all memory that weights lie in, each piece once."""
        pieces = [*self.generated.values(), *(one for some in self.passing.values() for one in some)]
        slabs = (slab for held in self.held.values() for slab in held.values())
        tensors = [*(piece.memory for piece in pieces), *(slab.fields[0] for slab in slabs)]
        return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())

    def is_inside(self, key: Key, tensor: Tensor) -> bool:
        """Returns whether a tensor lies in the memory of what the GPU generates with."""
        if key not in self.generated:
            return False
        memory, other = (one.untyped_storage() for one in (self.generated[key].memory, tensor))
        at = tensor.data_ptr() - memory.data_ptr()
        return memory.data_ptr() == other.data_ptr() and 0 <= at <= memory.nbytes() - tensor.nbytes


def _runs(flags: Flags) -> Iterator[range]:
    """Yields the runs of set flags."""
    for _, some in groupby(enumerate(np.flatnonzero(flags).tolist()), lambda pair: pair[1] - pair[0]):
        run = [at for _, at in some]
        yield range(run[0], run[-1] + 1)
