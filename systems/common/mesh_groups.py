"""A mesh's groups: sequences laid over groups of ranks by one of three methods."""

from typing import Literal, Protocol, get_args

import numpy as np

from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather, local, pack_zigzag, ring, ulysses_ring
from zbench.plans.plan import Ints

Method = Literal["ring", "allgather", "ulysses"]
METHODS: tuple[Method, ...] = get_args(Method)


class Lay(Protocol):
    """A way to lay a builder's sequences over groups of ranks: `lay`, for one method."""

    def __call__(self, builder: Builder, *, group: Ints, groups: Ints, gpus_per_node: int) -> None: ...


def lay(builder: Builder, *, method: Method, group: Ints, groups: Ints, gpus_per_node: int) -> None:
    """Lays the builder's sequences over groups of neighbouring ranks.

    group: int64 [num_sequences], the group of each. groups: int64 [num_groups, degree], the ranks of each.
    """
    seqs, degree = np.arange(len(group), dtype=np.int64), groups.shape[1]
    if degree == 1:
        local(builder, seqs, group)
    elif method == "ring":
        ring(builder, seqs, group, groups)
    elif method == "ulysses":
        width = exchange_degree(degree, builder.num_heads)
        ulysses_ring(builder, seqs, group, groups.reshape(len(groups), -1, width))
    else:
        for number in np.unique(group):
            mine = np.flatnonzero(group == number)
            gathered(
                builder, mine, pack_zigzag(builder.lengths[mine], degree, builder.mask), groups[number], gpus_per_node
            )


def exchange_degree(degree: int, num_heads: int) -> int:
    """Returns the number of ranks of an all-to-all in a group: the most that divide it and leave each a head. kv goes
    round the others."""
    return max(width for width in range(1, min(degree, num_heads) + 1) if degree % width == 0)


def gathered(builder: Builder, seqs: Ints, pieces: tuple[Ints, ...], ranks: Ints, gpus_per_node: int) -> None:
    """Lays one group whose ranks gather the keys of its whole pack; inside nodes first, where it has several.

    seqs: the pack's sequences. pieces: int64 [n] each, which of them, start, stop, and which of the ranks owns it.
    """
    seq, start, stop, owner = pieces
    nodes = np.unique(ranks // gpus_per_node, return_counts=True)[1]
    even = len(np.unique(nodes)) == 1
    all_gather(builder, seqs[seq], start, stop, owner, ranks.reshape(len(nodes) if even else 1, -1))
