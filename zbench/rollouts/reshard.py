"""The change from training to generation, proven and played on a described cluster: its bytes and its seconds."""

from dataclasses import dataclass

from zbench.cost.cost import Cost
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees, check_degrees, check_own_gpus
from zbench.rollouts.engines import STANDALONE, resharding_of
from zbench.rollouts.gathers import ReshardedBytes, ReshardedWeights
from zbench.rollouts.weights import model_weights
from zbench.simulator.steps.play import play_step
from zbench.step.proof.prove import prove_step


@dataclass(frozen=True)
class PlayedResharding:
    """A change that was played. seconds: the described cluster's, simulated; all GPUs begin at once."""

    engine: str
    bytes: ReshardedBytes
    seconds: float


def played_resharding(engine: str, train: TrainDegrees, generate: GenerateDegrees, cost: Cost) -> PlayedResharding:
    """Proves and plays the change of an engine. cost: of GPUs.

    Raises:
        ValueError: the degrees do not fit each other, the model or the cluster.
    """
    cluster, model = cost.cluster, cost.model
    left = cluster.num_ranks - train.num_gpus
    if engine == STANDALONE:
        if left < 1 or left % generate.num_gpus:
            raise ValueError(
                f"train is {train}, which leaves {max(left, 0)} GPUs of cluster {cluster.name} to generation with "
                f"engine=standalone; replicas of generate={generate} take a multiple of {generate.num_gpus}"
            )
        check_own_gpus(train, generate, model)
    else:
        if left:
            raise ValueError(
                f"train is {train}, which is {train.num_gpus} GPUs; cluster {cluster.name} has {cluster.num_ranks} "
                "(cluster.num_nodes=N changes it)"
            )
        check_degrees(train, generate, model)
    change = resharding_of(engine, train, generate, left // generate.num_gpus)
    weights = ReshardedWeights(model_weights(model), model.num_layers, model.element_bytes, change)
    prove_step(weights.step)
    return PlayedResharding(engine, weights.bytes, play_step(weights.step, (), cost).seconds)
