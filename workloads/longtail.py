"""A lognormal body with a Pareto tail. Pure.

Document lengths of text look lognormal up to a few thousand tokens; beyond that a lognormal's
tail is far too light, and a power law fits. The two are spliced: `tail_share` of the documents
are at least `tail_start` long and follow the Pareto law, the others are shorter and lognormal.
"""

import math
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.workloads.check import number, whole
from zbench.workloads.fill import check_batch, drawn_batch

# Below this share of the lognormal inside [1, tail_start) rejection is slow and the body a mere sliver.
_SMALLEST_BODY = 0.01


@dataclass(frozen=True, slots=True)
class Longtail:
    """A workload with a lognormal body and a Pareto tail. Lengths are whole parts of a real x: lognormal(mu, sigma) in
    [1, tail_start), or a power law above.

    mu, sigma: mean and standard deviation of the body's ln(length), before it is truncated.
    tail_share: the share of documents in [tail_start, max_length].
    alpha: in the tail, P(length > x) falls as x ** -alpha, truncated (not piled up) at max_length.
    """

    seed: int
    tokens: int
    mu: float
    sigma: float
    tail_share: float
    tail_start: int
    alpha: float
    max_length: int
    context_limit: int = 131072
    over_limit: str = "cut"

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, self.over_limit)
        number("workload.mu", self.mu)
        number("workload.sigma", self.sigma, 0, above=True)
        number("workload.tail_share", self.tail_share, 0, 1)
        number("workload.alpha", self.alpha, 0.01)  # at smaller ones 1 - x ** -alpha loses its digits
        whole("workload.tail_start", self.tail_start, 2)
        whole("workload.max_length", self.max_length, self.tail_start)
        low, high = self._body_range()
        if self.tail_share < 1 and high - low < _SMALLEST_BODY:
            raise ValueError(
                f"workload.mu is {self.mu} and workload.sigma {self.sigma}; at least {_SMALLEST_BODY:.0%} of that "
                f"lognormal must lie between 1 and workload.tail_start, {self.tail_start}"
            )

    def batch(self, step: int) -> Batch:
        return drawn_batch(self, step)

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        num_tail = int(rng.binomial(num, self.tail_share))
        lengths = np.concatenate([self._draw_body(rng, num - num_tail), self._draw_tail(rng, num_tail)])
        rng.shuffle(lengths)
        return lengths

    def cdf(self, length: Ints) -> Floats:
        # A whole length n stands for every real x in [n, n + 1).
        x = np.asarray(length, dtype=np.float64) + 1
        body = np.clip(x - 1, 0, 1)  # 0 below the first length, 1 from tail_start on
        inside = (x > 1) & (x < self.tail_start)
        low, high = self._body_range()
        body[inside] = [(self._normal(value) - low) / (high - low) for value in x[inside].tolist()]
        ratio = np.clip(x, self.tail_start, self.max_length + 1) / self.tail_start
        tail = (1 - ratio**-self.alpha) / (1 - self._tail_left())
        return np.asarray((1 - self.tail_share) * body + self.tail_share * tail, dtype=np.float64)

    def _draw_body(self, rng: np.random.Generator, num: int) -> Ints:
        """Draws lengths of the body by rejection: exact, and with a body of a few thousand tokens nearly nothing is
        rejected."""
        low, high = self._body_range()
        found = np.empty(0, dtype=np.float64)
        while found.size < num:
            x = rng.normal(self.mu, self.sigma, int((num - found.size) / (high - low)) + 16)
            x = x[(x >= 0) & (x < math.log(self.tail_start))]
            found = np.concatenate([found, x])
        return np.clip(np.exp(found[:num]).astype(np.int64), 1, self.tail_start - 1)

    def _draw_tail(self, rng: np.random.Generator, num: int) -> Ints:
        """Returns the inverse of the truncated power law's cdf: exact, whatever the truncation cuts off."""
        left = 1 - rng.random(num) * (1 - self._tail_left())
        return np.clip((self.tail_start * left ** (-1 / self.alpha)).astype(np.int64), self.tail_start, self.max_length)

    def _tail_left(self) -> float:
        """Returns the share of an endless power law that the truncation takes away."""
        return float(((self.max_length + 1) / self.tail_start) ** -self.alpha)

    def _body_range(self) -> tuple[float, float]:
        return self._normal(1.0), self._normal(float(self.tail_start))

    def _normal(self, x: float) -> float:
        """Returns the share of the whole lognormal below x."""
        return 0.5 * math.erfc((self.mu - math.log(x)) / (self.sigma * math.sqrt(2)))
