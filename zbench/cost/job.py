"""The cost model of a whole job, as planners see it: of groups of GPUs and of stages, where the model has them."""

from zbench.cost.cost import Cost
from zbench.cost.groups import grouped
from zbench.cost.stacks import stacked
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model


def make_cost(cluster: Cluster, model: Model, simulated: bool = True) -> Cost:
    """Makes the cost model that planners see: of groups of GPUs and of stages, where the model has such parallelism.

    simulated: what runs the plans is the simulator, which has pipelines that a planner chooses (Plan.pipelines).

    Raises:
        ValueError: the cluster or the model cannot be divided so.
    """
    cost = grouped(Cost(cluster=cluster, model=model, pipelines=simulated), model.tensor_parallel)
    return stacked(cost, model.pipeline_parallel)
