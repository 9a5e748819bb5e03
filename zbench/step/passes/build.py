"""Builds a training step: from a system's plans, one a micro-batch, and degrees of parallelism.

Each part of the work is a module of its own: formulas and what is made again (sections, recompute), the parts of tokens
and heads (parts), linear modules and the exchanges of their groups (tensor_parallel), attention (attention), experts
(routing, experts), parameters, gradients and their collectives (zero), stages (pipeline), the update (optimizer). Here
they are put together, and exchanges of groups and of experts are put beside matmuls (overlap).

A model that scores sequences, as the reference and the reward of rollouts do, has forwards alone (`forward_step`):
there is no formula of a gradient, so a layer leaves its output and nothing else, and no optimizer state is there.
Micro-batches that are alike have the same layout, and operations and columns of contracts wherever these are equal, so
that a clock looks at them once. Contracts of gradients count contributions, so each of them is proven.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.degrees import ShardDegrees
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.step.alike_templates import with_columns_of
from zbench.step.layers import RouterFormulas
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE
from zbench.step.passes.buckets import Buckets, gathers_first, order_of_gathers, reductions
from zbench.step.passes.micro_batch import BatchTemplates
from zbench.step.passes.overlap.expert_chunks import with_expert_chunks
from zbench.step.passes.overlap.gradients_between import with_gradients_between
from zbench.step.passes.overlap.overlapped import with_exchanges
from zbench.step.passes.parameters.lossy import encodings_of, with_lossy_hops
from zbench.step.passes.parameters.optimizer import optimizer_template
from zbench.step.passes.parameters.resting import entries_of_stages, resting_entries
from zbench.step.passes.parameters.tied_tables import with_two_tables
from zbench.step.passes.parameters.zero import ShardedParameters, ZeroCut
from zbench.step.passes.parts import PlanParts, check_plans
from zbench.step.passes.pipeline import (
    TwoKinds,
    border_templates,
    dense_of_stages,
    first_alike,
    forward_order,
    pipeline_order,
    stage_starts,
    template_alike,
)
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.passes.sections import forward_sections, sections
from zbench.step.passes.side_by_side import pipelines_step
from zbench.step.template import Instance, Items, Step, Template, entry_table
from zbench.step.tensor import FOLLOWING, LEADING


@dataclass
class _Built:
    """The parts of a step that are built so far.

    gradients: contributions of every GPU of a stage to each parameter's, -1: none at all.
    """

    batches: list[BatchTemplates]
    templates: list[Template]
    gradients: dict[str, np.ndarray]


def whole_step(
    model: Model,
    plans: Sequence[Plan],
    degree: int = 1,
    zero: str | ShardDegrees | ZeroCut = "3",
    window: int | StepOverlap = 1,
    recompute: str | SomeLayers = "none",
    experts: ExpertParallel = TOGETHER,
    stages: int = 1,
) -> Step:
    """Returns a training step on plan ranks x `degree` x `stages` GPUs; each plan is one micro-batch, with a backward.

    degree: of tensor parallelism; plans are of groups of so many GPUs. zero: the stage, "none", "1", "2" or "3", or
    degrees. window: layers that parameters are gathered ahead, or all that is beside the layers' work. recompute: a
    level of zbench.step.passes.recompute, of all layers or of some. experts: how those of a model with experts are laid
    out and chosen. stages: of a pipeline, each with all of the plans' GPUs.

    Raises:
        ValueError: a degree, stage, window or level cannot be, or plans do not fit.
    """
    some = recompute if isinstance(recompute, SomeLayers) else None
    level = recompute if isinstance(recompute, str) else recompute.level
    if plans and plans[0].pipelines is not None:
        if not isinstance(stage := ZeroCut.of(zero).stage, str):
            raise ValueError(
                f"plans have pipelines, whose parameters stay for the step; sharding is of degrees {stage.told}, and "
                "takes none, zero1, zero2 or zero3 with them"
            )
        if some is not None:
            raise ValueError("plans have pipelines, of whose layers all or none are recomputed")
        return pipelines_step(model, plans, stage, level)
    model = model.with_stages(stages)
    check_plans(model, tuple(plans), degree)
    overlap, cut = StepOverlap.of(window), ZeroCut.of(zero)
    groups, experts = plans[0].num_ranks, experts.in_chunks(overlap.experts)
    if some is not None and overlap.experts.gradients is not None:
        raise ValueError(
            "gradients go between experts' messages of the next layer; all or no layers are recomputed then"
        )
    experts.check(model, groups * degree)
    starts = stage_starts(model, stages, groups * degree)
    parameters = ShardedParameters(model, groups, degree, cut.stage, overlap, experts.degree, cut.cells).kept
    shared, two_level = model.shared_experts > 0, experts.node > 0
    router = RouterFormulas(model.gate, model.router, experts.routing, experts.counted, experts.inside_first)
    kinds = model.num_experts > 1, model.kind_of_head, shared, two_level, some is not None
    dense = model.dense_layers
    formulas = sections(level, *kinds, router, dense > 0)
    none = np.full(groups * degree, -1, np.int64)
    built = _Built([], [], dict.fromkeys((*parameters.of_layers, *parameters.outside), none))
    loss, firsts, reduced, kept = 0, [], [], []
    # Experts are drawn for each.
    alike = first_alike(plans, shares=overlap.shares) if model.num_experts == 1 else range(len(plans))
    before: dict[tuple[int, str], Template] = {}
    for number, (plan, same) in enumerate(zip(plans, alike, strict=True)):
        if same < number:
            one = replace(built.batches[same], number=number)
        else:
            shares = overlap.shares[number] if overlap.shares else ()
            parts = PlanParts(plan, model, degree, experts, token_slices=overlap.token_slices, shares=shares)
            places = parts.num_gpus * stages
            one = BatchTemplates.of(parts, (number, len(plans)), parameters, formulas, places, stages > 1)
        begun = dict(built.gradients)
        made, loss = one.templates(built.gradients, loss)
        firsts.append(len(built.templates))
        built.batches.append(one)
        built.templates += made + (border_templates(one) if stages > 1 else [])
        kept.append(len(built.templates))
        built.templates += one.kept_templates(begun) if some is not None else []
        built.templates += one.dense_templates(begun, built.gradients) if dense else []
        reduced.append(_numbered(built, reductions(one, begun, built.gradients)))
        for at in range(firsts[-1], len(built.templates)):
            key = same, built.templates[at].name.split(".")[0]
            if key in before:
                built.templates[at] = with_columns_of(built.templates[at], before[key])
            before[key] = built.templates[at]
    fetches = _fetches(built, stages)
    first = _numbered(built, gathers_first(replace(built.batches[0], count=1)))[0]
    order = order_of_gathers(first, starts, model.num_layers) if first >= 0 else []
    buckets = Buckets(parameters.bucket_layers, parameters.reduced_last, reduced)
    others = None if some is None else TwoKinds(some.of_stages(starts, model.num_layers), kept)
    if dense:
        others = TwoKinds(dense_of_stages(starts, model.num_layers, dense), kept, first_apart=True)
    order += pipeline_order(starts, model.num_layers, firsts, fetches, buckets, others)
    order += _updates(built, model.num_layers, [one.place for one in starts], [one.layer for one in starts])
    if others is not None:
        cuts = {start.layer + count for start, count in zip(starts, others.firsts, strict=True)}
        order = [part for one in order for part in one.parts(sorted(cuts))]
    begins, ends = (resting_entries(built.batches[0].parameters, version, starts[-1].place) for version in (0, 1))
    lists, layout = built.batches[0].lists, built.batches[0].layout
    lost = entry_table(layout.number["loss"], lists.places[[starts[-1].place]], [], loss)
    own = {same: _whole_layout(built.batches[same], parameters, built.gradients) for same in dict.fromkeys(alike)}
    step = Step(
        parameters.num_gpus * stages,
        0,
        model.num_layers,
        tuple(encodings_of(parameters).values()),
        tuple(own[same] for same in alike),
        tuple(built.templates),
        tuple(order),
        Items.of_tables([begins]),
        Items.of_tables([ends, lost]),
        starts,
        dense,
    )
    at_a_time = [one.parts.mlp_chunks for one in built.batches]
    step = with_expert_chunks(with_exchanges(step, overlap.exchanges, at_a_time), overlap.experts, at_a_time)
    step = with_gradients_between(step, parameters, overlap.experts.gradients)
    return with_two_tables(step, parameters, built.gradients) if model.has_two_tables else step


def _whole_layout(one: BatchTemplates, parameters: ShardedParameters, gradients: dict[str, np.ndarray]) -> StepLayout:
    """Returns the layout of a micro-batch whose templates are made, with its lists. gradients: contributions of every
    GPU to each parameter's."""
    one.parameters.tables.learn(one.lists)
    tensors = with_lossy_hops(one.layout.tensors, parameters, gradients)
    return one.layout.with_lists(one.lists.lists(), tensors)


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
    model = model.with_stages(stages)
    check_plans(model, tuple(plans), degree)
    overlap = replace(overlap, window=1) if overlap.gathers_first else overlap
    parameters = ShardedParameters(model, plans[0].num_ranks, degree, zero.stage, overlap).kept
    formulas = forward_sections(model.kind_of_head)
    starts = stage_starts(model, stages, parameters.num_gpus)
    built, firsts, loss, alike = _Built([], [], {}), list[int](), 0, first_alike(plans, 1)
    for number, (plan, same) in enumerate(zip(plans, alike, strict=True)):
        firsts.append(len(built.templates))
        if same < number:
            one = replace(built.batches[same], number=number)
            more = sum(len(before.parts.home) for before in built.batches[same:])
            every = built.templates[firsts[same] : firsts[same + 1]]
            made = [template_alike(each, number, one.layout.number["loss"], more) for each in every]
            loss += len(one.parts.home)
        else:
            parts = PlanParts(plan, model, degree, token_slices=overlap.token_slices)
            places = parts.num_gpus * stages
            one = BatchTemplates.of(parts, (number, len(plans)), parameters, formulas, places, stages > 1)
            made, loss = one.forward_templates(loss)
            made += border_templates(one, False) if stages > 1 else []
        built.templates += made
        built.batches.append(one)
    order = forward_order(starts, model.num_layers, firsts, [one for one, _ in _fetches(built, stages, False)])
    batches, last = built.batches, starts[-1].place
    rows = batches[0].parameters
    begins = entries_of_stages(rows, last, rows.resting)
    ends = entries_of_stages(rows, last, lambda weight: rows.held(weight, weight, parameters.degrees.weights))
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
    return with_exchanges(step, overlap.exchanges, [one.parts.mlp_chunks for one in batches])


