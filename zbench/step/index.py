"""Indices that a step is cut along, maps between them, and relations that say which parts of two of them meet."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints


@dataclass(frozen=True)
class Index:
    """An index (tokens, heads, columns of the feed-forward) cut into disjoint parts, which are numbered from 0.

    sizes: int64 [parts], how many tokens, heads or columns each has; at least one part, each of at least 1.
    of_batch: whether every micro-batch cuts it anew, as its tokens; tensors along it are then of one micro-batch.
    """

    name: str
    sizes: Ints
    of_batch: bool = False

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def bounds(self) -> list[int]:
        """The beginning of every part among all tokens, heads or columns, and the end of the last one, [parts + 1]."""
        return [0, *np.cumsum(self.sizes).tolist()]


@dataclass(frozen=True)
class PartMap:
    """The part of a coarser index that every part of a finer one lies in, as the kv heads of query heads: g(h).

    part: int64 [parts of the finer index].
    """

    coarse: str
    fine: str
    part: Ints


@dataclass(frozen=True)
class Relation:
    """A relation says which parts of two indices have a contribution together, as queries and keys of visible(t, s).

    It is told of groups of parts, so that parts cut finer for other reasons (a GPU's share of a block) do not square
    its size: parts of a group have the same partners, and an operation names whole groups or none of them.

    first_group, second_group: int64 [parts] of the first and the second index. offsets, partners: compressed rows,
    for every group of the first index the groups of the second that it meets, ascending.
    """

    name: str
    first: str
    second: str
    first_group: Ints
    second_group: Ints
    offsets: Ints
    partners: Ints

    @property
    def groups(self) -> tuple[Ints, Ints]:
        """The groups of parts of the first and of the second index."""
        return self.first_group, self.second_group

    def turned(self) -> tuple[Ints, Ints]:
        """Returns (offsets, groups of the first index) for every group of the second."""
        groups = int(self.second_group.max()) + 1
        first = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        counts = np.bincount(self.partners, minlength=groups)
        order = np.argsort(self.partners, kind="stable")
        return np.concatenate([[0], np.cumsum(counts)]), first[order]
