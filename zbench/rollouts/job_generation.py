"""The generation of a job: replicas on the GPUs that generate, by the job's engine.

With seesaw prompts are read by another layout than that which decodes. Its weights come from the memory of a node, to
which training's have to be copied before (zbench.rollouts.transition), so a replica is inside a node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.job import CHUNKED, CONTINUOUS, SEESAW, RolloutJob
from zbench.rollouts.generate import EVERYTHING, Batching, Generation, GenerationCost, generate
from zbench.rollouts.generation_engines import CHUNK_TOKENS, HOST_BYTES, PASS_TOKENS
from zbench.rollouts.seesaw import SeesawGeneration, generate_by_seesaw
from zbench.rollouts.seesaw_phases import SeesawCost

_USUAL_TOKENS = {CONTINUOUS: EVERYTHING, CHUNKED: CHUNK_TOKENS, SEESAW: PASS_TOKENS}  # of a pass


@dataclass(frozen=True)
class JobGeneration:
    """The generation of a job. decode: a replica's layout; two: with that by which it reads prompts, None where it is
    the same."""

    decode: GenerationCost
    batching: Batching
    two: SeesawCost | None = None

    @staticmethod
    def of(job: RolloutJob, cost: Cost) -> "JobGeneration":
        """Returns a job's generation. cost: of the GPUs that train the actor, which generate unless others do.

        Raises:
            ValueError: a layout does not divide the GPUs or the model, or has no room.
        """
        generating = generating_cost(job, cost)
        stages, layers = job.generate_pipeline, generating.model.num_layers
        if layers % stages:
            raise ValueError(f"job.generate_pipeline is {stages}; it has to divide num_layers={layers}")
        decode = GenerationCost(generating, job.generate_tensor, job.memory_share, "job.generate_tensor", stages)
        if generating.cluster.num_ranks % decode.num_gpus:
            raise ValueError(
                f"job.generate_pipeline is {stages} and job.generate_tensor {job.generate_tensor}; a replica takes "
                f"{decode.num_gpus} GPUs, which have to divide the {generating.cluster.num_ranks} that generate"
            )
        tokens = _USUAL_TOKENS[job.generation_engine] if job.pass_tokens is None else job.pass_tokens
        two = _two_layouts(job, decode, tokens) if job.generation_engine == SEESAW else None
        return JobGeneration(decode, Batching(tokens, job.generation_engine == CHUNKED), two)

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self.decode.cost.cluster.num_ranks // self.decode.num_gpus

    @property
    def first(self) -> GenerationCost:
        """The layout that generation begins with."""
        return self.decode if self.two is None else self.two.prefill

    @property
    def kv_tokens(self) -> int:
        """The tokens that a micro-batch of a replica has room for, of which no sequence may have more."""
        return self.decode.batch_tokens

    def check_prompts(self, longest: int) -> None:
        """Refuses prompts for which host memory never has room, where they go by it.

        Raises:
            ValueError: the message names the key.
        """
        if self.two is not None:
            self.two.check_prompts(longest)

    def play(self, prompts: Ints, responses: Ints) -> Generation:
        """Plays generation from prompts, as of zbench.rollouts.generate.generate.

        Raises:
            ValueError: a sequence has no room.
        """
        if self.two is None:
            return generate(prompts, responses, self.decode, self.replicas, self.batching)
        return generate_by_seesaw(prompts, responses, [self.two], self.replicas)[0]


@dataclass(frozen=True)
class IterationGeneration:
    """The generation of an iteration, of every time that it generates from its prompts. seconds: of each replica,
    float64 [replicas]; before_last: until the last time begins. layouts: {} or, of the slowest replica, the seconds in
    which it reads prompts ("prefill"), decodes ("decode") and changes its layout ("change"), and how often ("changes").
    host_bytes: () or the most bytes in the memory of each node, int64 [nodes]."""

    seconds: Floats
    before_last: float
    layouts: Mapping[str, float]
    host_bytes: Ints

    @staticmethod
    def of(played: Generation, times: int, by: JobGeneration) -> "IterationGeneration":
        """Returns what comes of a generation that is made so often. by: what has played it."""
        if not isinstance(played, SeesawGeneration) or by.two is None:
            seconds = times * played.seconds
            return IterationGeneration(seconds, (times - 1) * float(played.seconds.max()), {}, np.zeros(0, np.int64))
        model, nodes = by.decode.cost.model, by.decode.cost.cluster.num_nodes
        back = float(played.back[played.seconds.argmax()])
        changed = {
            "prefill": times * played.prefill,
            "decode": times * played.decode,
            "change": times * played.reload + (times - 1) * back,
            "changes": times * played.reloads + (times - 1) * (back > 0),
        }
        kept = played.host_tokens.reshape(nodes, -1).sum(axis=1) * by.two.token_bytes
        return IterationGeneration(
            times * played.seconds + (times - 1) * played.back,
            (times - 1) * float((played.seconds + played.back).max()),
            changed,
            model.element_bytes * model.total_params + kept,
        )


def generating_cost(job: RolloutJob, cost: Cost) -> Cost:
    """Returns the cost model of the GPUs that generate. cost: of those that train the actor."""
    nodes = job.generate_nodes
    cluster = replace(cost.cluster, num_nodes=nodes) if nodes else cost.cluster
    return Cost(cluster=cluster, model=cost.model)


def _two_layouts(job: RolloutJob, decode: GenerationCost, tokens: int) -> SeesawCost:
    """Returns the cost model of a replica that reads prompts by a layout of its own.

    Raises:
        ValueError: there is no such layout, or a replica is on several nodes.
    """
    gpus, cluster, reads = decode.num_gpus, decode.cost.cluster, job.prefill_tensor or 1
    if cluster.gpus_per_node % gpus:
        raise ValueError(
            f"job.generation_engine is seesaw and a replica takes {gpus} GPUs; its weights come from the memory of its "
            f"node, so they have to divide cluster.gpus_per_node={cluster.gpus_per_node}"
        )
    if decode.cost.model.num_layers % (gpus // reads):
        raise ValueError(
            f"job.prefill_tensor is {reads}; prompts are then read by {gpus // reads} stages, which have to divide "
            f"num_layers={decode.cost.model.num_layers}"
        )
    prefill = GenerationCost(decode.cost, reads, job.memory_share, "job.prefill_tensor", gpus // reads)
    return SeesawCost(prefill, decode, HOST_BYTES if job.host_kv is None else job.host_kv, tokens, "job.host_kv")
