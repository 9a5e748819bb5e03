"""The documents of another workload, each a fraction as long: a job for emulated nodes (docs/desk.md). Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.workloads.check import whole
from zbench.workloads.fill import Lengths, check_batch, drawn_batch


@dataclass(frozen=True, slots=True, eq=False)
class Shrunk:
    """A workload of another one's documents, each a fraction as long. lengths: any workload that draws lengths, with
    `_partial_: true`; its limit is this one's times `divisor`.

    divisor: what every length is divided by, rounded up: no document is lost.
    """

    seed: int
    tokens: int
    lengths: Callable[..., Lengths]
    divisor: int
    context_limit: int = 131072
    over_limit: str = "cut"
    _inner: Lengths = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, self.over_limit)
        whole("workload.divisor", self.divisor, 1)
        if not callable(self.lengths):
            raise ValueError(f"workload.lengths is {self.lengths!r}; it must be a workload with _partial_: true")
        limit = self.context_limit * self.divisor
        inner = self.lengths(seed=self.seed, tokens=self.tokens, context_limit=limit, over_limit=self.over_limit)
        object.__setattr__(self, "_inner", inner)

    def batch(self, step: int) -> Batch:
        return drawn_batch(self, step)

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        return -(-self._inner.draw(rng, num) // self.divisor)

    def cdf(self, length: Ints) -> Floats:
        return self._inner.cdf(length * self.divisor)
