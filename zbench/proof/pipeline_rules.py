"""The rules of a plan's pipelines."""

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.stage import refusal
from zbench.plans.plan import ATTEND, Plan


def pipeline_fault(plan: Plan, cost: Cost | None) -> str:
    """Returns the first rule that the plan's pipelines break, "" if none: those of zbench.proof.verify's docstring,
    number 7."""
    if plan.pipelines is None:
        return ""
    times = np.zeros(plan.num_ranks, np.int64)
    columns = (plan.pipelines.lead, plan.pipelines.tp, plan.pipelines.pp)
    for lead, tp, pp in zip(*(column.tolist() for column in columns), strict=True):
        name = f"the pipeline of rank {lead} (tp {tp}, pp {pp})"
        if tp < 1 or pp < 1 or lead < 0 or lead + tp * pp > plan.num_ranks:
            return f"{name} has ranks outside 0..{plan.num_ranks - 1}, or none"
        times[lead : lead + tp * pp] += 1
        if cost is not None:
            reason = refusal(tp, pp, cost)
            if not reason and lead % min(tp, cost.cluster.gpus_per_node):
                reason = "a stage has to be inside a node, or all of some nodes"
            if reason:
                return f"{name} cannot be: {reason}"
    if (times > 1).any():
        return f"rank {int(np.argmax(times > 1))} is in two pipelines"
    strays = ~np.isin(plan.blocks.home, plan.pipelines.lead)
    if strays.any():
        return f"block {int(np.argmax(strays))} is at home on a rank that leads no pipeline"
    for name, ops in (("forward", plan.forward), ("backward", plan.backward)):
        whole = (ops.kind == ATTEND) & (ops.blocks == ops.kv_blocks) & (ops.head_hi - ops.head_lo == plan.num_heads)
        if not whole.all():
            return f"{name} operation {int(np.argmin(whole))} is no attend of whole sequences, all that pipelines have"
    return ""
