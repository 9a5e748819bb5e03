"""The strategies that one layer may have on the GPUs of a stage, as leaves of Galvatron-BMW's decision tree.

The leaves of the tree are GPUs, its levels kinds of parallelism, each of one degree; the last level is of consecutive
GPUs (Wang et al. 2023, arXiv 2307.02031, section 3.2). Data parallelism and fully sharded data parallelism are not
mixed in a layer, as one of both alone is as good.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

DATA, SHARDED, TENSOR = "data", "sharded", "tensor"
KINDS = (DATA, SHARDED, TENSOR)
AGAIN = ("none", "full")  # what of a layer runs again in its backward: nothing, or all of it


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """A level of the tree: a kind of parallelism and its degree."""

    kind: str
    degree: int


@dataclass(frozen=True, slots=True)
class LayerStrategy:
    """The strategy of a layer: the levels of its tree, the outermost first, and what is recomputed."""

    levels: tuple[TreeLevel, ...]
    recompute: str

    def degree(self, *kinds: str) -> int:
        """Returns the product of the degrees of levels of these kinds, 1 without any."""
        return prod(one.degree for one in self.levels if one.kind in kinds)

    def stride(self, *kinds: str) -> int:
        """Returns how many GPUs apart those of a group of such a level are."""
        at = next((place for place, one in enumerate(self.levels) if one.kind in kinds), len(self.levels))
        return prod(one.degree for one in self.levels[at + 1 :])

    @property
    def tensor(self) -> int:
        """The degree of tensor parallelism."""
        return self.degree(TENSOR)

    @property
    def groups(self) -> int:
        """The groups that have tokens of their own."""
        return self.degree(DATA, SHARDED)

    @property
    def is_sharded(self) -> bool:
        """Whether each group has a share of parameters, gradients and state alone."""
        return self.degree(SHARDED) > 1

    def __str__(self) -> str:
        levels = " x ".join(f"{one.kind} {one.degree}" for one in self.levels) or "alone"
        return levels if self.recompute == "none" else f"{levels}, recompute {self.recompute}"


def decision_tree(gpus: int, recompute: tuple[str, ...] = AGAIN, mixed: bool = False) -> list[LayerStrategy]:
    """Returns the strategies on so many GPUs, a power of two. mixed: also those with both kinds of data parallelism, as
    before pruning."""
    return [LayerStrategy(levels, again) for levels in _levels(gpus, KINDS, mixed) for again in recompute]


def _levels(gpus: int, kinds: tuple[str, ...], mixed: bool) -> Iterator[tuple[TreeLevel, ...]]:
    """Yields the levels on so many GPUs, each kind at most once, in every order."""
    if gpus == 1:
        yield ()
        return
    for kind in kinds:
        other = {DATA: SHARDED, SHARDED: DATA}.get(kind, "") if not mixed else ""
        left = tuple(one for one in kinds if one not in (kind, other))
        for degree in (2**power for power in range(1, gpus.bit_length())):
            yield from ((TreeLevel(kind, degree), *rest) for rest in _levels(gpus // degree, left, mixed))
