"""Tables of operations and of contract entries that no batch changes: what gathers, reduces and updates parameters.

A table names lists of parts by their numbers. So the lists of each micro-batch begin with those that earlier ones of
its job had of places and of parts of parameters, in that order: a table that names these alone is as good for every
later micro-batch, and is made once. A table whose key has all numbers that are in it is good for all anyway.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.lists import ListTable
from zbench.step.operations import COLUMN_NAMES
from zbench.step.template import ITEM_COLUMNS

MOST_LISTS, MOST_NUMBERS = 2**16, 2**22  # that are kept of a job: 32 MiB of tables
# The columns that have numbers of lists (dst of what is no collective has a place, which is no larger than it may be).
_LISTS = {len(COLUMN_NAMES): [3, 4, 5, 6, 11], len(ITEM_COLUMNS): [2, 3, 4]}


@dataclass
class KeptTables:
    """The tables of a job's parameters in layouts of one form. indices: of the lists that no batch changes."""

    indices: Collection[str] = ()
    lists: ListTable = field(default_factory=lambda: ListTable({}))
    _made: dict[Hashable, tuple[int, tuple[Ints, ...]]] = field(default_factory=dict, init=False, repr=False)
    _count: int = field(default=0, init=False, repr=False)

    def begin(self, sizes: Mapping[str, int]) -> ListTable:
        """Returns the table of a micro-batch's lists, with those that are kept. sizes: the parts of every index."""
        self.lists.sizes = sizes
        return self.lists.begun_anew()

    def learn(self, lists: ListTable) -> None:
        """Keeps the lists of a micro-batch that no batch changes, for those that come."""
        for owner, row in zip(lists.owners[lists.begun :], lists.rows[lists.begun :], strict=True):
            if owner in self.indices and len(self.lists.rows) < MOST_LISTS:
                self.lists.number(owner, row)

    def of(
        self, lists: ListTable, key: Hashable, make: Callable[[], Sequence[Ints | list[list[int]]]]
    ) -> tuple[Ints, ...]:
        """Returns the tables that `make` makes, which nobody changes. lists: of the micro-batch; key: all that the
        tables depend on, but for lists and what the job and the form say."""
        most, found = self._made.get(key, (lists.begun, ()))
        if most < lists.begun:
            return found
        found = tuple(_table(one) for one in make())
        most = max((int(one[:, _LISTS[one.shape[1]]].max(initial=-1)) for one in found), default=-1)
        return self._kept(key, most, found) if most < lists.begun else found

    def of_numbers(self, key: Hashable, make: Callable[[], Sequence[Ints]]) -> tuple[Ints, ...]:
        """Returns the tables that `make` makes, which nobody changes. key: all that they depend on, the numbers of
        lists among it."""
        if key in self._made:
            return self._made[key][1]
        return self._kept(key, -1, tuple(make()))

    def _kept(self, key: Hashable, most: int, found: tuple[Ints, ...]) -> tuple[Ints, ...]:
        count = sum(one.size for one in found)
        if self.indices and count <= MOST_NUMBERS:
            if self._count + count > MOST_NUMBERS:
                self._made.clear()
                self._count = 0
            self._made[key], self._count = (most, found), self._count + count
            for one in found:
                one.setflags(write=False)
        return found


def _table(rows: Ints | list[list[int]]) -> Ints:
    """Returns rows as a table, of no rows one of entries."""
    return np.array(rows, np.int64) if len(rows) else np.zeros((0, len(ITEM_COLUMNS)), np.int64)
