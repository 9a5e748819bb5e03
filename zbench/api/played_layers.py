"""Plays a plan of zbench layers that whole steps have: some of each stage's layers are recomputed, the others not."""

from collections import Counter
from dataclasses import replace

from zbench.api.functions import planned
from zbench.cost.by_layer.decision_tree import TENSOR
from zbench.cost.by_layer.packs import SequencePacks
from zbench.cost.by_layer.search import LayerPlan
from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import EVEN
from zbench.planned.step import StepPlans
from zbench.simulator.steps.play import PlayedStep, play_step
from zbench.step.passes.build import whole_step
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.passes.proven import zero_of
from zbench.step.passes.recompute import SomeLayers
from zbench.step.proof.prove import prove_step


def played_layers(found: LayerPlan, cluster: Cluster, model: Model, lengths: Ints) -> PlayedStep:
    """Builds, proves and plays the step of a plan; sequences are packed by predicted time, none is cut.

    found: its layers have one parallelism, and of each stage the first ones one recomputation.

    Raises:
        ValueError: the system or the step cannot be laid out so.
    """
    first = found.strategies[0][0]
    levels = Counter(one.recompute for mine in found.strategies for one in mine if one.recompute != "none")
    level = next(iter(levels), "none")
    again = tuple(sum(one.recompute == level for one in mine) for mine in found.strategies)
    degree, stages = first.degree(TENSOR), len(found.cut)
    laid = replace(model, tensor_parallel=degree, pipeline_parallel=stages, recompute=level)  # type: ignore[arg-type]
    even = len(set(found.cut)) == 1
    laid = replace(laid, sharding="zero3" if first.is_sharded else "none", stage_layers=EVEN if even else found.cut)
    each = SequencePacks(Cost(cluster=cluster, model=model), lengths).slowest(first.groups, found.micro_batches).fullest
    mesh = {"method": "ring", "degree": 1, "batching": "balanced", "pack_tokens": int(each)}
    planned_step = planned(StepPlans((), lengths, cluster, laid), "mesh", mesh)
    gpus = planned_step.cost.gpus
    some = SomeLayers(level, again) if level != "none" else "none"
    step = whole_step(gpus.model, planned_step.plans, degree, zero_of(gpus.model), recompute=some, stages=stages)
    prove_step(step)
    return play_step(step, plans_of_layouts(planned_step.plans), gpus)
