"""Documents of one length: the workload on which nothing can be unbalanced. Pure."""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.workloads.check import whole
from zbench.workloads.fill import check_batch, drawn_batch


@dataclass(frozen=True, slots=True)
class Fixed:
    """A workload whose documents all have `length` tokens; only the last of a batch may be shorter."""

    seed: int
    tokens: int
    length: int
    context_limit: int = 131072
    over_limit: str = "cut"

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, self.over_limit)
        whole("workload.length", self.length, 1)

    def batch(self, step: int) -> Batch:
        return drawn_batch(self, step)

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        return np.full(num, self.length, dtype=np.int64)

    def cdf(self, length: Ints) -> Floats:
        return (length >= self.length).astype(np.float64)