def _numbered(built: _Built, templates: Sequence[Template]) -> tuple[int, int]:
    """Adds up to two templates and returns their numbers, -1 where there is none."""
    first = len(built.templates)
    built.templates += templates
    one, other = (first + at if at < len(templates) else -1 for at in range(2))
    return one, other


def _fetches(built: _Built, stages: int, trains: bool = True) -> list[tuple[int, int]]:
    """Adds the templates that gather a stage's first layers ahead and returns those of every micro-batch, forward and
    backward, -1 where there is none: where parameters stay in parts each has both, of which the first one's forward
    finds them as they rest between steps; where they are gathered once a step, the first one's forward has. trains:
    whether there are backwards."""
    first, of = replace(built.batches[0], count=1), built.batches[0].parameters.of

    def added(name: str, of_batch: BatchTemplates, forward: bool) -> int:
        built.templates.append(of_batch.fetch(name, forward))
        return len(built.templates) - 1

    found = [(-1, -1)] * len(built.batches)
    if stages == 1 or of.degrees.optimizer == 1 or of.gathered_first:
        return found
    forward = others = added("fetch", first, True)
    if of.gathered:
        backward = added("fetch_backward", first, False) if trains and of.degrees.secondary != 1 else -1
        if of.degrees.secondary == 1:
            others = -1  # all of them stay from the first forward on
        elif of.degrees.optimizer != of.degrees.secondary and len(found) > 1:
            others = added("fetch_others", replace(built.batches[1], count=1), True)
        found = [(others, backward)] * len(found)
    return [(forward, found[0][1]), *found[1:]]


