"""Rows that a draw puts in the place of what routers choose, so that a clock can play a step whose rows are counted.

A step says how many rows there may be at most, and its proof holds for every number below: so for those of a draw, by
the law that also draws experts before a step is built (zbench.step.passes.routing). All layers have the same rows then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import DRAWN, EXPERT_CHOICE
from zbench.plans.plan import Plan
from zbench.step.layout import StepLayout
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.router.seats import RouterSeats
from zbench.step.passes.routing import ExpertParallel, Routing
from zbench.step.template import Step


@dataclass(frozen=True)
class DrawnRows:
    """The rows of a micro-batch that a draw puts in seats. to_experts: int64 [parts of a, parts of e]; seats: how many
    there are at most; dropped: choices that no seat was left for, of so many choices."""

    to_experts: Ints
    seats: RouterSeats
    dropped: int
    choices: int

    @staticmethod
    def of(parts: PlanParts) -> "DrawnRows":
        """Draws the rows of a plan's tokens."""
        seats = parts.routing
        assert isinstance(seats, RouterSeats), "a router chooses how many rows there are"
        how = replace(parts.experts, routing=DRAWN, padded=False)
        drawn = Routing.draw(parts.plan, parts.sizes, parts.home, parts.model, how)
        found = np.zeros((len(seats.home), seats.cut.parts), np.int64)
        np.add.at(found, seats.of_part, drawn.to_experts)
        return DrawnRows(found, seats, drawn.dropped, drawn.chosen.size)

    def amounts(self, index: str) -> Ints:
        """Returns the rows of every cell of parts of a and of parts of e, slices of them (k) or groups of GPUs with the
        same experts (n), int64 [cells]."""
        cut, each = self.seats.cut, 1 if index == "e" else self.seats.cut.each
        found = self.to_experts.reshape(len(self.to_experts), -1, each).sum(axis=2)
        return np.asarray((found[:, :: cut.tensor_parallel] if index == "n" else found).reshape(-1))


def played_rows(steps: ProvenSteps, step: Step, batch: Batch, plans: Sequence[Plan]) -> Step:
    """Returns a batch's step as a clock plays it: with drawn rows, where routers choose how many there are."""
    return with_drawn_rows(step, steps.parts(batch, plans)) if steps.experts.counted else step


def with_drawn_rows(step: Step, parts: Sequence[PlanParts]) -> Step:
    """Returns a step in which there are as many rows as are drawn. parts: of its micro-batches."""
    count = len(parts)  # layouts after these are of no micro-batch
    drawn = [_drawn(layout, DrawnRows.of(one)) for layout, one in zip(step.layouts[:count], parts, strict=True)]
    return replace(step, layouts=(*drawn, *step.layouts[count:]))


def _drawn(layout: StepLayout, rows: DrawnRows) -> StepLayout:
    """Returns a layout with drawn rows."""
    tensors = [one if not one.counted_by else replace(one, amounts=rows.amounts(one.axes[1])) for one in layout.tensors]
    return replace(layout, tensors=tuple(tensors))


def expert_rows(steps: ProvenSteps, batch: Batch, every: Iterable[Sequence[Plan]]) -> dict[str, float]:
    """Returns what a capacity of experts comes to, and what is told of rows that routers choose, as
    zbench.interfaces.result.StepResult.expert_rows has it. every: the plans of a batch, of each who trains apart."""
    how = steps.experts
    if how.routing == DRAWN and how.capacity is None:
        return {}
    return told_rows([part for plans in every for part in steps.parts(batch, plans)], how)


def told_rows(parts: Sequence[PlanParts], how: ExpertParallel) -> dict[str, float]:
    """Returns what `expert_rows` does, of a batch's parts. how: experts have a capacity, or routers choose."""
    if how.routing == DRAWN:
        return _drawn_before([one.routing for one in parts if isinstance(one.routing, Routing)])
    if how.routing == EXPERT_CHOICE:
        return _chosen_by_experts([one.routing for one in parts if isinstance(one.routing, RouterSeats)])
    return _drawn_for_routers([DrawnRows.of(one) for one in parts], how.counted)


def _drawn_before(every: Sequence[Routing]) -> dict[str, float]:
    """Returns what is told where experts were drawn before the step was built."""
    choices, dropped = sum(one.chosen.size for one in every), sum(one.dropped for one in every)
    empty = sum(0 if one.padding is None else int(one.padding.sum()) for one in every)
    return {"dropped": dropped / choices, "padded": empty / (choices - dropped + empty)}


def _drawn_for_routers(every: Sequence[DrawnRows], counted: bool) -> dict[str, float]:
    """Returns what is told where a draw stands in the place of routers. counted: seats with a token alone are sent."""
    rows, seats = sum(int(one.to_experts.sum()) for one in every), sum(int(one.seats.to_experts.sum()) for one in every)
    dropped = sum(one.dropped for one in every) / sum(one.choices for one in every)
    share = {"taken": rows / seats} if counted else {"padded": 1 - rows / seats}
    return {"dropped": dropped, **share, "drawn": 1.0}


def _chosen_by_experts(every: Sequence[RouterSeats]) -> dict[str, float]:
    """Returns what is told where an expert takes the tokens that it has seats for, no token twice: nothing is left to
    a draw."""
    rows = sum(int(np.minimum(one.to_experts, one.tokens[:, None]).sum()) for one in every)
    seats = sum(int(one.to_experts.sum()) for one in every)
    choices = sum(int(one.tokens.sum()) * one.per_token * one.cut.tensor_parallel for one in every)
    return {"kept": rows / choices, "padded": 1 - rows / seats}
