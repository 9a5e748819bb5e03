"""A timeline's events as columns for the page, and the lists of blocks that they name. Pure: no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zbench.plans.plan import Ops, Plan
from zbench.report.overview import Table

MOST_EVENTS = 60_000  # of one step: about 2 MB of the page, and what a browser still draws at once
_NAMED = 4  # sequences and blocks of an operation that are named; of others their number is told
_KEYS = ("track", "name", "begin", "length", "micro", "layer", "what", "bytes", "route")


@dataclass(slots=True)
class _Names:
    """Texts or tuples, each once, by number."""

    number: dict[Any, int] = field(default_factory=dict)

    def of(self, value: Any) -> int:
        return self.number.setdefault(value, len(self.number))


@dataclass(slots=True)
class Columns:
    """The events of a timeline, as columns."""

    columns: dict[str, list[Any]] = field(default_factory=lambda: {key: [] for key in _KEYS})
    names: _Names = field(default_factory=_Names)
    lists: _Names = field(default_factory=_Names)

    def __len__(self) -> int:
        return len(self.columns["track"])

    def add(
        self,
        track: int,
        name: str,
        span: tuple[float, float],
        of: tuple[int, int] = (-1, -1),
        what: Sequence[tuple[int, int | tuple[int, ...]]] = (),
        size: int = 0,
        route: Sequence[int] = (),
    ) -> None:
        """Adds an event. span: begin and length, microseconds. of: micro-batch and layer, -1 for what is of none. what:
        lists of blocks, each a micro-batch and a number in its plan, or its blocks: those that move or ask, and an
        attend's keys. size: bytes. route: ranks, from and to."""
        lists = [self.lists.of(one) for one in what]
        values = (track, self.names.of(name), *span, *of, lists, size, list(route))
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def table(self, plans: Sequence[Plan]) -> Table:
        """Returns the columns as plain values, with the lists of blocks that they name described."""
        lists = [_described(plans[micro], number) for micro, number in self.lists.number]
        return {"names": list(self.names.number), "lists": lists, **self.columns}


def blocks_of(ops: Ops, op: int) -> list[int]:
    """Returns the lists of blocks that an attend or transfer is about: (what moves or asks, keys of an attend)."""
    keys = int(ops.kv_blocks[op])
    return [int(ops.blocks[op])] + ([keys] if keys >= 0 else [])


def _described(plan: Plan, which: int | tuple[int, ...]) -> Table:
    """Describes a list of blocks: how many and which, their tokens, and their sequences, longest share first."""
    blocks = np.array(which, np.int64) if isinstance(which, tuple) else plan.lists[which]
    pieces = np.concatenate([plan.blocks.pieces[int(block)] for block in blocks])
    tokens = plan.blocks.stop[pieces] - plan.blocks.start[pieces]
    of = np.bincount(plan.blocks.seq[pieces], tokens)
    first = np.argsort(-of, kind="stable")[: min(_NAMED, np.count_nonzero(of))]
    return {
        "blocks": blocks[:_NAMED].tolist(),
        "num_blocks": len(blocks),
        "tokens": int(tokens.sum()),
        "sequences": [[int(plan.sequences[seq]), int(plan.lengths[seq]), int(of[seq])] for seq in first],
        "num_sequences": int(np.count_nonzero(of)),
    }
