"""The seconds and bytes of each model of a job with rollouts on so many GPUs, for every layout that it may have.

Whole steps are built, proven and played (zbench.simulated): updates of the models that are trained, forwards of those
that score. Generation has its own clock (zbench.rollouts.generate), and so has the weights' way to it. Sequences are
packed by predicted time into micro-batches of at most `pack_tokens` a GPU, none is cut, and a layout is a degree of
tensor parallelism inside nodes and a sharding over all GPUs of the set: pipelines have no layouts here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd
from typing import TypeVar

import numpy as np

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory import ADAM_BYTES
from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.job import ACTOR, IterationStages, RolloutJob
from zbench.describe.model import CUT_BY_SLICES, Model
from zbench.placement.mapping import ModelLayout, StageTimes
from zbench.rollouts.generate import GenerationCost, generate
from zbench.rollouts.transition import job_transition
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.play import PlayedStep, play_step
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.systems.mesh import Mesh

PACK_TOKENS = 16384  # of a micro-batch, a GPU: verl's default (actor.yaml, ppo_max_token_len_per_gpu)
SHARES = (0.9, 0.75, 0.6, 0.45, 0.3)  # of a GPU's memory for generation that are tried: a judgement
SHARDINGS, SCORING = ("zero3", "zero1"), ("zero3", "none")  # of models that are trained, and of others
T = TypeVar("T")


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
                f"updates is {self.updates}; there are {len(self.prompts)} sequences, so it takes at most that"
            )

    @property
    def lengths(self) -> Ints:
        """The tokens of every sequence, int64 [sequences]."""
        return self.prompts + self.responses

    @property
    def part(self) -> Ints:
        """The sequences of an update, for which all are taken to be alike: each `updates`-th by length."""
        return np.sort(self.lengths)[self.updates // 2 :: self.updates]


@dataclass
class PlacementPrices:
    """The prices of a job's models on parts of a cluster. stages: of its algorithm. models: by what they are in it, as
    they are trained (their recomputation), whatever sharding and tensor parallelism they have."""

    stages: IterationStages
    models: Mapping[str, Model]
    cluster: Cluster
    work: PlacedWork
    trained: Sequence[str] = SHARDINGS
    _known: dict[tuple[object, ...], object] = field(default_factory=dict, init=False, repr=False)

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

    def keeps(self, role: str) -> float:
        """Returns the bytes that a model keeps on all GPUs together at least."""
        model = self.models[role]
        return model.total_params * (model.element_bytes + (GRADIENT_BYTES + ADAM_BYTES) * self._is_trained(role))

    def least(self, role: str, gpus: int) -> StageTimes:
        """Returns the seconds of each stage that no layout of a model on so many GPUs can beat: of its matmuls, spread
        evenly; for generation at least those of reading the weights for each word of the longest response."""
        model, work, device, stages = self.models[role], self.work, self.cluster.device, self.stages
        params, tokens = model.num_layers * model.layer_matmul_params, int(work.lengths.sum())
        forward = 2.0 * params * tokens / gpus / (device.peak_flops if device.matmul_by_tokens else device.matmul_flops)
        share = work.updates * float(work.part.sum()) / tokens * self._is_trained(role)
        generated = 0.0
        if role == ACTOR:
            read = (int(work.responses.max()) - 1) * model.element_bytes * params / device.copy_bandwidth
            computed = 2.0 * params * (tokens - len(work.lengths)) / (gpus * device.matmul_flops)
            generated = stages.generations * max(read / min(gpus, self.cluster.gpus_per_node), computed)
        passes = 4 if model.recompute == "full" else 3
        return 0.0, generated, stages.reads(role) * forward, share * passes * forward

    def layouts(self, role: str, gpus: int) -> tuple[ModelLayout, ...]:
        """Returns every layout of a model on so many GPUs that has room by itself."""
        return self._once(("layouts", role, gpus), lambda: tuple(self._layouts(role, gpus)))

    def _layouts(self, role: str, gpus: int) -> Iterator[ModelLayout]:
        model, trained, reads = self.models[role], self._is_trained(role), self.stages.reads(role)
        memory = self.cluster.device.memory_bytes
        for sharding in self.trained if trained else SCORING:
            for tensor in self._degrees(model, gpus):
                laid = replace(model, tensor_parallel=tensor, sharding=sharding)  # type: ignore[arg-type]
                kept = self._kept(laid, gpus, trained)
                if kept > memory:
                    continue
                score, train, extra = 0.0, 0.0, 0.0
                if reads:
                    seconds, peak = self._forward(laid, gpus)
                    score, extra = reads * seconds, max(extra, peak - kept)
                if trained:
                    seconds, peak = self._update(laid, gpus)
                    train, extra = self.work.updates * seconds, max(extra, peak - kept)
                words = f"{'' if tensor == 1 else f'tensor {tensor}, '}{sharding}"
                if role != ACTOR:
                    yield ModelLayout(kept, extra, (0.0, 0.0, score, train), words)
                    continue
                for each, share, seconds in self._generations(laid, gpus):
                    if sharding == "zero3" or tensor == 1 or tensor % each == 0:
                        moved = self._reshard(laid, gpus, each)
                        told = f"{words}; generates with {each} GPU{'s' * (each > 1)} and {share} of memory"
                        most = max(extra, share * memory)
                        yield ModelLayout(kept, most, (moved, seconds, score, train), told)

    def _generations(self, model: Model, gpus: int) -> Iterator[tuple[int, float, float]]:
        """Yields (GPUs of a replica, share of memory, seconds) for which all sequences have room."""
        work, device = self.work, self.cluster.device
        token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.element_bytes
        needed = model.element_bytes * model.total_params + token * int(work.lengths.max())
        for each in self._degrees(model, gpus):
            for share in SHARES:
                if needed < share * each * device.memory_bytes:
                    key = ("generation", replace(model, tensor_parallel=1, sharding="none"), gpus, each, share)
                    yield each, share, self._once(key, partial(self._generated, model, gpus, each, share))

    def _generated(self, model: Model, gpus: int, each: int, share: float) -> float:
        of = GenerationCost(Cost(cluster=self._part(gpus), model=model), each, share)
        played = generate(self.work.prompts, self.work.responses, of, gpus // each)
        return self.stages.generations * float(played.seconds.max())

    def _reshard(self, model: Model, gpus: int, each: int) -> float:
        """Returns the seconds of the weights' way to generation. Where groups of a node gather, nodes are alike; where
        all GPUs gather, it does not matter what they generate with."""
        inside = model.tensor_parallel > 1 and model.sharding != "zero3"
        own, tensor = (min(gpus, self.cluster.gpus_per_node), each) if inside else (gpus, 1)
        job, cost = RolloutJob("grpo", generate_tensor=tensor), Cost(cluster=self._part(own), model=model)
        key = ("reshard", model if inside else replace(model, tensor_parallel=1), own, tensor)
        return self._once(key, lambda: job_transition(job, cost, cost).seconds)

    def _forward(self, model: Model, gpus: int) -> tuple[float, float]:
        """Returns the seconds and the fullest GPU's bytes of scoring all sequences."""
        return self._once(("forward", model, gpus), lambda: self._played(model, gpus, self.work.lengths, True))

    def _update(self, model: Model, gpus: int) -> tuple[float, float]:
        """Returns the seconds and the fullest GPU's bytes of an update."""
        return self._once(("update", model, gpus), lambda: self._played(model, gpus, self.work.part, False))

    def _played(self, model: Model, gpus: int, lengths: Ints, forward: bool) -> tuple[float, float]:
        cost = make_cost(self._part(gpus), model, False, True)
        most = max(self.work.pack_tokens * model.tensor_parallel, int(lengths.max()))
        batch = Batch(lengths, 0, 0)
        plans, steps = Mesh(cost, "ring", 1, "balanced", most).plan(batch), Simulated(cost).steps
        step = steps.forwards(plans) if forward else steps.of(batch, plans)
        played: PlayedStep = play_step(step, plans_of_layouts(plans), cost.gpus)
        return played.seconds, float(played.memory.peak[:gpus].max())

    def _kept(self, model: Model, gpus: int, trained: bool) -> float:
        """Returns the bytes that a model keeps on every GPU: weights and gradients in slices, and the optimizer's state
        over all GPUs, or all of it over all GPUs."""
        cut = gpus if model.sharding == "zero3" else model.tensor_parallel
        held = (model.element_bytes + GRADIENT_BYTES * trained) / cut
        return model.total_params * (held + ADAM_BYTES * trained / gpus)

    def _degrees(self, model: Model, gpus: int) -> list[int]:
        """Lists the degrees of tensor parallelism inside a node that the model can be cut by."""
        most = min(gpus, self.cluster.gpus_per_node)
        sizes = [most, *(getattr(model, name) for name in CUT_BY_SLICES)]
        return [one for one in range(1, most + 1) if not any(size % one for size in sizes)]

    def _part(self, gpus: int) -> Cluster:
        """Returns a part of the cluster: so many nodes, or so many GPUs of one."""
        each = self.cluster.gpus_per_node
        if gpus % each == 0:
            return replace(self.cluster, num_nodes=gpus // each)
        return replace(
            self.cluster, num_nodes=1, gpus_per_node=gpus, nics_per_node=gcd(gpus, self.cluster.nics_per_node)
        )

    def _is_trained(self, role: str) -> bool:
        return role in self.stages.trains

    def _once(self, key: tuple[object, ...], price: Callable[[], T]) -> T:
        """Returns a price, which is made once."""
        if key not in self._known:
            self._known[key] = price()
        return self._known[key]  # type: ignore[return-value]
