"""The popularity of experts where routing is drawn: a law with one number, and an order of experts that drifts.

Loads of models in use were told as power laws: of Qwen3-235B's 128 experts a fifth has about 65 % of all choices, of
DeepSeek-V3's 256 30 to 40 % (NVIDIA's aiconfigurator, docs/POWER_LAW_DISTRIBUTION.md), which Zipf's law has with
exponents of 1.0 and 0.3 (tests/step/test_routing.py).
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.expert_schedule import ZIPF

_DRIFT = 2**20  # beside the seed: no step's number of a run


@dataclass(frozen=True, slots=True)
class Popularity:
    """The popularity of experts in a step.

    law, skew: ZIPF, an expert's odds fall with its rank in a random order, by the exponent `skew`; DIRICHLET, odds are
    a draw of Dirichlet's distribution with a concentration of 1 / `skew`; with a skew of 0 all are alike. drift: steps
    after which the order has nothing in common with what it was, 1: it is drawn in every step (docs/routing.md has
    what was counted of a model in training). seed, step: of the batch, which the draw depends on; a step of None: of a
    run, any of whose steps it may be.
    """

    law: str = ZIPF
    skew: float = 0.0
    drift: int = 1
    seed: int = 0
    step: int | None = 0

    def odds(self, num_experts: int) -> Floats:
        """Returns the logarithms of experts' odds, but for a common addend, float64 [experts]; without a step those of
        the most popular experts first, so that no slice of as many experts has more than the first one."""
        order = np.arange(num_experts) if self.step is None else self._order(num_experts)
        if self.law == ZIPF or not self.skew:
            return -self.skew * np.log1p(order)
        drawn = np.random.default_rng((self.seed, _DRIFT)).gamma(1 / self.skew, size=num_experts)
        return np.asarray(np.log(np.maximum(np.sort(drawn)[::-1], np.finfo(float).tiny))[order])

    def _order(self, num_experts: int) -> Ints:
        """Returns every expert's rank, 0 for the most popular.

        Where popularity drifts, it is by cos(angle) a + sin(angle) b of an expert's own normal numbers a and b: as
        large in every step, the same a step later but for a small turn, and unrelated after a quarter of a circle.
        """
        assert self.step is not None, "an order is of a step"
        if self.drift == 1:
            return np.random.default_rng((self.seed, self.step)).permutation(num_experts)
        first, second = np.random.default_rng((self.seed, _DRIFT, 1)).standard_normal((2, num_experts))
        angle = np.pi / 2 * self.step / self.drift
        return np.argsort(np.argsort(-(np.cos(angle) * first + np.sin(angle) * second)))
