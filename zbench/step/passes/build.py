"""Builds a training step of a dense model: from a system's plans, one a micro-batch, and degrees of parallelism.

Each part of the work is a module of its own: what is made again (recompute), the parts of tokens and heads (parts),
linear modules and the exchanges of their groups (tensor_parallel), attention (attention), parameters, gradients and
their collectives (zero), the update (optimizer). Here they are put together, and the contracts are written.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.step.formula import parse_formula, parse_formulas
from zbench.step.layers import DENSE, DERIVATIVES, EMBEDDING, EMBEDDING_BACKWARD, HEAD, update
from zbench.step.lists import PLACE
from zbench.step.passes.micro_batch import BatchTemplates, Rows, Sections
from zbench.step.passes.optimizer import optimizer_template
from zbench.step.passes.parts import check_plans
from zbench.step.passes.recompute import made_again, with_recomputation
from zbench.step.passes.zero import LAYER_WEIGHTS, OTHER_WEIGHTS, ParameterRows, ShardedParameters
from zbench.step.template import Instance, Items, Step, Template
from zbench.step.transpose import transpose


def sections(recompute: str, parameters: ShardedParameters) -> Sections:
    """Returns the formulas of a step with a level of recomputation."""
    forward, head = parse_formulas(DENSE), parse_formulas(HEAD)
    again = made_again(recompute, forward, "x")
    backward = with_recomputation(forward, transpose(forward, DERIVATIVES), again)
    weights = (*LAYER_WEIGHTS, *OTHER_WEIGHTS)
    return Sections(
        forward, backward, parse_formulas(EMBEDDING), head + transpose(head, DERIVATIVES),
        parse_formulas(EMBEDDING_BACKWARD),
        tuple(parse_formula(update(weight, ",".join(parameters.axes(weight)))) for weight in weights),
    )  # fmt: skip


def whole_step(
    model: Model, plans: Sequence[Plan], degree: int = 1, zero: str = "3", window: int = 1, recompute: str = "none"
) -> Step:
    """Returns a training step on plan ranks x `degree` GPUs; each plan has a backward and is one micro-batch.

    degree: of tensor parallelism; plans are of groups of so many GPUs. zero: the stage, "none", "1", "2" or "3";
    window: layers that stage 3 gathers parameters ahead. recompute: a level of zbench.step.passes.recompute.

    Raises:
        ValueError: a degree, stage, window or level cannot be, or plans do not fit.
    """
    check_plans(model, tuple(plans), degree)
    parameters = ShardedParameters(model, plans[0].num_ranks, degree, zero, window)
    formulas = sections(recompute, parameters)
    gradients = {weight: np.zeros(parameters.groups * degree, np.int64) for weight in (*LAYER_WEIGHTS, *OTHER_WEIGHTS)}
    batches: list[BatchTemplates] = []
    templates: list[Template] = []
    order: list[Instance] = []
    loss = 0
    for number, plan in enumerate(plans):
        one = BatchTemplates.of(model, plan, number, len(plans), parameters, formulas)
        batches.append(one)
        made, loss = one.templates(gradients, loss)
        first, layers = len(templates), model.num_layers
        templates += made
        order += [
            Instance(first, 0), Instance(first + 1, 0, layers), Instance(first + 2, layers),
            Instance(first + 3, layers - 1, layers, -1), Instance(first + 4, 0),
        ]  # fmt: skip
    rows, layout = batches[0].parameters, batches[0].layout
    totals = {weight: one.total(gradients[weight], weight) for weight in gradients}
    for name, weights, repeats in (
        ("optimizer", LAYER_WEIGHTS, model.num_layers),
        ("optimizer_ends", OTHER_WEIGHTS, 1),
    ):
        order.append(Instance(len(templates), 0, repeats))
        templates.append(optimizer_template(name, weights, totals, rows, (0, layout)))
    begins, ends = (_resting(rows, version) for version in (0, 1))
    ends.append([layout.number["loss"], 0, rows.lists.number(PLACE, [0]), -1, -1, loss, 0, 0])
    return Step(
        parameters.groups * degree, 0, model.num_layers, (),
        tuple(replace(one.layout, lists=one.lists.lists()) for one in batches),
        tuple(templates), tuple(order), Items.of(begins), Items.of(ends),
    )  # fmt: skip


def _resting(rows: ParameterRows, version: int) -> Rows:
    """Returns the entries of all parameters and their optimizer state before or after a step."""
    found: Rows = []
    for weight in (*LAYER_WEIGHTS, *OTHER_WEIGHTS):
        state = rows.everywhere if rows.of.stage == "none" else rows.at_home
        found += rows.resting(weight, version) + state(f"s{weight}", weight, version=version)
    return found
