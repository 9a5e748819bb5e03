"""Pipeline parallelism of a whole job: a plan's rank stands for a GPU of every stage.

Stages are parts of the layers, equal ones unless a run says how many each has, on equal parts of the nodes, in order.
The ranks with one place in every stage are a stack: they have the same tokens of every micro-batch, one stage after the
other. So a plan is one of a stage, rings and all, and planners see a cluster of as many nodes as a stage has. What
stages cost is told by whole steps (zbench.simulator.steps), and by zbench.simulator.estimate.step to planners.

Parameters of the embedding and the head are counted as spread over all stages, the head's work on the last one. Of
pipelines as a planner's choice, with other shapes side by side and without rings between them, see zbench.cost.stage.
"""

from dataclasses import replace

from zbench.cost.cost import Cost
from zbench.describe.pipeline.staged_layers import EVEN


def stacked(cost: Cost, pp: int) -> Cost:
    """Returns the cost model of one of `pp` stages, given `cost`, of the whole cluster.

    Raises:
        ValueError: stages cannot be alike: pp does not divide nodes, or layers unless each stage's number is given.
    """
    cost.model.with_stages(pp).check_stages()
    if pp == 1:
        return cost
    cluster, model = cost.cluster, cost.model
    layers = model.num_layers if model.stage_layers == EVEN else 0
    for name, count in (("cluster.num_nodes", cluster.num_nodes), ("model.num_layers", layers)):
        if count % pp:
            numbers = ", or parallel.stage_layers has a number for each" if name == "model.num_layers" else ""
            raise ValueError(f"parallel.pipeline_parallel is {pp}; it has to divide {name}={count}{numbers}")
    stage = replace(cluster, num_nodes=cluster.num_nodes // pp)
    return replace(cost, cluster=stage, pipelines=False, pp=pp, single=cost.gpus)
