"""The cost model of a whole job, as planners see it: of groups of GPUs and of stages, where the model has them."""

from dataclasses import replace
from functools import lru_cache

from zbench.cost.cost import Cost
from zbench.cost.ranks_of_gpus import stage_cluster, stages_are_alike, with_ranks_of
from zbench.describe.cluster import Cluster
from zbench.describe.degrees import ShardDegrees
from zbench.describe.exchanges import WHOLE, ExchangeOverlap
from zbench.describe.model import Model
from zbench.describe.sync import RoundSync


def make_cost(
    cluster: Cluster,
    model: Model,
    pipelines: bool = True,
    even_slices: bool = False,
    expert_gpus: int = 1,
    expert_cut: int = 1,
    exchanges: ExchangeOverlap = WHOLE,
    layers_ahead: int = 1,
) -> Cost:
    """Makes the cost model that planners see: of groups of GPUs and of stages, where the model has such parallelism.

    pipelines: what runs the plans has pipelines that a planner chooses (Plan.pipelines), as simulated executors
        and whole steps have.
    even_slices, expert_gpus, expert_cut, exchanges, layers_ahead: as of the cost model.

    Raises:
        ValueError: the cluster or the model cannot be divided so.
    """
    model = _with_ranks(cluster, model)
    one = Cost(
        cluster=cluster,
        model=model,
        pipelines=pipelines,
        even_slices=even_slices,
        expert_gpus=expert_gpus,
        expert_cut=expert_cut,
        exchanges=exchanges,
        layers_ahead=layers_ahead,
    )
    return with_ranks_of(one, model.tensor_parallel, model.pipeline_parallel)


def cost_like(cost: Cost, cluster: Cluster, model: Model, pipelines: bool) -> Cost:
    """Makes the cost model of the same job on another machine, or with another model; arguments and errors as of
    `make_cost`."""
    of_steps = cost.even_slices, cost.expert_gpus, cost.expert_cut, cost.exchanges, cost.layers_ahead
    found = make_cost(cluster, model, pipelines, *of_steps).routed_by(cost.experts, cost.draw)
    found = found.of_part(cost.opens_step, cost.closes_step).of_rounds(cost.workers, cost.under_way)
    return found if cost.waits_for_hosts else found.not_waiting


def _with_ranks(cluster: Cluster, model: Model) -> Model:
    """Returns a model whose degrees of sharding, where it has some, are numbers of the cluster's ranks, with stages of
    those of a stage.

    Raises:
        ValueError: they do not lie in one another.
    """
    tp, pp = model.tensor_parallel, model.pipeline_parallel
    if not isinstance(model.sharding, ShardDegrees) or not stages_are_alike(cluster, pp, tp):
        return model  # what cannot be has a sentence where groups and stages are made
    stage = stage_cluster(cluster, pp)
    groups, of_node = stage.num_ranks // tp, max(stage.gpus_per_node // tp, 1)
    called = "rank" if tp == 1 else "tensor-parallel group"
    where = "" if pp == 1 else " of a stage"
    return replace(model, sharding=model.sharding.of_ranks(groups, of_node, called, where))


def worker_cost(cost: Cost, sync: RoundSync) -> Cost:
    """Returns the cost model of one worker's GPUs, which are a cluster of its own."""
    whole = cost.gpus.cluster
    own = sync.worker_cluster(whole, cost.tp, cost.pp)
    found = cost_like(cost, own, cost.gpus.model, False)
    return found.of_rounds(whole.num_ranks // own.num_ranks, sync.under_way)


def worker_gpus(cost: Cost, sync: RoundSync) -> int:
    """Returns the GPUs of one worker."""
    return sync.worker_gpus(cost.gpus.cluster.gpus_per_node, cost.tp, cost.pp)


def of_parts(cost: Cost) -> Cost:
    """Returns the cost model for tokens that are some of a rank's, as one sequence's of many are: a last tile of a
    matmul, a last wave of them and the reading of parameters, which all tokens share, are no part's own.

    So matmuls have one rate, that of a layer's shapes with very many tokens. Where they have one whatever their shape,
    it is `cost`.
    """
    return _with_one_rate(cost) if cost.is_by_shape else cost


@lru_cache(maxsize=32)
def _with_one_rate(cost: Cost) -> Cost:
    device = replace(cost.cluster.device, matmul_shapes=False, matmul_flops=cost.large_rate)
    return replace(cost, cluster=replace(cost.cluster, device=device))
