"""The seconds of a step whose plans have pipelines, as planners estimate it.

Pipelines meet only when gradients are summed, so the slowest one tells. Its micro-batches go through its stages one
forward, one backward (Narayanan et al. 2019, PipeDream, doi 10.1145/3341301.3359646): with m_1 ... m_v seconds a stage
that is sum m + (pp - 1) max m, as Hydraulis has it (Li et al. 2024, arXiv 2412.07894), where the lightest runs first.
Their seconds are those of zbench.cost.stage.
"""

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import stage_copies
from zbench.cost.stage import Stage, held
from zbench.describe.arrays import Floats
from zbench.plans.area import work
from zbench.plans.plan import Ints, Plan


def pipelined_seconds(plans: tuple[Plan, ...], cost: Cost) -> float:
    """Returns the seconds of a step, without what a change of pipelines takes before it."""
    pipelines = plans[0].pipelines
    assert pipelines is not None
    tp = np.ones(cost.cluster.num_ranks, np.int64)
    tp[pipelines.lead] = pipelines.tp
    tokens = np.stack([plan.tokens_per_rank for plan in plans])
    ahead, back = (np.stack([_attention(plan, cost, tp, backward) for plan in plans]) for backward in (False, True))
    leads, *shapes = pipelines.layout
    stages = {shape: Stage.of(cost, *shape) for shape in zip(*shapes, strict=True)}
    found = list[tuple[float, float, float, float]]()
    for lead, *shape in zip(leads, *shapes, strict=True):
        has = np.flatnonzero(tokens[:, lead])
        if not len(has):
            continue
        stage, own = stages[shape[0], shape[1]], tokens[has, lead]
        each = _micro_batches(stage, own, ahead[has, lead], back[has, lead])
        total = float(each.sum() + (stage.pp - 1) * each.max() + stage.head_seconds(own).sum())
        busy = float(own.sum()) * stage.nic_seconds() / total
        found.append((total, stage.pp * float(each[0]), stage.pp * float(each[-1]), busy))
    of = Collectives.of(cost, held(pipelines, cost))
    return of.end_of_pipelines(*np.array(found).T) + cost.optimizer_seconds()


def _attention(plan: Plan, cost: Cost, tp: Ints, backward: bool) -> Floats:
    """Returns [num_ranks]: seconds of a layer's attends of every lead, on each rank of its stage."""
    ops = plan.backward if backward else plan.forward
    attend, amount = work(plan, ops)
    lead, model = ops.src[attend], cost.model
    kv_heads = np.maximum(model.num_kv_heads // tp[lead], 1)
    seconds = cost.kernel_seconds(amount, model.num_heads // tp[lead], kv_heads, backward)
    return np.bincount(lead, seconds, plan.num_ranks).astype(np.float64)


def _micro_batches(stage: Stage, tokens: Ints, forward: Floats, backward: Floats) -> Floats:
    """Returns the seconds of micro-batches on a stage, without the head, [v]."""
    ahead, back = stage.pass_seconds(tokens, forward, backward)
    if (copies := stage_copies(stage)) is not None:
        ahead = ahead + copies.of_tokens(tokens, False).waited(ahead)
        back = back + copies.of_tokens(tokens, True).waited(back)
    return stage.micro_batch_seconds(tokens, ahead + back)
