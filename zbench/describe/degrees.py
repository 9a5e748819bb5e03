"""Degrees by which parameters, gradients and optimizer state are cut: each over a run of ranks that follow one another.

Ranks are numbered by bandwidth, nearest first, so a degree of 2 is a pair and one of a node's ranks the node. Each
degree divides the next: what a rank has of a coarser cut is made of whole parts of the finer one, so that to change
from one to the other is to gather or to reduce, never to move parts about. ZeRO's stages are such degrees.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from zbench.describe.checks import is_whole

WORLD = 0  # in place of a number of ranks: all there are
_WORDS = ("node", "world")
FLAT = "flat"


@dataclass(frozen=True, slots=True)
class ShardDegrees:
    """Ranks over which each is cut, WORLD for all of them; every run of so many ranks has all of it.

    weights: parameters, while a step runs. secondary: what stays of them from a forward for its backward, which is
    gathered among so many. gradients: reduced among so many in every micro-batch, and over the rest once a step.
    optimizer: state, and what of parameters is updated and kept between steps. node: ranks of which the updated
    parameters reach each run once, and are passed on inside it; WORLD: they reach every rank by itself.
    """

    weights: int
    secondary: int
    gradients: int
    optimizer: int
    node: int = WORLD

    def check(self, ranks: int) -> None:
        """Raises ValueError where the degrees do not lie in one another and in so many ranks."""
        order = [("secondary", self.secondary), ("weights", self.weights)]
        order += [("gradients", self.gradients), ("optimizer", self.optimizer), ("ranks", WORLD)]
        for (name, degree), (other, wanted) in pairwise(order):
            size, above = degree or ranks, wanted or ranks
            if above % size:
                what = f"the {ranks} ranks" if wanted == WORLD else f"sharding.degrees.{other}={above}"
                raise ValueError(f"sharding.degrees.{name} is {size}; it has to divide {what}")
        if self.node and (ranks % self.node or (self.optimizer or ranks) % self.node):
            raise ValueError(
                f"sharding.degrees.updates is node, which is {self.node} ranks; they have to divide "
                f"sharding.degrees.optimizer={self.optimizer or ranks}: it takes {FLAT}"
            )

    def of_ranks(self, ranks: int) -> "ShardDegrees":
        """Returns the degrees with WORLD for those that are all ranks.

        Raises:
            ValueError: they do not lie in one another.
        """
        self.check(ranks)
        found = [WORLD if degree == ranks > 1 else degree for degree in (*self.cut, self.node)]
        return ShardDegrees(*found)

    @property
    def cut(self) -> tuple[int, int, int, int]:
        """The degrees of weights, secondary weights, gradients and optimizer state."""
        return self.weights, self.secondary, self.gradients, self.optimizer


BY_STRATEGY: Mapping[str, ShardDegrees] = MappingProxyType({
    "none": ShardDegrees(1, 1, 1, 1),
    "zero1": ShardDegrees(1, 1, 1, WORLD),
    "zero2": ShardDegrees(1, 1, WORLD, WORLD),
    "zero3": ShardDegrees(WORLD, WORLD, WORLD, WORLD),
})  # fmt: skip


def check_degrees(given: Any) -> None:
    """Raises ValueError unless `given` says degrees by name, as sharding.degrees has them."""
    names = ("weights", "secondary", "gradients", "optimizer")
    if not isinstance(given, Mapping) or set(given) - {*names, "updates"} or set(names) - set(given):
        wanted = f"{', '.join(names)}, and maybe updates"
        raise ValueError(f"sharding.degrees is {given!r}; with sharding.strategy=nested it takes {wanted}")
    for name in names:
        if given[name] not in _WORDS and not (is_whole(given[name]) and given[name] >= 1):
            raise ValueError(
                f"sharding.degrees.{name} is {given[name]!r}; it takes a whole number of ranks of at least 1, node or "
                "world"
            )
    if given.get("updates", FLAT) not in (FLAT, "node"):
        raise ValueError(f"sharding.degrees.updates is {given['updates']!r}; it takes {FLAT} or node")


def degrees_of(given: Mapping[str, Any], ranks: int, ranks_per_node: int) -> ShardDegrees:
    """Returns the degrees that `check_degrees` accepts, on so many ranks.

    Raises:
        ValueError: they do not lie in one another.
    """
    sizes = {"node": min(ranks_per_node, ranks), "world": WORLD}
    numbers = [sizes.get(given[name], given[name]) for name in ("weights", "secondary", "gradients", "optimizer")]
    node = sizes["node"] if given.get("updates", FLAT) == "node" else WORLD
    return ShardDegrees(*numbers, node).of_ranks(ranks)
