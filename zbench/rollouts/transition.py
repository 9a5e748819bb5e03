"""The weights' way from training to generation in an iteration of rollouts, as a job has it.

Where all GPUs train and generate it is an engine's (zbench.rollouts.engines), by how training leaves weights: in shards
of every GPU, as ZeRO does after an update, or in slices and stages. Where generation has GPUs of its own, those that
train gather all weights where they are in shards, and some of them send the slices to the replicas (broadcast).
Where prompts are read by a layout of their own (seesaw), weights go by host memory: GPUs gather them where they are in
shards, the GPUs of a node copy an even share each to its memory, and load what the layout that reads prompts has.

Layers are alike and gathered one after another, so a change is played with a few of them, and each of the others adds
what one of these does (tests/rollouts/test_transition.py has both).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.describe.job import AUTO_ENGINE, SEESAW, RolloutJob
from zbench.describe.model import Model
from zbench.rollouts.broadcast import broadcast_step, slice_chains
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees, check_degrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW, Resharding, resharding_of
from zbench.rollouts.gathers import ReshardedWeights
from zbench.rollouts.job_generation import JobGeneration
from zbench.rollouts.weights import model_weights
from zbench.simulator.steps.play import play_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

StepOf = Callable[[Model], Step]
LAYERS = (2, 3)  # that are played
STANDALONE = "standalone"
HOSTS = "hosts"  # weights go by the memory of every node
_QUEUE = "parameters"
_IN_SHARDS = ("zero1", "zero2", "zero3")  # of every GPU, after an update


@dataclass(frozen=True)
class PlayedChange:
    """A step of gathers, played. seconds: simulated. nic_tx, nic_rx: int64 [NICs], bytes."""

    seconds: float
    nic_tx: Ints
    nic_rx: Ints


@dataclass(frozen=True)
class Transition:
    """A change from training's weights to generation's. engine: that brings them, "" if nothing has to come. played:
    the steps of it, one after another, those of the GPUs that train first."""

    engine: str
    played: Sequence[PlayedChange]

    @property
    def seconds(self) -> float:
        """The seconds of all of it, simulated."""
        return sum(one.seconds for one in self.played)


def job_transition(job: RolloutJob, cost: Cost, whole: Cost) -> Transition:
    """Proves and plays a job's change. cost: of the GPUs that train; whole: of all.

    Raises:
        ValueError: as `job_engine`.
    """
    gpus, engine = cost.cluster.num_ranks, job_engine(job, cost)
    if engine == STANDALONE:
        gathered = [_played(_sharded(gpus), cost)] if _in_shards(cost) else []
        first = JobGeneration.of(job, cost).first
        sent = _played(_sent(cost, whole, first.pipeline, first.tensor), whole, first.pipeline)
        return Transition(engine, [*gathered, sent, *_by_hosts(job, cost, loaded=False)])
    if engine == HOSTS:
        gathers = _in_shards(cost) and _usual_engine(cost) == DS_CHAT
        every = gathers or not _in_slices(cost)  # on each GPU, before they are copied
        gathered = [_played(_sharded(gpus), cost)] if gathers else []
        return Transition(engine, [*gathered, *_by_hosts(job, cost, loaded=not every)])
    if engine == DS_CHAT:
        return Transition(engine, [_played(_sharded(gpus), cost)])
    change = resharding_of(engine, *_degrees(job, cost)) if engine else None
    stages = cost.model.pipeline_parallel
    return Transition(engine, [] if change is None else [_played(_gathered(change), cost, stages)])


def job_engine(job: RolloutJob, cost: Cost) -> str:
    """Returns what brings weights to a job's generation: an engine, STANDALONE, or "" where all is there already.

    Raises:
        ValueError: the engine does not go with the sharding, or the degrees do not fit.
    """
    if job.generate_nodes:
        return STANDALONE
    if job.generation_engine == SEESAW:
        return HOSTS
    if not _in_slices(cost) and not _in_shards(cost):
        return ""
    engine = _engine(job, cost)
    if engine == DS_CHAT:
        return engine
    train, generate = _degrees(job, cost)
    for name in ("tensor", "pipeline"):
        own, of_training = getattr(generate, name), getattr(train, name)
        if of_training % own:
            raise ValueError(
                f"job.generate_{name} is {own}; with engine {engine} it has to divide parallel.{name}_parallel, "
                f"{of_training}"
            )
    check_degrees(train, generate, cost.model)
    return engine


def _in_shards(cost: Cost) -> bool:
    """Returns whether an update leaves weights in shards of every GPU."""
    return cost.model.sharding in _IN_SHARDS and cost.cluster.num_ranks > 1


def _in_slices(cost: Cost) -> bool:
    """Returns whether GPUs have slices of weights, or those of a stage."""
    return cost.model.tensor_parallel * cost.model.pipeline_parallel > 1


def _degrees(job: RolloutJob, cost: Cost) -> tuple[TrainDegrees, GenerateDegrees]:
    gpus, tensor, stages = cost.cluster.num_ranks, cost.model.tensor_parallel, cost.model.pipeline_parallel
    generate = GenerateDegrees(job.generate_pipeline, job.generate_tensor)
    return TrainDegrees(stages, tensor, gpus // tensor // stages), generate


def _engine(job: RolloutJob, cost: Cost) -> str:
    """Returns the engine of a job whose GPUs train and generate.

    Raises:
        ValueError: it does not go with the sharding.
    """
    sharding, usual = cost.model.sharding, _usual_engine(cost)
    engine = usual if job.engine == AUTO_ENGINE else job.engine
    if (engine == DS_CHAT and sharding == "none") or (engine != DS_CHAT and usual == DS_CHAT):
        raise ValueError(
            f"job.engine is {engine}; with sharding {sharding} and parallel.tensor_parallel "
            f"{cost.model.tensor_parallel} it takes {usual}"
        )
    return engine


def _usual_engine(cost: Cost) -> str:
    """Returns the engine that goes with how training leaves weights."""
    return DS_CHAT if cost.model.sharding == "zero3" or not _in_slices(cost) else HYBRIDFLOW


def _by_hosts(job: RolloutJob, cost: Cost, loaded: bool) -> list[PlayedChange]:
    """Returns the copies of weights to the memory of nodes, and from there, if `loaded`, to the layout that reads
    prompts; none where prompts are read by the layout that decodes."""
    two = JobGeneration.of(job, cost).two
    if two is None:
        return []
    none = np.zeros(cost.cluster.num_nics, np.int64)
    seconds = [two.weights_out_seconds, *([two.reload_seconds(two.prefill)] if loaded else [])]
    return [PlayedChange(one, none, none) for one in seconds]


def _sharded(gpus: int) -> StepOf:
    """Returns the step from shards of every GPU to all weights on each, of a model."""
    return _gathered(resharding_of(DS_CHAT, TrainDegrees(1, gpus, 1), GenerateDegrees(1, 1)))


def _sent(cost: Cost, whole: Cost, stages: int, tensor: int) -> StepOf:
    """Returns the step that sends slices to the GPUs that generate alone, of a model."""
    cluster, every = cost.cluster, whole.cluster.num_ranks
    chains = slice_chains(cluster.num_ranks, every, stages * tensor, cluster.gpus_per_node)
    staged = [chains[at : at + tensor] for at in range(0, len(chains), tensor)]
    return lambda model: broadcast_step(model_weights(model), model.element_bytes, staged, every, model.num_layers)


def _gathered(change: Resharding) -> StepOf:
    """Returns the step of an engine's change, of a model."""
    return lambda model: ReshardedWeights(model_weights(model), model.num_layers, model.element_bytes, change).step


def _played(step_of: StepOf, cost: Cost, stages: int = 1) -> PlayedChange:
    """Proves and plays a change with a few layers of each stage, and adds what the others take."""
    every = cost.model.num_layers
    if every <= LAYERS[1] * stages:
        return _played_layers(step_of, cost, every)
    few, more = (_played_layers(step_of, cost, layers * stages) for layers in LAYERS)
    times = every // stages - LAYERS[1]
    return PlayedChange(
        more.seconds + times * (more.seconds - few.seconds),
        more.nic_tx + times * (more.nic_tx - few.nic_tx),
        more.nic_rx + times * (more.nic_rx - few.nic_rx),
    )


def _played_layers(step_of: StepOf, cost: Cost, layers: int) -> PlayedChange:
    model = replace(cost.model, num_layers=layers)
    step = step_of(model)
    prove_step(step)
    played = play_step(step, (), Cost(cluster=cost.cluster, model=model))
    return PlayedChange(played.seconds, played.nic_tx[_QUEUE], played.nic_rx[_QUEUE])
