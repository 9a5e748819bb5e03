"""Keeps track of the rows and heads of a rank's own sums that something was added to. No torch: numpy only."""

from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Flags
from zbench.describe.model import DKV
from zbench.plans.plan import Ints
from zbench.runtime.program.holders import Heads


@dataclass
class Touched:
    """The rows and heads that something was added to. num_tokens: the rank's own. group: query heads to a kv head.
    afresh: per tensor, rows x heads added to first."""

    num_tokens: int
    group: int
    afresh: dict[int, int] = field(default_factory=dict)
    _seen: dict[int, list[tuple[Heads, Flags]]] = field(default_factory=dict)

    def is_fresh(self, tensor: int, heads: Heads, rows: Ints, once: bool = True) -> bool:
        """Returns whether nothing was added to these rows of the rank's own yet; they count as touched from now on.

        once: no row is there twice; else they are not fresh. Query heads that share a kv head share its gradient.
        """
        if tensor == DKV:
            heads = (heads[0] // self.group * self.group, -(-heads[1] // self.group) * self.group)
        seen = self._seen.setdefault(tensor, [])
        fresh = once and not any(touched[rows].any() for (lo, hi), touched in seen if lo < heads[1] and heads[0] < hi)
        if fresh:
            self.afresh[tensor] = self.afresh.get(tensor, 0) + len(rows) * (heads[1] - heads[0])
        for known, touched in seen:
            if known == heads:
                touched[rows] = True
                return fresh
        touched = np.zeros(self.num_tokens, bool)
        touched[rows] = True
        seen.append((heads, touched))
        return fresh
