"""The cost model of a whole job, as planners see it: of groups of GPUs and of stages, where the model has them."""

from zbench.cost.cost import Cost
from zbench.cost.groups import grouped
from zbench.cost.stacks import stacked
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model


def make_cost(cluster: Cluster, model: Model, pipelines: bool = True, even_slices: bool = False) -> Cost:
    """Makes the cost model that planners see: of groups of GPUs and of stages, where the model has such parallelism.

    pipelines: what runs the plans has pipelines that a planner chooses (Plan.pipelines), as simulated executors
        and whole steps have.
    even_slices: as of the cost model.

    Raises:
        ValueError: the cluster or the model cannot be divided so.
    """
    one = Cost(cluster=cluster, model=model, pipelines=pipelines, even_slices=even_slices)
    cost = grouped(one, model.tensor_parallel)
    return stacked(cost, model.pipeline_parallel)
