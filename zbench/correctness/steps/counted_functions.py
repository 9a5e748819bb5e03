"""The functions of formulas of seats that are counted while a step runs, in numpy, for one combination of parts.

Rows are of the seats that have a token, in the order of seats. At home it is the seats that say which these are, where
experts are it is the numbers that went ahead of the rows: of each expert of the slice, how many.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from zbench.correctness.steps.expert_functions import EXPERT_FUNCTIONS
from zbench.correctness.steps.seat_functions import Seated
from zbench.describe.arrays import Floats, Ints
from zbench.step.layers import SHARES


@dataclass(frozen=True)
class CountedSeats(Seated):
    """The seats of a combination that have a token. counts: of every expert of the slice."""

    counts: tuple[int, ...] = ()

    @property
    def rows(self) -> range:
        """The rows of the slice."""
        return range(sum(self.counts))

    @property
    def of_expert(self) -> tuple[Ints, Ints]:
        """The rows of the slice that are the expert's, and the number of their share."""
        number = self.expert[0] - self.slice[0]
        return sum(self.counts[:number]) + np.arange(self.counts[number]), np.zeros(self.counts[number], np.int64)


def _count(at: Seated, to: Ints) -> Any:
    return np.array([int((one >= 0).sum()) for one in np.split(to, at.slice[1] - at.slice[0])], np.int64)


def _sent(name: str, at: Seated, values: Floats, to: Ints) -> Any:
    """Returns the rows of seats with a token."""
    return EXPERT_FUNCTIONS[name](at, values, to)[to >= 0]


def _came(name: str, at: Seated, rows: Floats, *others: Any) -> Any:
    """Returns what tokens are given by the rows of seats with a token. others: the last one says which these are."""
    every = np.zeros((len(others[-1]), *rows.shape[1:]))
    every[others[-1] >= 0] = rows
    return EXPERT_FUNCTIONS[name](at, every, *others)


def _at_experts(name: str, at: Seated, *operands: Any) -> Any:
    """Returns what experts make of rows. operands: the last one has how many there are."""
    own = at.room, at.slice, at.expert, at.tokens, at.count, at.per_token
    return EXPERT_FUNCTIONS[name](CountedSeats(*own, tuple(operands[-1].tolist())), *operands[:-1])


_SENT = {"seat_counted": "seat", "unseat_counted_d0": "unseat_d0"} | {
    f"{name}_of_seats_counted": f"{name}_of_seats" for name in SHARES.values()
}
_CAME = {"seat_counted_d0": "seat_d0", "unseat_counted": "unseat"} | {
    f"{name}_of_seats_counted_d0": f"{name}_of_seats_d0" for name in SHARES.values()
}
_MATMULS = {
    f"{name}_counted{derived}": f"{name}{derived}"
    for name, count in (("enter", 2), ("leave", 3))
    for derived in ("", *(f"_d{at}" for at in range(count)))
}
COUNTED_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "count": _count,
    **{name: partial(_sent, of) for name, of in _SENT.items()},
    **{name: partial(_came, of) for name, of in _CAME.items()},
    **{name: partial(_at_experts, of) for name, of in _MATMULS.items()},
})  # fmt: skip
