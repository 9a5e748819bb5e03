"""Operations of a step as columns, in one total order in which each uses what earlier ones made."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Flags, Ints

Column32 = NDArray[np.int32]
KINDS = ("compute", "send", "move", "gather", "reduce", "drop")
COMPUTE, SEND, MOVE, GATHER, REDUCE, DROP = range(6)
QUEUES = ("compute", "attention", "tensor_parallel", "parameters", "gradients", "experts", "stages", "host")
# Queues whose messages to a lower place do not wait behind those to a higher one: dx of the stage before would wait for
# an x that is needed after it.
BOTH_WAYS = tuple(name == "stages" for name in QUEUES)


def _purposes() -> Ints:
    """Makes `PURPOSE_OF`."""
    found = np.tile(np.arange(len(QUEUES)), (len(KINDS), 1))
    found[[REDUCE, GATHER], QUEUES.index("experts")] = QUEUES.index("gradients")
    return found


# By kind and queue of an operation, what its bytes, its seconds on links and what waits for it are told as, an index
# into QUEUES: its queue, but for collectives between experts' messages, in whose queue they are: these are of
# gradients, which are reduced there and, where every GPU has them whole, gathered.
PURPOSE_OF: Ints = _purposes()


def one_table(tables: Sequence[Ints], width: int) -> tuple[Ints, Sequence[Column32]]:
    """Returns tables of so many columns one below another, int64 [n, width], and the columns of that."""
    whole = np.concatenate([np.zeros((0, width), np.int64), *tables])
    return whole, [*np.ascontiguousarray(whole.T, np.int32)]


@dataclass(frozen=True)
class Operations:
    """The operations of a list, columns int32 [num_operations].

    kind: COMPUTE, of a formula on a place; SEND, a copy of complete cells from a place to another; MOVE, a sum's
        contributions so far, which leave one place and are added on another; GATHER, cells from their homes to all
        members; REDUCE, a sum's contributions from all members to the cells' homes; DROP, copies that a place forgets.
    what: the formula's number (COMPUTE) or the tensor's. src: the place (COMPUTE, DROP) or where from; of a collective
    -1, or after how many places homes repeat (`homes_among`). dst: where to; -1 of COMPUTE and DROP; the number of the
    list of members of a collective.
    list0, list1, list2: lists of parts, for the formula's slots or the tensor's axes in their order; -1: there is none.
    layer: offset to the layer that the operation's template is played for.
    queue: what serves it in order, an index into QUEUES. version: of state tensors, the update that it has to see,
        counted from the instance's. encoding: a transfer's, an index into the step's encodings; -1: none.
    via: the list of lanes that a transfer is spread over; -1: none.
    """

    kind: Column32
    what: Column32
    src: Column32
    dst: Column32
    list0: Column32
    list1: Column32
    list2: Column32
    layer: Column32
    queue: Column32
    version: Column32
    encoding: Column32
    via: Column32

    def __len__(self) -> int:
        return len(self.kind)

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> "Operations":
        """Makes operations of rows, each with all columns in their order."""
        return Operations.of_tables([np.array(rows, np.int64).reshape(-1, len(COLUMN_NAMES))])

    @staticmethod
    def of_tables(tables: Sequence[Ints]) -> "Operations":
        """Makes operations of tables, [n, columns] each, one below another; what they come to is kept as `table`."""
        whole, columns = one_table(tables, len(COLUMN_NAMES))
        found = Operations(*columns)
        found.__dict__["table"] = whole
        return found

    @cached_property
    def table(self) -> Ints:
        """The columns side by side, int64 [num_operations, columns]; whoever changes it makes a copy."""
        return np.stack([getattr(self, name) for name in COLUMN_NAMES], axis=1).astype(np.int64)

    def __getstate__(self) -> dict[str, Column32]:
        """Returns what goes to other processes: the columns, and not the table, which they can make."""
        return {name: getattr(self, name) for name in COLUMN_NAMES}

    def take(self, index: Ints | slice | Flags) -> "Operations":
        """Returns the operations at `index` alone."""
        return Operations(*(getattr(self, name)[index] for name in COLUMN_NAMES))


COLUMN_NAMES = tuple(field.name for field in fields(Operations))


def homes_among(home: Ints, members: Ints, every: int) -> Ints:
    """Returns the homes of cells for a collective: where the tensor has them, or, if every run of `every` places has
    all cells, at the same places of the members' run."""
    return home if every < 0 else members[0] // every * every + home % every


def operation_row(
    kind: int,
    what: int,
    ends: tuple[int, int],
    lists: Sequence[int],
    queue: str,
    layer: int = 0,
    version: int = 0,
) -> list[int]:
    """Returns the row of an operation without encoding or lanes. ends: src, dst; lists: up to three."""
    padded = [*lists, -1, -1, -1][:3]
    return [kind, what, *ends, *padded, layer, QUEUES.index(queue), version, -1, -1]


def compute_table(what: int, places: Ints, lists: Sequence[Ints]) -> Ints:
    """Returns the rows of computes of one formula on several places, int64 [places, columns]. lists: up to three, a
    column each."""
    table = np.full((len(places), len(COLUMN_NAMES)), -1, np.int64)
    table[:, 0], table[:, 1], table[:, 2], table[:, 7] = COMPUTE, what, places, 0
    for at, column in enumerate(lists):
        table[:, 4 + at] = column
    table[:, 8], table[:, 9] = QUEUES.index("compute"), 0
    return table
