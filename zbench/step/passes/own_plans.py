"""Plans of each pipeline by itself, cut out of plans that have several: in a micro-batch it is one group of GPUs."""

from collections.abc import Sequence

import numpy as np

from zbench.describe.exchanges import UNCUT, TokenSlices
from zbench.describe.model import Model
from zbench.plans.columns import Blocks, Lists, Ops
from zbench.plans.plan import Plan
from zbench.step.passes.parameters.pipeline_parameters import PipelineShapes
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.routing import TOGETHER, ExpertParallel


def plans_of_layouts(plans: Sequence[Plan]) -> list[Plan]:
    """Returns the plans of a step's micro-batches, one for each of the layouts that have any."""
    return list(plans) if plans[0].pipelines is None else [plan for _, plan in own_plans(plans)]


def parts_of_layouts(
    plans: Sequence[Plan],
    model: Model,
    degree: int,
    experts: ExpertParallel = TOGETHER,
    slices: TokenSlices = UNCUT,
    shares: Sequence[tuple[float, ...]] = (),
) -> list[PlanParts]:
    """Returns the parts of the plans of a step's layouts that have any. degree, experts, slices, shares: of plans
    without pipelines of their own, as in PlanParts (slices: token_slices; shares: of each plan, or none)."""
    if plans[0].pipelines is None:
        each = shares or ((),) * len(plans)
        return [
            PlanParts(plan, model, degree, experts, token_slices=slices, shares=own)
            for plan, own in zip(plans, each, strict=True)
        ]
    degrees = PipelineShapes.of(plans[0].pipelines).tp
    return [PlanParts(plan, model, degrees[number]) for number, plan in own_plans(plans)]


def own_plans(plans: Sequence[Plan]) -> list[tuple[int, Plan]]:
    """Returns the micro-batches of pipelines, (the number of its pipeline, a plan of it alone), in the order of the
    layouts of their step."""
    assert plans[0].pipelines is not None
    shapes = PipelineShapes.of(plans[0].pipelines)
    return [
        (number, _own_plan(plan, lead, tp))
        for number, (lead, tp) in enumerate(zip(shapes.lead, shapes.tp, strict=True))
        for plan in plans
        if plan.tokens_per_rank[lead]
    ]


def _own_plan(plan: Plan, lead: int, tp: int) -> Plan:
    """Returns what a plan has for the pipeline of a rank, as a plan of one group of its GPUs."""
    blocks = plan.blocks
    number = np.where(blocks.home == lead, np.cumsum(blocks.home == lead) - 1, -1)
    mine = number[blocks.block] >= 0
    sequences, seq = np.unique(blocks.seq[mine], return_inverse=True)
    some = [np.flatnonzero(ops.src == lead) for ops in (plan.forward, plan.backward)]
    names = [ops.blocks[index] for ops, index in zip((plan.forward, plan.backward), some, strict=True)]
    used, at = np.unique(np.concatenate(names), return_inverse=True)
    lists = Lists.of([number[plan.lists[one]] for one in used.tolist()])
    heads = (0, plan.num_heads // tp)
    listed = [
        Ops.attends(np.zeros(len(one), np.int64), heads, one, one) for one in np.split(at.reshape(-1), [len(names[0])])
    ]
    own = Blocks(
        seq.reshape(-1),
        blocks.start[mine],
        blocks.stop[mine],
        number[blocks.block[mine]],
        0 * np.unique(number[blocks.block[mine]]),
    )
    return plan.with_(
        lengths=plan.lengths[sequences],
        sequences=plan.sequences[sequences],
        padding=None if plan.padding is None else plan.padding[sequences],
        num_ranks=1,
        num_heads=heads[1],
        blocks=own,
        lists=lists,
        forward=listed[0],
        backward=listed[1],
        pipelines=None,
    )
