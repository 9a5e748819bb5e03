"""Lists of parts: each belongs to an index, is stored once and named by its number, and has no order inside."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.checks import is_whole
from zbench.plans.columns import Lists

PLACE, LANE = "place", "lane"  # lists of places and of NICs of a node are of these
MOST_LANES = 2**15


@dataclass(frozen=True)
class PartLists:
    """Lists of parts, compressed rows. indices: names of indices; of: int64 [lists], the number of each list's index;
    offsets: int64 [lists + 1]; parts: int64 [total], ascending in a list and without repetition."""

    indices: tuple[str, ...]
    of: Ints
    offsets: Ints
    parts: Ints

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, number: int) -> Ints:
        return self.parts[self.offsets[number] : self.offsets[number + 1]]

    def index_of(self, number: int) -> str:
        """Returns the name of the index that a list belongs to."""
        return self.indices[int(self.of[number])]


@dataclass
class ListTable:
    """Lists while a step is built: the same parts of the same index have one number.

    sizes: how many parts each index has; a part beyond is refused where the list is made. begun: how many lists there
    were when it began.
    """

    sizes: Mapping[str, int]
    rows: list[Ints] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    numbers: dict[tuple[str, bytes], int] = field(default_factory=dict)
    wholes: dict[str, int] = field(default_factory=dict)
    single: dict[tuple[str, int], int] = field(default_factory=dict)
    told: dict[tuple[str, str], int] = field(default_factory=dict)  # by index and the words of a text
    begun: int = 0

    @staticmethod
    def of(lists: PartLists, sizes: Mapping[str, int], places: int) -> "ListTable":
        """Returns a table that has some lists already, with the numbers that they have."""
        known = {**sizes, PLACE: places, LANE: MOST_LANES}
        table = ListTable({name: known[name] for name in lists.indices})
        for number in range(len(lists)):
            table.rows.append(lists[number])
            table.owners.append(lists.index_of(number))
            table.numbers[table.owners[-1], table.rows[-1].tobytes()] = number
        return table

    def begun_anew(self) -> "ListTable":
        """Returns a table that begins with the lists of this one, which stays as it is."""
        return ListTable(self.sizes, self.rows.copy(), self.owners.copy(), self.numbers.copy(), begun=len(self.rows))

    def number(self, index: str, parts: Iterable[int] | Ints) -> int:
        """Returns the number of a list of parts of an index, in any order.

        Raises:
            ValueError: the index is none, or a part is not in it or there twice.
        """
        if isinstance(parts, list) and len(parts) == 1:  # most are of one place
            found = self.single.get((index, parts[0]))
            if found is None:
                found = self.single[index, parts[0]] = self._number(index, np.array(parts, np.int64))
            return found
        row = np.array(parts if isinstance(parts, (np.ndarray, list)) else list(parts), np.int64)
        if len(row) > 1:
            row.sort()
        return self._number(index, row)

    def _number(self, index: str, row: Ints) -> int:
        """Returns the number of a list of parts in ascending order, which is the table's from then on."""
        key = (index, row.tobytes())
        found = self.numbers.get(key)
        if found is not None:
            return found
        if index not in self.sizes:
            raise ValueError(f"a list is of index {index!r}; there are {', '.join(self.sizes)}")
        ends = (row.item(0), row.item(-1)) if len(row) else (0, -1)
        if ends[0] < 0 or ends[1] >= self.sizes[index]:
            wrong = ends[0] if ends[0] < 0 else ends[1]
            raise ValueError(f"a list names part {wrong} of index {index}, which has {self.sizes[index]}")
        if len(row) > 1 and (row[1:] == row[:-1]).any():
            raise ValueError(f"a list names part {int(row[1:][row[1:] == row[:-1]][0])} of index {index} twice")
        self.rows.append(row)
        self.owners.append(index)
        self.numbers[key] = len(self.rows) - 1
        return len(self.rows) - 1

    def all_of(self, index: str, rows: Lists) -> Ints:
        """Returns the numbers of several lists of parts of an index, each in any order, int64 [len(rows)].

        Raises:
            ValueError: as `number`.
        """
        items, size = rows.items, self.sizes.get(index, 0)
        ascends = items[1:] > items[:-1]
        ascends[rows.offsets[(rows.offsets > 0) & (rows.offsets < len(items))] - 1] = True
        if not ascends.all() or (len(items) and not 0 <= items.min() <= items.max() < size):
            return np.array([self.number(index, rows[at]) for at in range(len(rows))], np.int64)
        whole, found, known = items.tobytes(), list[int](), self.numbers
        for begin, end in pairwise(rows.offsets.tolist()):
            key = index, whole[8 * begin : 8 * end]
            number = known.setdefault(key, len(self.rows))
            if number == len(self.rows):
                self.rows.append(items[begin:end])
                self.owners.append(index)
            found.append(number)
        return np.array(found, np.int64)

    @cached_property
    def places(self) -> Ints:
        """The number of the list of each place alone, int64 [places]."""
        return self.all_of(PLACE, Lists.singletons(self.sizes[PLACE]))

    def whole(self, index: str) -> int:
        """Returns the number of the list of all parts of an index."""
        if index not in self.wholes:
            self.wholes[index] = self.number(index, np.arange(self.sizes[index], dtype=np.int64))
        return self.wholes[index]

    def lists(self) -> PartLists:
        """Returns what was collected so far."""
        names = tuple(self.sizes)
        place = {name: at for at, name in enumerate(names)}
        sizes = [len(row) for row in self.rows]
        return PartLists(
            names,
            np.array([place[owner] for owner in self.owners], np.int64),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.concatenate([*self.rows, np.zeros(0, np.int64)]),
        )


def span_text(parts: Ints, whole: int) -> str:
    """Returns parts as text: `*` for all of an index with `whole` parts, else ranges such as 0-3 7."""
    if whole > 1 and len(parts) == whole:
        return "*"
    if not len(parts):
        return "none"
    if parts[-1] - parts[0] == len(parts) - 1:  # most are one range
        return str(parts[0]) if len(parts) == 1 else f"{parts[0]}-{parts[-1]}"
    ends = np.flatnonzero(np.diff(parts) != 1)
    first, last = parts[np.concatenate([[0], ends + 1])], parts[np.concatenate([ends, [len(parts) - 1]])]
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(first.tolist(), last.tolist(), strict=True))


def read_spans(words: str, whole: int) -> Ints:
    """Returns the parts of such a text, int64 [parts].

    Raises:
        ValueError: it says something else.
    """
    if words == "*":
        return np.arange(whole, dtype=np.int64)
    if words == "none":
        return np.zeros(0, np.int64)
    rows = []
    for word in words.split():
        low, _, high = word.partition("-")
        ends = [int(end) if end.isascii() and end.isdigit() else -1 for end in (low, high or low)]
        if not all(is_whole(end) and 0 <= end < whole for end in ends) or ends[0] > ends[1]:
            raise ValueError(f"has parts {word!r}; it takes numbers and ranges such as 0-3 below {whole}, * or none")
        rows.append(np.arange(ends[0], ends[1] + 1, dtype=np.int64))
    return rows[0] if len(rows) == 1 else np.concatenate([*rows, np.zeros(0, np.int64)])
