"""A rate that was measured at several sizes, and what it is between them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.units import parse


@dataclass(frozen=True, slots=True)
class Curve:
    """A rate that was measured at several sizes. sizes: ascending. rates: in SI units, one a size.

    Between two sizes the seconds of a unit of work are linear in 1 / size, beyond the first and the last they are
    as there. So work that has a fixed cost besides its units (the start of a row, of a call) comes out right between
    sizes, and pieces of several sizes may be taken together at the mean size of their units' rows.
    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    @staticmethod
    def of(field: str, given: Mapping[Any, float | str]) -> "Curve":
        """Makes a curve of a yaml's mapping of size to rate in FLOP/s.

        Or of a record's, whose sizes are text, as JSON's keys are.

        Raises:
            ValueError: it is none, or a size or a rate is not above 0; the message names `field`.
        """
        if not isinstance(given, Mapping) or not given:
            raise ValueError(
                f"{field} is {given!r}; it takes rates by size, as in {{256: 300 TFLOP/s, 4096: 9 PFLOP/s}}"
            )
        found = {}
        for name, rate in given.items():
            try:
                size = float(name)
            except (TypeError, ValueError):
                size = math.nan
            if not 0 < size < math.inf:
                raise ValueError(f"{field} has the size {name!r}; it takes numbers above 0")
            found[size] = parse(f"{field} at {name}", rate, "FLOP/s")
            if not 0 < found[size] < math.inf:
                raise ValueError(f"{field} at {name} is {rate!r}; it has to be above 0")
        sizes = tuple(sorted(found))
        return Curve(sizes, tuple(found[size] for size in sizes))

    def seconds(self, size: Floats) -> Floats:
        """Gives the seconds of a unit of work at each size."""
        at, seconds = 1 / np.array(self.sizes[::-1]), 1 / np.array(self.rates[::-1])
        return np.asarray(np.interp(1 / np.asarray(size, np.float64), at, seconds), np.float64)
