"""The executors that play on a described cluster's clock, by their name in conf/executor."""

from collections.abc import Mapping

from zbench.console.sentence import not_among
from zbench.cost.cost import Cost
from zbench.cost.matmul import check_shapes
from zbench.describe.model import Model
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY, StepStrategy
from zbench.describe.strategy import MODEL_FIELDS
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate

SIMULATED = "simulated"
CLOCKS: Mapping[str, type[Simulated] | type[StepEstimate]] = {
    SIMULATED: Simulated,
    "simulated_attention": StepEstimate,
}


def check_layers_alike(model: Model) -> None:
    """Refuses a model whose first layers are of another kind, as the clock of attention alone has none of these; a
    planner that compares plans by it counts them as the others.

    Raises:
        ValueError: it has such layers.
    """
    model.check_alike(
        "executor=simulated_attention counts a layer's seconds by the number of layers (executor=simulated plays both "
        "kinds)"
    )


def clock_named(executor: str, cost: Cost, strategy: StepStrategy = USUAL_STRATEGY) -> Simulated | StepEstimate:
    """Returns the executor of that name, which plays on the cluster of `cost`. strategy: what whole steps have beside
    the model.

    Raises:
        ValueError: there is none, or it cannot play on such a cluster, or such a strategy.
    """
    if str(executor) not in CLOCKS:
        raise ValueError(not_among("executor", str(executor), list(CLOCKS)))
    check_shapes(cost.cluster.device, CLOCKS[executor] is Simulated)
    if executor == SIMULATED:
        return Simulated(cost, **strategy.arguments)
    check_layers_alike(cost.gpus.model)
    strategy.check_attention_alone({name: getattr(cost.gpus.model, name) for name in MODEL_FIELDS})
    return StepEstimate(cost)
