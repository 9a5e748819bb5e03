"""Proves a plan correct before anything runs it.

Proven, for the forward and the backward list, each before what relies on it:

1. arrays have the types, lengths and offsets that whoever reads them takes for granted (zbench.proof.array_rules);
2. every token of every sequence, its padding too, belongs to exactly one block, and no block is empty
   (zbench.proof.block_rules);
3. every operation names ranks, heads, blocks and tensors that exist, and no transfer goes to its own rank
   (zbench.proof.operation_rules);
4. ranks and heads are as many as the cluster and the model have; transfers are routed between nodes only, over
   different NICs that those have; a kv head comes to a rank once, whichever of its query heads transfers name
   (zbench.proof.cluster_rules; what needs a cost model, where one is given);
5. every visible (query, key, head) triple is attended exactly once (zbench.proof.coverage);
6. nothing is used before an earlier operation made it, and every partial output and gradient
   reaches its home (the rules of zbench.plans.dataflow);
7. pipelines are of ranks that exist, each in one at most; their tokens are at their leads, where all heads of a
   sequence attend at once, and nothing is sent (zbench.proof.pipeline_rules; with a cost model: they can be on its
   cluster);
8. every rank stays within its memory, where a cost model is given and nobody else looks after it.

docs/proof.md says what that excludes, and how it is tested. Time is about linear in the plan's operations and pieces.
"""

from functools import cached_property

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.ranks_of_gpus import of_gpu
from zbench.describe.batch import Batch
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.units import with_noun
from zbench.plans.dataflow import first_violation as flow_fault
from zbench.plans.plan import Plan
from zbench.proof.array_rules import array_fault
from zbench.proof.block_rules import block_fault
from zbench.proof.cluster_rules import cluster_fault
from zbench.proof.coverage import coverage_fault
from zbench.proof.operation_rules import operation_fault
from zbench.proof.pipeline_rules import pipeline_fault

_LISTS = (("forward", False), ("backward", True))


class PlanError(ValueError):
    """A plan must not run; the message names the operation, rank and block."""


class OutOfMemory(PlanError):
    """A plan is correct but does not fit; the message names the rank and both sizes."""


def verify(plan: Plan, cost: Cost | None = None, memory: bool = True) -> None:
    """Returns if `plan` is correct; else raises an error that names what is wrong.

    cost: what the plan is made for; whoever runs a plan gives it. Without it the plan is proven for any cluster of as
        many ranks, but for its routes and pipelines.
    memory: with a cost model, whether the plan has to fit; False where whoever runs it says so of the whole step.

    Raises:
        PlanError: the first rule broken; OutOfMemory: only the memory is too small.
    """
    _hold((array_fault(plan) or _fault(plan, cost)) if isinstance(plan, Plan) else _no_plan(plan))
    if cost is not None and memory:
        _memory((plan,), cost)


def verify_step(batch: Batch, plans: tuple[Plan, ...], cost: Cost | None = None, memory: bool = True) -> None:
    """Returns if the plans are a training step: every one is correct, every sequence of the batch is whole in exactly
    one of them and sees itself under the model's mask (causally, where there is no cost), and all have the same
    pipelines, whose stages have memory for the micro-batches that are under way at a time. cost, memory: as for
    `verify`.

    Raises:
        PlanError: the first rule broken; OutOfMemory: only the memory is too small.
    """
    if not isinstance(plans, tuple | list):
        kind = type(plans).__name__
        raise PlanError(f"plans are a {kind}; it takes a tuple of zbench.plans.plan.Plan, one a micro-batch")
    for index, plan in enumerate(plans):
        _hold(array_fault(plan) if isinstance(plan, Plan) else _no_plan(plan), index, plans)
    _hold(_step_fault(batch, plans, CAUSAL if cost is None else cost.model.mask))
    for index, plan in enumerate(plans):
        _hold(_fault(plan, cost), index, plans)
    if cost is not None and memory:
        _memory(plans, cost)


