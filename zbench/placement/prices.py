"""The seconds and bytes of each model of a job with rollouts on so many GPUs, for every layout that it may have.

Updates and forwards are whole steps, built, proven and played (zbench.simulated). Generation has its own clock
(zbench.rollouts.generate), and so has the weights' way to it. Sequences are packed by predicted time into micro-batches
of at most `pack_tokens` a GPU, none is cut. Which layouts there are is said by zbench.placement.offers; here each part
of them is priced once, for all sets that want it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd
from typing import Any, TypeVar

import numpy as np

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.state import ADAM_BYTES
from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.job import RolloutJob
from zbench.describe.model import Model
from zbench.describe.rollouts.stages import ACTOR, IterationStages
from zbench.describe.units import with_noun
from zbench.placement.layout import StageTimes
from zbench.plans.alike import plan_digest
from zbench.plans.plan import Plan
from zbench.rollouts.generate import GenerationCost, generate
from zbench.rollouts.transition import job_transition
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.least.ceiling import step_ceiling_seconds
from zbench.simulator.steps.play import step_seconds
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.systems.mesh import Mesh

PACK_TOKENS = 16384  # of a micro-batch, a GPU: verl's default (actor.yaml, ppo_max_token_len_per_gpu)
SHARDINGS = ("zero3", "zero1")  # of models that are trained, that are tried unless others are said
TRAINED = ("zero1", "zero2", "zero3")  # that there are layouts of
T = TypeVar("T")
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class PlacedWork:
    """The work of an iteration. prompts, responses: int64 [sequences], tokens of each. updates: of every trained model,
    each on as large a part of the sequences. pack_tokens: of a micro-batch at most, a GPU."""

    prompts: Ints
    responses: Ints
    updates: int = 1
    pack_tokens: int = PACK_TOKENS

    def __post_init__(self) -> None:
        if self.updates > len(self.prompts):
            raise ValueError(
                f"updates is {self.updates}; there are {with_noun(len(self.prompts), 'sequence')}, so it takes at "
                "most that"
            )

    @property
    def lengths(self) -> Ints:
        """The tokens of every sequence, int64 [sequences]."""
        return self.prompts + self.responses

    @property
    def part(self) -> Ints:
        """The sequences of an update, for which all are taken to be alike: each `updates`-th by length."""
        return np.sort(self.lengths)[self.updates // 2 :: self.updates]


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model as it is trained, with its sharding and degrees, on so many GPUs, and the tokens of a micro-batch of a
    tensor-parallel group at most."""

    model: Model
    gpus: int
    most: int