def _updates(built: _Built, num_layers: int, places: list[int], layers: list[int]) -> list[Instance]:
    """Adds the templates of the optimizer and returns their instances: of each stage's layers, kind by kind, and of
    what is before the first and after the last. places, layers: the first ones of each stage."""
    rows, layout = built.batches[0].parameters, built.batches[0].layout
    first, order, dense = len(built.templates), [], rows.of.model.dense_layers
    of_layers = [("optimizer", rows.of.of_kind(FOLLOWING), 0)]
    of_layers += [("optimizer_dense", rows.of.of_kind(LEADING), 0)] if dense else []
    for place, begin, end in zip(places, layers, [*layers[1:], num_layers], strict=True):
        middle = min(max(begin, dense), end)
        order += [Instance(first + 1, begin, middle - begin, place=place)] if middle > begin else []
        order += [Instance(first, middle, end - middle, place=place)] if end > middle else []
    ends: list[tuple[str, tuple[str, ...], int]] = [("optimizer_ends", rows.of.outside, 0)]
    if len(places) > 1:
        ends = [("optimizer_embedding", ("we",), 0), ("optimizer_head", rows.of.of_head, places[-1])]
    if rows.of.model.has_two_tables:  # which are updated as one (zbench.step.passes.parameters.tied_tables)
        ends = []
    for name, weights, _ in [*of_layers, *ends]:
        built.templates.append(optimizer_template(name, weights, built.gradients, rows, (0, layout)))
    first += len(of_layers)
    return order + [Instance(first + at, 0, place=place) for at, (_, _, place) in enumerate(ends)]
