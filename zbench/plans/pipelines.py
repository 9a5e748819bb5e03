"""Pipelines of a plan: groups of tp x pp ranks that work as one.

All tokens of a pipeline are at home on its first rank, its lead, where they attend; what the plan says of the lead
holds for the group. A stage is tp consecutive ranks with 1 / pp of the layers, which it splits between them
(zbench.cost.stage says at what cost); stages run micro-batches one forward, one backward
(zbench.step.passes.pipeline).
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Ints

Layout = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Pipelines:
    """The pipelines of a plan. lead, tp, pp: int64 [num_pipelines]. Pipeline i has ranks lead[i] to lead[i] + tp[i]
    pp[i], stage by stage; a rank is in one pipeline or, idle, in none."""

    lead: Ints
    tp: Ints
    pp: Ints

    def __len__(self) -> int:
        return len(self.lead)

    @property
    def layout(self) -> Layout:
        """The layout of parameters: two plans whose parameters lie in the same places have it in common."""
        return tuple(tuple(column.tolist()) for column in (self.lead, self.tp, self.pp))

    def stages(self) -> tuple[Ints, Ints]:
        """Returns (pipeline, first rank) of every stage, in order of pipelines."""
        pipeline = np.repeat(np.arange(len(self)), self.pp)
        place = np.arange(len(pipeline)) - np.repeat(np.cumsum(self.pp) - self.pp, self.pp)
        return pipeline, self.lead[pipeline] + place * self.tp[pipeline]
