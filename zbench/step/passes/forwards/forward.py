"""Builds forwards by themselves, as models have them that score sequences: the reference and the reward of rollouts.

There is no formula of a gradient, so a layer leaves its output and nothing else, and no optimizer state is there.
Micro-batches that are alike, as where all sequences are as long, are built once: they have the same operations and the
same layout, so whoever proves and plays the step looks at these once.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.plans.alike import plan_digest
from zbench.plans.plan import Plan
from zbench.step.lists import PLACE
from zbench.step.passes.build import BuiltParts, stage_fetches, step_entries
from zbench.step.passes.micro_batch import BatchTemplates
from zbench.step.passes.overlap.overlapped import with_exchanges
from zbench.step.passes.parameters.zero import ShardedParameters, ZeroCut
from zbench.step.passes.parts import PlanParts, check_plans
from zbench.step.passes.pipeline import border_templates, forward_order, stage_starts
from zbench.step.passes.sections import forward_sections
from zbench.step.template import Items, Step, Template


def forward_step(
    model: Model, plans: Sequence[Plan], degree: int, zero: ZeroCut, overlap: StepOverlap, stages: int = 1
) -> Step:
    """Returns the forwards of plans, one a micro-batch, on plan ranks x `degree` x `stages` GPUs. zero, overlap,
    stages: as of whole_step; between micro-batches parameters are where training has them while it computes. What
    training gathers before all else, as a window of all layers has it, comes one layer ahead.

    Raises:
        ValueError: the model has experts or plans have pipelines, or a degree cannot be.
    """
    if model.num_experts > 1:
        raise ValueError(
            f"model {model.name} has num_experts={model.num_experts}; a forward by itself takes one without"
        )
    if plans[0].pipelines is not None:
        raise ValueError("plans have pipelines of their own; a forward by itself takes plans without")
    check_plans(model, tuple(plans), degree)
    overlap = replace(overlap, window=1) if overlap.gathers_first else overlap
    parameters = ShardedParameters(model, plans[0].num_ranks, degree, zero.stage, overlap)
    formulas = forward_sections(model.kind_of_head)
    starts = stage_starts(model, stages, parameters.num_gpus)
    built, firsts, loss, alike = BuiltParts([], [], {}), list[int](), 0, _alike(plans)
    for number, (plan, same) in enumerate(zip(plans, alike, strict=True)):
        firsts.append(len(built.templates))
        if same < number:
            one = replace(built.batches[same], number=number)
            more = sum(len(before.parts.home) for before in built.batches[same:])
            every = built.templates[firsts[same] : firsts[same + 1]]
            made = [_like(each, number, one.layout.number["loss"], more) for each in every]
            loss += len(one.parts.home)
        else:
            parts = PlanParts(plan, model, degree, token_slices=overlap.token_slices)
            one = BatchTemplates.of(parts, (number, len(plans)), parameters, formulas, parts.num_gpus * stages)
            made, loss = one.forward_templates(loss)
            made += border_templates(one, False) if stages > 1 else []
        built.templates += made
        built.batches.append(one)
    order = forward_order(starts, model.num_layers, firsts, [one for one, _ in stage_fetches(built, stages, False)])
    batches, last = built.batches, starts[-1].place
    rows = batches[0].parameters
    begins = step_entries(rows, last, rows.resting)
    ends = step_entries(rows, last, lambda weight: rows.held(weight, weight, parameters.degrees.weights))
    lists, layout = batches[0].lists, batches[0].layout
    ends.append([layout.number["loss"], 0, lists.number(PLACE, [last]), -1, -1, loss, 0, 0])
    own = {same: replace(batches[same].layout, lists=batches[same].lists.lists()) for same in alike}
    step = Step(
        parameters.num_gpus * stages,
        0,
        model.num_layers,
        (),
        tuple(own[same] for same in alike),
        tuple(built.templates),
        tuple(order),
        Items.of(begins),
        Items.of(ends),
        starts,
    )
    return with_exchanges(step, overlap.exchanges)


def _alike(plans: Sequence[Plan]) -> list[int]:
    """Returns the number of the first micro-batch of forwards alone that is as each is. None is as the first one, which
    finds parameters as they are between steps."""
    first: dict[tuple[bytes, bool], int] = {}
    return [first.setdefault((plan_digest(plan), number == 0), number) for number, plan in enumerate(plans)]


def _like(of: Template, number: int, loss: int, more: int) -> Template:
    """Returns a template of a micro-batch for another one that is alike, with the same operations. loss: the number of
    that tensor; more: contributions to it that are there besides."""
    needs, leaves = (
        replace(one, count=np.where(one.tensor == loss, one.count + more, one.count)) if loss in one.tensor else one
        for one in (of.needs, of.leaves)
    )
    return replace(of, name=f"{of.name.split('.')[0]}.{number}", layout=number, needs=needs, leaves=leaves)
