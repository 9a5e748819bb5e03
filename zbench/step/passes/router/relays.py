"""The GPUs that pass on rows of tokens on their way to experts, where these go in two steps.

Experts are held by groups of `degree` GPUs, of nodes of `node` of them each. A part of the index n is what a relay
passes on together:

    two levels      n is a node of the group. A home's relay for it is the GPU there that has the home's number in its
                    own node: rows cross nodes first, and go on inside one.
    2DH             n is a number of a GPU in its node. A home's relay for it is the GPU of that number in the home's
                    own node: rows go on inside a node first, and a relay sends all that its node's GPUs have for
                    another node's GPU of its number in one message (Hwang et al. 2022, Tutel, arXiv 2206.03382).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Ints


@dataclass(frozen=True)
class Relays:
    """The relays of all groups. node: GPUs of a node, or of those that have the same experts; inside_first: as 2DH has
    them."""

    degree: int
    node: int
    inside_first: bool = False

    @property
    def parts(self) -> int:
        """The parts of n."""
        return self.node if self.inside_first else self.degree // self.node

    @property
    def of_slices(self) -> Ints:
        """The part of n that each slice of the experts is in, int64 [slices]."""
        slices = np.arange(self.degree)
        return slices % self.node if self.inside_first else slices // self.node

    def relay(self, home: Ints) -> Ints:
        """Returns a home's relay for each part of n, int64 [homes, parts of n]."""
        every = np.arange(self.parts)
        if self.inside_first:
            return np.asarray((home // self.node * self.node)[:, None] + every)
        return np.asarray((home // self.degree * self.degree + home % self.node)[:, None] + self.node * every)

    def part(self, gpu: int) -> int:
        """Returns the part of n that a GPU passes on."""
        return int(self.of_slices[gpu % self.degree])

    def slices(self, gpu: int) -> Ints:
        """Returns the slices of the experts that a GPU passes rows on to, its own among them."""
        return np.flatnonzero(self.of_slices == self.part(gpu))

    def homes(self, gpu: int) -> range:
        """Returns the homes that a GPU is the relay of, itself among them."""
        if self.inside_first:
            return range(gpu // self.node * self.node, gpu // self.node * self.node + self.node)
        first = gpu // self.degree * self.degree
        return range(first + gpu % self.node, first + self.degree, self.node)

    def to_relays(self, num_gpus: int) -> Iterator[tuple[int, int, int]]:
        """Yields, turn by turn, a home, another GPU that is a relay of its, and the part of n that goes there."""
        for turn in range(1, self.parts):
            for gpu in range(num_gpus):
                part = partner_in_turn(self.part(gpu), turn, self.parts)
                yield gpu, int(self.relay(np.array([gpu]))[0, part]), part

    def from_relays(self, num_gpus: int) -> Iterator[tuple[int, int, int]]:
        """Yields, turn by turn, a relay, another GPU that it passes rows on to, and this one's slice."""
        each = self.degree // self.parts
        for turn in range(1, each):
            for gpu in range(num_gpus):
                slices, own = self.slices(gpu), gpu % self.degree
                part = int(slices[partner_in_turn(int(np.searchsorted(slices, own)), turn, each)])
                yield gpu, gpu // self.degree * self.degree + part, part


def partner_in_turn(place: int, turn: int, count: int) -> int:
    """Returns the one of `count` that another one exchanges with in a turn, so that in each turn every one has one of
    its own: pairwise where they are a power of two, which spreads over nodes as well (Thakur et al. 2005, doi
    10.1177/1094342005051521), else around a ring."""
    return place ^ turn if count & (count - 1) == 0 else (place + turn) % count
