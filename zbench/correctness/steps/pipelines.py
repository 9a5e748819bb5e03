"""Combinations of pipelines side by side that steps are executed with: each has a tensor-parallel degree, stages and
micro-batches of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import CUT_FOR_HOSTS, KEPT, LENGTHS, MASKS, MODEL
from zbench.correctness.steps.combination import with_hosts
from zbench.correctness.steps.covering import PossibleCombinations
from zbench.describe.arrays import Ints
from zbench.passes.reverse import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import Plan
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.zero import STAGES

Shapes = tuple[tuple[int, int], ...]  # tensor-parallel degree and stages of every pipeline
PIPELINE_CHOICES: Mapping[str, tuple[Any, ...]] = {  # by the names of PipelineCombination's fields
    "shapes": (
        ((1, 1), (1, 1)),
        ((2, 1), (1, 1)),
        ((1, 2), (1, 1)),
        ((2, 2),),
        ((2, 1), (1, 2)),
        ((1, 3), (1, 1)),
        ((1, 1), (1, 1), (1, 2)),
        ((2, 3), (1, 1), (1, 1)),
        ((2, 2), (2, 1), (1, 1)),
    ),
    "head": ("own", "tied"),
    "zero": STAGES,
    "recompute": tuple(KEPT),
    "micro_batches": (1, 2, 3),
    "lengths": tuple(LENGTHS),
    "hosts": ("nothing", "state"),
}


@dataclass(frozen=True, slots=True)
class PipelineCombination:
    """A combination of choices: the pipelines, and what zbench.correctness.steps.combination.StepCombination calls so.

    The last pipeline has tokens in the first micro-batch alone, the one before in two of them, and so on, round.
    """

    shapes: Shapes
    head: str
    zero: str
    recompute: str
    micro_batches: int
    lengths: str
    hosts: str = "nothing"

    @property
    def num_gpus(self) -> int:
        """The GPUs that it takes."""
        return sum(tp * pp for tp, pp in self.shapes)

    def __str__(self) -> str:
        pipelines = " + ".join(f"tp{tp} pp{pp}" for tp, pp in self.shapes)
        tied = " tied" if self.head == "tied" else ""
        tied += f" {self.hosts} on hosts" if self.hosts != "nothing" else ""
        return (
            f"pipelines {pipelines}{tied} zero {self.zero}, recompute {self.recompute}, "
            f"{self.micro_batches} x {self.lengths}"
        )

    def can_be(self, ranks: int) -> bool:
        """Returns whether it can be on so many GPUs: no more than these, and on hosts what one GPU updates, which is no
        table on two stages."""
        has_two_tables = self.head == "tied" and any(pp > 1 for _, pp in self.shapes)
        is_cut = self.zero in CUT_FOR_HOSTS[self.hosts]
        return self.num_gpus <= ranks and is_cut and not (has_two_tables and self.hosts != "nothing")

    def case(self, seed: int) -> StepCase:
        """Returns the step to execute, with words drawn by a seed."""
        plans = [self._plan(number) for number in range(self.micro_batches)]
        model = replace(MODEL, tied_embeddings=self.head == "tied", mask=MASKS[self.lengths])
        step = whole_step(model, plans, zero=self.zero, recompute=KEPT[self.recompute][0])
        step = with_hosts(step, model, (self.recompute, self.hosts))
        return StepCase.of(step, model, plans, 1, seed)

    def _lengths(self, number: int) -> Ints:
        """Returns the lengths of a micro-batch, one sequence fewer in each than in the one before, then all again."""
        every = LENGTHS[self.lengths]
        return np.array(every[number % len(every) :], np.int64)

    def _plan(self, number: int) -> Plan:
        """Returns the plan of a micro-batch: whole sequences, each on a pipeline."""
        lengths, count = self._lengths(number), len(self.shapes)
        before = sum(len(self._lengths(other)) for other in range(number))
        every = np.arange(len(lengths))
        tp, pp = (np.array(column, np.int64) for column in zip(*self.shapes, strict=True))
        pipelines = Pipelines(np.cumsum(tp * pp) - tp * pp, tp, pp)
        builder = Builder(lengths, self.num_gpus, MODEL.num_heads, MASKS[self.lengths], before + every)
        local(builder, every, pipelines.lead[every % (count - number % count)])
        return reverse(builder.build(), "keep").with_(pipelines=pipelines)


def every_pipeline_combination(ranks: int) -> PossibleCombinations[PipelineCombination]:
    """Returns all combinations that can be on so many GPUs."""
    return PossibleCombinations.where(
        lambda *chosen: PipelineCombination(*chosen).can_be(ranks),
        PIPELINE_CHOICES,
        len(PIPELINE_CHOICES),
        (),
        PipelineCombination,
    )
