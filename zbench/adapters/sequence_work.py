"""The work of a sequence as a whole number a L^2 + b L, fitted to the cost model of a model on a cluster. Pure."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.describe.arrays import Floats, Ints

SHORTEST, LONGEST, LENGTHS = 128, 2**18, 45  # of the sequences fitted to, evenly spaced on a log scale
EVEN = 32_768  # tokens that a rank has together, over which linear modules are as fast as they get
PAIR_UNITS = 1024  # a's value; b is then in the millions, and a gigatoken of longest sequences below 2^63


@dataclass(frozen=True, slots=True)
class SequenceWork:
    """The work of a sequence, L -> pair L^2 + token L, in units of `unit` seconds of a GPU. worst: largest relative
    error of the fit. Takes whole numbers, and arrays and tensors of int64 alike."""

    pair: int
    token: int
    unit: float
    worst: float

    def __call__(self, length: Any) -> Any:
        """Returns the work of sequences of `length` tokens each, as whole numbers of whatever kind was given."""
        return self.token * length + self.pair * length**2

    @property
    def tokens_of_equal_work(self) -> float:
        """The length at which attention is as much work as all the rest: b / a; verl's own function has 24,576."""
        return self.token / self.pair


def fit_sequence_work(cost: Cost) -> SequenceWork:
    """Fits the work of sequences to the seconds that the cost model has for them, forward, backward and recomputation,
    alone on a GPU among others that fill it; relative errors count the same at every length.

    Raises:
        ValueError: attention under this mask has no part that grows with the square of the length.
    """
    lengths = np.unique(np.geomspace(SHORTEST, LONGEST, LENGTHS).round().astype(np.int64))
    seconds = alone_seconds(lengths, cost)
    columns = np.stack([lengths.astype(np.float64) ** 2, lengths.astype(np.float64)], axis=1) / seconds[:, None]
    (pair, token), *_ = np.linalg.lstsq(columns, np.ones(len(lengths)), rcond=None)
    if pair <= 0 or token <= 0:
        raise ValueError(
            f"model {cost.model.name} with mask {cost.model.mask} on {cost.cluster.name} has no work of the form "
            "a L^2 + b L; it takes a mask that is causal or full"
        )
    unit = float(pair) / PAIR_UNITS
    found = SequenceWork(PAIR_UNITS, round(float(token) / unit), unit, 0.0)
    exact = unit * np.asarray(found(lengths.astype(np.float64)), np.float64)
    return SequenceWork(found.pair, found.token, unit, float(np.abs(exact / seconds - 1).max()))


def alone_seconds(lengths: Ints, cost: Cost) -> Floats:
    """Returns float64 [n]: the seconds of a step that a sequence of each length takes of a GPU, communication aside."""
    again = 2 if cost.model.recompute == "full" else 1  # forwards of a step
    even, part = np.array([EVEN]), of_parts(cost)
    # The backward is two forwards.
    linear = float(((again + 2) * part.linear_seconds(even) + part.again_seconds(even))[0]) / EVEN
    attention = again * cost.whole_seconds(lengths, False) + cost.whole_seconds(lengths, True)
    head = float(cost.head_seconds(np.array([EVEN]))[0]) / EVEN
    return np.asarray(cost.layers * (attention + linear * lengths) + head * lengths, np.float64)