def _hold(fault: str, index: int = 0, plans: tuple[Plan, ...] = ()) -> None:
    """Raises PlanError if there is a fault, and says in which of several micro-batches."""
    if fault:
        raise PlanError(f"micro-batch {index}: {fault}" if len(plans) > 1 else fault)


def _no_plan(given: object) -> str:
    return f"it is a {type(given).__name__}, no zbench.plans.plan.Plan"


def _fault(plan: Plan, cost: Cost | None) -> str:
    """Returns the first rule that a plan with sound arrays breaks, "" if none: each rule is looked at when those before
    it hold."""
    _forget(plan)
    if fault := block_fault(plan):
        return fault
    for name, _ in _LISTS:
        if fault := operation_fault(plan, name):
            return fault
    if fault := cluster_fault(plan, cost):
        return fault
    for name, backward in _LISTS:
        ops = getattr(plan, name)
        if fault := coverage_fault(plan, ops, name):
            return fault
        found = flow_fault(plan, ops, backward)
        if found is not None:
            where = f"operation {found.op} ({plan.view(ops, found.op)})" if found.op >= 0 else "before any operation"
            return f"{name} {where} {found.reason}"
    return pipeline_fault(plan, cost)


def _forget(plan: Plan) -> None:
    """Drops what was derived from arrays and kept with them: they may have changed since.

    What the proof derives anew takes its place, and is what executors read.
    """
    for part in (plan, plan.blocks, plan.lists, plan.lanes):
        for name, value in vars(type(part)).items():
            if isinstance(value, cached_property):
                vars(part).pop(name, None)


def _step_fault(batch: Batch, plans: tuple[Plan, ...], mask: Mask) -> str:
    """Returns the first rule that micro-batches break together, "" if none; their arrays are sound."""
    times = np.zeros(len(batch.lengths), np.int64)
    for index, plan in enumerate(plans):
        outside = plan.sequences >= len(times)
        if outside.any():
            at = int(np.argmax(outside))
            return (
                f"micro-batch {index} names sequences that the batch does not have: "
                f"plan.sequences[{at}] is {plan.sequences[at]}, and there are {len(times)}"
            )
        other = batch.lengths[plan.sequences] != plan.own_lengths
        if other.any():
            at = int(np.argmax(other))
            less = "" if plan.padding is None else f", of which {plan.padding[at]} are padding"
            return (
                f"micro-batch {index} has sequences of other lengths than the batch: plan.lengths[{at}] is "
                f"{plan.lengths[at]}{less}, and sequence {plan.sequences[at]} has "
                f"{batch.lengths[plan.sequences[at]]} tokens"
            )
        if plan.mask != mask:
            return (
                f"micro-batch {index}: plan.mask is {plan.mask}; a step of this model takes the model's, {mask} "
                "(Builder takes it as mask=)"
            )
        times[plan.sequences] += 1
    if (times != 1).any():
        seq = int(np.argmax(times != 1))
        return f"sequence {seq} is in {with_noun(times[seq], 'micro-batch')}; it has to be in one"
    layouts = {plan.pipelines.layout if plan.pipelines is not None else () for plan in plans}
    return "micro-batches have different pipelines; those of a step have to have the same" if len(layouts) > 1 else ""


def _memory(plans: tuple[Plan, ...], cost: Cost) -> None:
    peak = of_gpu(peak_bytes(plans, cost), cost.tp)
    rank, capacity = int(peak.argmax()), cost.cluster.device.memory_bytes / cost.tp
    if peak[rank] > capacity:
        each = " on one of its GPUs" if cost.pp > 1 else " on each of its GPUs" if cost.tp > 1 else ""
        raise OutOfMemory(
            f"{cost.owner} {rank} needs {peak[rank] / 2**30:.1f} GiB{each}, "
            f"a {cost.cluster.device.name} has {capacity / 2**30:.1f} GiB"
        )
