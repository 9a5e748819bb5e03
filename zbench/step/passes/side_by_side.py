"""Steps of pipelines side by side, each with its own tensor-parallel degree, stages and micro-batches.

A pipeline's micro-batch is a layout and templates of its own, as any other's (zbench.step.passes.micro_batch), played
for the pipeline's stages. What pipelines have in common is played across them, a template for all layers: parameters
are gathered before all else, the loss is summed, gradients are reduced and parameters updated after all else. A layer's
places in each pipeline are those of the stage that has it, whatever stages others have.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from zbench.describe.model import CUT_BY_SLICES, Model
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.step.passes.across import AcrossPipelines, BuiltPipelines
from zbench.step.passes.buckets import Buckets
from zbench.step.passes.micro_batch import BatchTemplates
from zbench.step.passes.own_plans import own_plans
from zbench.step.passes.parameters.pipeline_parameters import CommonParameters, OwnParameters, PipelineShapes
from zbench.step.passes.parameters.weights import outer_weights, weights_of_layers
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.pipeline import border_templates, pipeline_order, stage_starts
from zbench.step.passes.sections import sections
from zbench.step.template import Instance, Items, StageStart, Step


def pipelines_step(model: Model, plans: Sequence[Plan], zero: str, recompute: str) -> Step:
    """Returns a training step of plans that have pipelines; arguments as of zbench.step.passes.build.whole_step. From
    stage 1 on optimizer state is in shards; parameters and gradients stay for the step in any case.

    Raises:
        ValueError: a model cannot be cut for the pipelines.
    """
    assert plans[0].pipelines is not None
    shapes = PipelineShapes.of(plans[0].pipelines)
    _check(model, shapes)
    starts = [
        tuple(StageStart(one.layer, lead + one.place) for one in stage_starts(model, pp, tp))
        for lead, tp, pp in zip(shapes.lead, shapes.tp, shapes.pp, strict=True)
    ]
    built, own = _begun(model, plans[0], zero, recompute), own_plans(plans)
    for pipeline, plan in own:
        _add(built, pipeline, plan, len(own))
    return _ordered(built, starts)


def _check(model: Model, shapes: PipelineShapes) -> None:
    """Raises ValueError if a model cannot be cut for pipelines."""
    if model.num_experts > 1:
        raise ValueError(
            f"model.num_experts is {model.num_experts}; plans have pipelines side by side, which are for models "
            "without experts"
        )
    for name in CUT_BY_SLICES:
        if getattr(model, name) % shapes.slices:
            raise ValueError(
                f"pipelines have tensor-parallel degrees {sorted(set(shapes.tp))}, for which parameters are cut in "
                f"{shapes.slices}; that has to divide model.{name}, {getattr(model, name)}"
            )


def _begun(model: Model, plan: Plan, zero: str, recompute: str) -> BuiltPipelines:
    """Returns a step of a plan's pipelines of which nothing is built."""
    assert plan.pipelines is not None
    shapes = PipelineShapes.of(plan.pipelines)
    model = model.with_stages(max(shapes.pp)) if model.tied_embeddings else model  # of which there may be two tables
    names = [*weights_of_layers(model), *outer_weights(model.kind_of_head)]
    stage, cut = "none" if zero == "none" else "1", shapes.cut(model, names)
    return BuiltPipelines(
        model,
        shapes,
        recompute,
        plan.num_ranks,
        CommonParameters(model, len(shapes), shapes.slices, stage, StepOverlap(0), 1, 1, 1, cut, shapes),
        [{name: np.full(tp, -1, np.int64) for name in names} for tp in shapes.tp],
        [0] * len(shapes),
        [list[int]() for _ in shapes.tp],
    )


def _add(built: BuiltPipelines, pipeline: int, plan: Plan, count: int) -> None:
    """Adds a micro-batch of a pipeline: a layout and templates of its own. count: of the micro-batches of all."""
    tp, slices, model = built.shapes.tp[pipeline], built.shapes.slices, built.model_of(pipeline)
    parts = PlanParts(plan, model, tp, finest=slices)
    own = OwnParameters(model, 1, tp, "none", StepOverlap(0), 1, 1, slices // tp, built.parameters.cut)
    # Of one more than there are: none is the last, after which gradients would be reduced.
    formulas = sections(built.recompute, False, model.kind_of_head)
    one = BatchTemplates.of(parts, (len(built.batches), count + 1), own, formulas, built.num_gpus)
    made, built.losses[pipeline] = one.templates(built.gradients[pipeline], built.losses[pipeline])
    built.firsts[pipeline].append(len(built.templates))
    built.batches.append(one)
    built.templates += made + (border_templates(one) if built.shapes.pp[pipeline] > 1 else [])


def _ordered(built: BuiltPipelines, starts: list[tuple[StageStart, ...]]) -> Step:
    """Returns the step. starts: the stages of every pipeline."""
    layers, own = built.model.num_layers, []
    for stages, firsts in zip(starts, built.firsts, strict=True):
        none = [(-1, -1)] * len(firsts)
        own += pipeline_order(stages, layers, firsts, none, Buckets(1, False, none)) if firsts else []
    across = AcrossPipelines(built, starts)
    order = [*across.gathers(), *own, *across.updates()]
    cuts = {one.layer for stages in starts for one in stages}
    begins, ends = across.resting(0), [*across.resting(1), across.loss()]
    layouts = [replace(one.layout, lists=one.lists.lists()) for one in built.batches]
    return Step(
        built.num_gpus,
        0,
        layers,
        (),
        (*layouts, replace(across.layout, lists=across.lists.lists())),
        tuple(built.templates),
        tuple(part for one in order for part in _divided(one, cuts)),
        Items.of(begins),
        Items.of(ends),
        tuple(one for stages in starts for one in stages),
    )


def _divided(one: Instance, cuts: Collection[int]) -> list[Instance]:
    """Returns an instance as one for each run of layers that are on the same stages in all pipelines."""
    ends = [-1, *(at for at, pair in enumerate(pairwise(one.layers)) if max(pair) in cuts), one.repeats - 1]
    return [replace(one, layer=one.layers[a + 1], repeats=b - a) for a, b in pairwise(ends)]
