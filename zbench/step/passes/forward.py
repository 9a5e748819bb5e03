"""Builds a step of forwards alone: a model that scores sequences, as the reference and the reward of rollouts do.

Plans, parts, parameters and exchanges are those of a training step (zbench.step.passes.build). There is no formula of a
gradient, so a layer leaves its output and nothing else, and no optimizer state is there. What is after the layers is
the loss: the sum of the tokens' log-probabilities, with the sign turned.
"""

from collections.abc import Sequence
from dataclasses import replace

from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.step.formula import parse_formulas
from zbench.step.layers import EMBEDDING, scores
from zbench.step.lists import PLACE
from zbench.step.passes.micro_batch import BatchTemplates
from zbench.step.passes.overlap.overlapped import with_exchanges
from zbench.step.passes.parameters.zero import ShardedParameters, ZeroCut
from zbench.step.passes.parts import PlanParts, check_plans
from zbench.step.passes.sections import Sections, sections
from zbench.step.template import Instance, Items, Step, Template


def forward_step(model: Model, plans: Sequence[Plan], degree: int, zero: ZeroCut, overlap: StepOverlap) -> Step:
    """Returns the forwards of plans, one a micro-batch, on plan ranks x `degree` GPUs. zero, overlap: as of whole_step;
    between micro-batches parameters are where training has them while it computes.

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
    parameters = ShardedParameters(model, plans[0].num_ranks, degree, zero.stage, overlap)
    formulas = _forward_sections(model.tied_embeddings)
    batches, templates, order, loss = list[BatchTemplates](), list[Template](), list[Instance](), 0
    for number, plan in enumerate(plans):
        parts = PlanParts(plan, model, degree, token_slices=overlap.token_slices)
        one = BatchTemplates.of(parts, (number, len(plans)), parameters, formulas, parts.num_gpus)
        first = len(templates)
        made, loss = one.forward_templates(loss)
        templates += made
        batches.append(one)
        order += [Instance(first, 0), Instance(first + 1, 0, model.num_layers), Instance(first + 2, model.num_layers)]
    rows = batches[0].parameters
    begins, ends = list[list[int]](), list[list[int]]()
    for weight in (*parameters.of_layers, *parameters.outside):
        begins += rows.resting(weight)
        ends += rows.held(weight, weight, parameters.degrees.weights)
    lists, layout = batches[0].lists, batches[0].layout
    ends.append([layout.number["loss"], 0, lists.number(PLACE, [0]), -1, -1, loss, 0, 0])
    layouts = tuple(replace(one.layout, lists=one.lists.lists()) for one in batches)
    step = Step(
        parameters.num_gpus,
        0,
        model.num_layers,
        (),
        layouts,
        tuple(templates),
        tuple(order),
        Items.of(begins),
        Items.of(ends),
    )
    return with_exchanges(step, overlap.exchanges)


def _forward_sections(tied: bool) -> Sections:
    """Returns the formulas of a forward alone."""
    dense = sections("none", False, tied)
    return Sections(parse_formulas(EMBEDDING), dense.forward, scores(tied), (), (), (), "none", dense.layer_weights)
