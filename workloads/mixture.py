"""Several workloads in one: a data recipe. Pure.

A recipe gives weights either of documents or, as training recipes do, of tokens. Token weights are
turned into document weights once, with the exact mean length of each component under the context
limit, so that every document of a batch stays an independent draw.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.workloads.check import choice, number
from zbench.workloads.fill import Lengths, check_batch, drawn_batch


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """A workload that mixes several others. components: name -> {weight, lengths}, weights relative to their sum.

    lengths: any other workload with `_partial_: true`; its seed, tokens and limit are the mixture's.
    weights_of: "documents" or "tokens", what the weights are shares of. Document weights are those before
        any document is dropped; token weights those of the batch, after cutting or dropping.
    """

    seed: int
    tokens: int
    components: Mapping[str, Mapping[str, Any]]
    weights_of: str = "documents"
    context_limit: int = 131072
    over_limit: str = "cut"
    _parts: tuple[Lengths, ...] = field(init=False, repr=False)
    _shares: Floats = field(init=False, repr=False)  # of documents, one per component

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, self.over_limit)
        choice("workload.weights_of", self.weights_of, ("documents", "tokens"))
        _check_components(self.components)
        limits = {"context_limit": self.context_limit, "over_limit": self.over_limit}
        parts = tuple(c["lengths"](seed=self.seed, tokens=self.tokens, **limits) for c in self.components.values())
        shares = np.array([c["weight"] for c in self.components.values()], dtype=np.float64)
        if self.weights_of == "tokens":
            means = np.array([_kept_tokens(part, self.context_limit, self.over_limit) for part in parts])
            for name in (name for name, mean in zip(self.components, means, strict=True) if mean <= 0):
                raise ValueError(
                    f"workload.context_limit is {self.context_limit}; with workload.over_limit=drop it must be at "
                    f"least the shortest document of workload.components.{name}"
                )
            shares = shares / means
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_shares", shares / shares.sum())

    def batch(self, step: int) -> Batch:
        return drawn_batch(self, step)

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        which = rng.choice(len(self._parts), num, p=self._shares)
        lengths = np.empty(num, dtype=np.int64)
        for i, part in enumerate(self._parts):
            chosen = which == i
            lengths[chosen] = part.draw(rng, int(chosen.sum()))
        return lengths

    def cdf(self, length: Ints) -> Floats:
        return np.asarray(sum(s * p.cdf(length) for s, p in zip(self._shares, self._parts, strict=True)))


def _kept_tokens(part: Lengths, context_limit: int, over_limit: str) -> float:
    """Returns how many tokens one document drawn from `part` adds to a batch on average (none if it is dropped)."""
    below = part.cdf(np.arange(context_limit, dtype=np.int64))
    # The mean of a whole number is the sum of P(length > n); a dropped length adds nothing to any term.
    top = 1.0 if over_limit == "cut" else float(part.cdf(np.array([context_limit]))[0])
    return float((top - below).sum())


def _check_components(components: Mapping[str, Mapping[str, Any]]) -> None:
    if not isinstance(components, Mapping) or not components:
        raise ValueError(f"workload.components is {components!r}; it must be at least one name: {{weight, lengths}}")
    for name, component in components.items():
        where = f"workload.components.{name}"
        if not isinstance(component, Mapping) or set(component) != {"weight", "lengths"}:
            keys = sorted(component) if isinstance(component, Mapping) else component
            raise ValueError(f"{where} has {keys!r}; it must have exactly the fields weight and lengths")
        number(f"{where}.weight", component["weight"], 0, above=True)
        if not callable(component["lengths"]):
            raise ValueError(f"{where}.lengths is {component['lengths']!r}; it must be a workload with _partial_: true")