@dataclass
class PlacementPrices:
    """The prices of a job's models on parts of a cluster. stages: of its algorithm. models: by what they are in it, as
    they are trained (their recomputation), whatever sharding and parallelism they have. trained: shardings that models
    may have which are. tell: is told what is being priced."""

    stages: IterationStages
    models: Mapping[str, Model]
    cluster: Cluster
    work: PlacedWork
    trained: Sequence[str] = SHARDINGS
    tell: Callable[[str], None] = field(default=lambda _: None)
    _known: dict[Key, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for model in self.models.values():
            if model.num_experts > 1 or model.tied_embeddings:
                told = f"num_experts={model.num_experts} and tied_embeddings={str(model.tied_embeddings).lower()}"
                raise ValueError(f"model {model.name} has {told}; placements take models with neither")

    @property
    def sizes(self) -> list[int]:
        """The numbers of GPUs that a set may have: whole nodes, or a node halved, once or several times."""
        each, nodes = self.cluster.gpus_per_node, self.cluster.num_nodes
        halved = [each >> times for times in range(1, each.bit_length()) if each % (1 << times) == 0]
        return [*reversed(halved), *(each * count for count in range(1, nodes + 1))]

    def is_trained(self, role: str) -> bool:
        """Returns whether a model is trained."""
        return role in self.stages.trains

    # -- what nothing beats -----------------------------------------------------------------------------------

    def keeps(self, role: str) -> float:
        """Returns the bytes that a model keeps on all GPUs together at least."""
        model = self.models[role]
        return model.total_params * (model.element_bytes + (GRADIENT_BYTES + ADAM_BYTES) * self.is_trained(role))

    def least(self, role: str, gpus: int) -> StageTimes:
        """Returns the seconds of each stage that no layout of a model on so many GPUs can beat: of its matmuls, spread
        evenly; for generation at least those of reading the weights for each word of the longest response."""
        model, work, device, stages = self.models[role], self.work, self.cluster.device, self.stages
        params, tokens = model.num_layers * model.layer_matmul_params, int(work.lengths.sum())
        forward = self.token_seconds(model) * tokens / gpus
        share = work.updates * float(work.part.sum()) / tokens * self.is_trained(role)
        generated = 0.0
        if role == ACTOR:
            read = (int(work.responses.max()) - 1) * model.element_bytes * params / device.copy_bandwidth
            computed = 2.0 * params * (tokens - len(work.lengths)) / (gpus * device.matmul_flops)
            generated = stages.generations * max(read / min(gpus, self.cluster.gpus_per_node), computed)
        return 0.0, generated, stages.reads(role) * forward, share * passes_of(model) * forward

    def token_seconds(self, model: Model) -> float:
        """Returns the seconds that a token's matmuls in all layers take a GPU at least."""
        device = self.cluster.device
        flops = device.peak_flops if device.matmul_by_tokens else device.matmul_flops
        return 2.0 * model.num_layers * model.layer_matmul_params / flops

    def least_update(self, of: PackedModel) -> float:
        """Returns the seconds that an update takes at least, by what is known of it so far: its ceiling, micro-batches,
        or price."""
        if played := self._known.get(("update", of)):
            return float(played[0])
        ceiling = self._once(("ceiling", of.model, of.gpus), partial(self._ceiling, of))
        return max(ceiling, passes_of(of.model) * self._least_matmuls(of, True))

    def least_forward(self, of: PackedModel) -> float:
        """Returns the seconds that scoring takes at least, as `least_update`."""
        played = self._known.get(("forward", of))
        return float(played[0]) if played else self._least_matmuls(of, False)

    def _ceiling(self, of: PackedModel) -> float:
        cost = self._cost(of)
        found = step_ceiling_seconds(Batch(self.work.part, 0, 0), cost, Simulated(cost).steps.parameters)
        assert found is not None, "models have no experts"
        return found

    def _least_matmuls(self, of: PackedModel, trains: bool) -> float:
        """Returns the seconds of a forward's matmuls on the busiest GPU of the last stage, and, where micro-batches are
        known, on the way of its first one through the stages before."""
        stages, lengths = of.model.pipeline_parallel, self._lengths(trains)
        each = self.token_seconds(of.model) / of.model.tensor_parallel / stages
        plans: tuple[Plan, ...] | None = self._known.get(("plans", of, trains))
        if plans is None or stages == 1:
            return each * float(lengths.sum()) * of.model.tensor_parallel * stages / of.gpus
        tokens = np.array([plan.tokens_per_rank for plan in plans])
        smallest = np.where(tokens > 0, tokens, tokens.max()).min(axis=0)
        return each * float((tokens.sum(axis=0) + (stages - 1) * smallest).max())

    # -- prices -----------------------------------------------------------------------------------------------

    def pack(self, of: PackedModel, trains: bool) -> tuple[Plan, ...]:
        """Returns the plans of an update's sequences, or of all that are scored, a micro-batch each."""

        def made() -> tuple[Plan, ...]:
            lengths = self._lengths(trains)
            most = max(of.most, int(lengths.max()))
            return Mesh(self._cost(of), "ring", 1, "balanced", most).plan(Batch(lengths, 0, 0))

        return self._once(("plans", of, trains), made)

    def forward(self, of: PackedModel) -> tuple[float, float]:
        """Returns the seconds and the fullest GPU's bytes of scoring all sequences."""
        return self._once(("forward", of), lambda: self._played(of, False))

    def update(self, of: PackedModel) -> tuple[float, float]:
        """Returns the seconds and the fullest GPU's bytes of an update."""
        return self._once(("update", of), lambda: self._played(of, True))

    def generation(self, of: GenerationCost, gpus: int) -> float:
        """Returns the seconds in which the replicas of so many GPUs generate all responses."""

        def played() -> float:
            found = generate(self.work.prompts, self.work.responses, of, gpus // of.num_gpus)
            return self.stages.generations * float(found.seconds.max())

        return self._once(_generation_key(of, gpus), played)

    def known_generation(self, of: GenerationCost, gpus: int) -> float | None:
        """Returns the price of generation if it was made before; None: it was not."""
        return self._known.get(_generation_key(of, gpus))

    def reshard(self, of: PackedModel, tensor: int) -> float:
        """Returns the seconds of the weights' way to generation by slices. Where groups of a node, or of one node of
        every stage, gather, all nodes of a stage are alike; where all GPUs gather, it does not matter what they
        generate with, nor whether shards are of a stage's layers or of all: each GPU has as much."""
        model, each = of.model, self.cluster.gpus_per_node
        if inside := model.sharding != "zero3" and model.tensor_parallel * model.pipeline_parallel > 1:
            own = min(of.gpus, each * model.pipeline_parallel)
        else:
            own, tensor, model = of.gpus, 1, replace(model, tensor_parallel=1, pipeline_parallel=1)
        job, cost = RolloutJob("grpo", generate_tensor=tensor), Cost(cluster=self.part_of(own), model=model)
        return self._once(("reshard", inside, model, own, tensor), lambda: job_transition(job, cost, cost).seconds)

    def _lengths(self, trains: bool) -> Ints:
        """Returns the sequences of an update, or of all that are scored."""
        return self.work.part if trains else self.work.lengths

    def _played(self, of: PackedModel, trains: bool) -> tuple[float, float]:
        told = f"{of.model.name}, tensor {of.model.tensor_parallel}, stages {of.model.pipeline_parallel}"
        self.tell(f"{told}, {of.model.sharding} on {with_noun(of.gpus, 'GPU')}")
        cost, plans = self._cost(of), self.pack(of, trains)

        def played() -> tuple[float, float]:
            steps = Simulated(cost).steps
            step = steps.of(Batch(self._lengths(trains), 0, 0), plans) if trains else steps.forwards(plans)
            parts = StepParts(step, plans_of_layouts(plans), cost.gpus)
            return step_seconds(parts), float(step_memory(parts).peak[: of.gpus].max())

        # Another limit of a micro-batch's tokens often comes to the same micro-batches.
        return self._once(("played", trains, of.model, of.gpus, *map(plan_digest, plans)), played)

    def _cost(self, of: PackedModel) -> Cost:
        return make_cost(self.part_of(of.gpus), of.model, False, True)

    def part_of(self, gpus: int) -> Cluster:
        """Returns a part of the cluster: so many nodes, or so many GPUs of one."""
        each = self.cluster.gpus_per_node
        if gpus % each == 0:
            return replace(self.cluster, num_nodes=gpus // each)
        return replace(
            self.cluster, num_nodes=1, gpus_per_node=gpus, nics_per_node=gcd(gpus, self.cluster.nics_per_node)
        )

    def _once(self, key: Key, price: Callable[[], T]) -> T:
        """Returns a price, which is made once."""
        if key not in self._known:
            self._known[key] = price()
        found: T = self._known[key]
        return found


def _generation_key(of: GenerationCost, gpus: int) -> Key:
    """Returns what the price of generation is known by."""
    return "generation", of.tensor, of.pipeline, of.memory_share, gpus


def passes_of(model: Model) -> int:
    """Returns how many forwards' matmuls a training step has."""
    return 4 if model.recompute == "full" else 3
