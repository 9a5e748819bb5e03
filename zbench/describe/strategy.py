"""The strategy by which a model is trained: sharding, recomputation, chunks of tokens, degrees of parallelism, how
exchanges of tensor-parallel groups and of experts go beside matmuls, choice of experts, the rounds in which workers
come together, and the job that training is a part of.

Each is a group of the command line with a yaml a choice (conf/sharding, ...), beside the model, as none of it is a
property of a model. The cost model reads most of it as fields of zbench.describe.model.Model, which a run sets
(`TrainingStrategy.model_fields`), so that one object says what a GPU has to hold and compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from zbench.describe.checks import (
    FEWEST,
    MOST,
    check_choice,
    check_chunk,
    check_offload_layers,
    check_offload_tokens,
    check_on_hosts,
    check_recompute_layers,
    check_stage_layers,
    check_whole_number,
)
from zbench.describe.degrees import NESTED, WORLD, ShardDegrees, degrees_of
from zbench.describe.layers.on_hosts import AS_GRADIENTS_COME, NOWHERE, HostUse
from zbench.describe.model import (
    ACTIVATIONS,
    AUTO,
    INPUTS,
    OFFLOAD,
    RECOMPUTE,
    SHARDING,
    WHOLE,
    WITH_INPUTS,
)
from zbench.describe.overlap import FLAT, LAYER, StepOverlap
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN, bracketed

STRATEGY_GROUPS = ("sharding", "recompute", "memory", "parallel", "overlap", "experts", "sync", "job")
# By field of a model: the group and the key that set it.
MODEL_FIELDS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "recompute": ("recompute", "granularity"),
    "recompute_layers": ("recompute", "layers"),
    "sharding": ("sharding", "strategy"),
    "mlp_chunk_tokens": ("memory", "mlp_chunk_tokens"),
    "loss_chunk_tokens": ("memory", "loss_chunk_tokens"),
    "offload": ("memory", "offload"),
    "offload_layers": ("memory", "offload_layers"),
    "offload_tokens": ("memory", "offload_tokens"),
    "optimizer_layers": ("memory", "optimizer_layers"),
    "parameter_layers": ("memory", "parameter_layers"),
    "host_updates": ("memory", "host_updates"),
    "carried_layers": ("memory", "carried_layers"),
    "tensor_parallel": ("parallel", "tensor_parallel"),
    "pipeline_parallel": ("parallel", "pipeline_parallel"),
    "stage_layers": ("parallel", "stage_layers"),
})  # fmt: skip

CHUNKED, FULL = "chunked", "full"  # of recomputation: with memory's chunks alone; all of a layer but its input
ADAPTIVE = "adaptive"  # for every batch the least with which it fits


@dataclass(frozen=True, slots=True)
class Sharding:
    """The part of parameters, gradients and optimizer state that every rank holds.

    strategy: as zbench.describe.model.Model has it, its sharding; "nested": by degrees, by name, as of
        zbench.describe.degrees.ShardDegrees, updates and reductions "flat" or "node" among them. window,
        gradient_bucket, collectives: what of its gathers and reductions is beside the layers' work, and whether they go
        in two levels, as zbench.describe.overlap.StepOverlap has them. bits: of values in transfers between degrees, by
        name, as of zbench.describe.degrees.TransferBits.
    """

    strategy: str
    window: int | str = 1
    gradient_bucket: int | float | str = LAYER
    degrees: Mapping[str, Any] | None = None
    bits: Mapping[str, Any] | None = None
    collectives: str = FLAT

    def __post_init__(self) -> None:
        check_choice("sharding.strategy", self.strategy, (*SHARDING, NESTED))
        for name, given in (("degrees", self.degrees), ("bits", self.bits)):
            if given is not None and self.strategy != NESTED:
                raise ValueError(
                    f"sharding.{name} is {dict(given)}; only sharding.strategy={NESTED} has {name}, and with "
                    f"{self.strategy} it takes null"
                )
        _ = self.overlap, self.of_model  # refuse what cannot be

    @property
    def of_model(self) -> str | ShardDegrees:
        """The sharding that a model has."""
        return ShardDegrees.of(self.degrees, self.bits) if self.strategy == NESTED else self.strategy

    @property
    def told(self) -> str:
        """The strategy, or of which degrees it is, for sentences."""
        cut = self.of_model
        return cut if isinstance(cut, str) else f"of degrees {cut.told}"

    @property
    def cuts_optimizer_over_all(self) -> bool:
        """Whether the optimizer's state is cut over all ranks, so that each parameter is updated in one place."""
        cut = self.of_model
        return cut in SHARDING[1:] if isinstance(cut, str) else cut.optimizer == WORLD

    @property
    def cuts_all_over_all(self) -> bool:
        """Whether parameters and the optimizer's state are cut over all ranks, so that each has its share of a layer,
        gathers the rest, and updates what it has."""
        cut = degrees_of(self.of_model)
        return cut.weights == cut.optimizer == WORLD

    @property
    def overlap(self) -> StepOverlap:
        """The gathers and reductions that are beside the layers' work."""
        return StepOverlap(self.window, self.gradient_bucket, collectives=self.collectives)


@dataclass(frozen=True, slots=True)
class Recompute:
    """The part of a layer's forward that runs again in its backward (beside attention's scores, which its kernels make
    again in any case).

    granularity: as zbench.describe.model.Model has it, its recompute; "adaptive": chosen for every batch
        (zbench.simulated.recomputation), of steps that are planned for "full". layers: of each stage, its first ones,
        one number for all stages or one for each, "all", or "auto": the number of which a step takes least time
        (zbench.simulated.host_layers).
    """

    granularity: str
    layers: int | str | Sequence[int] = ALL_LAYERS

    def __post_init__(self) -> None:
        check_choice("recompute.granularity", self.granularity, (*RECOMPUTE, ADAPTIVE))
        check_recompute_layers(self.layers)
        if self.is_adaptive and self.layers != ALL_LAYERS:
            raise ValueError(
                f"recompute.layers is {bracketed(self.layers)}; recompute.granularity={ADAPTIVE} chooses as many as it "
                f"takes, with {ALL_LAYERS}"
            )

    @property
    def is_adaptive(self) -> bool:
        """Whether it is chosen for every batch."""
        return self.granularity == ADAPTIVE

    @property
    def of_model(self) -> str:
        """The recomputation that a model has, for which batches are planned."""
        return FULL if self.is_adaptive else self.granularity


@dataclass(frozen=True, slots=True)
class TrainingMemory(HostUse):
    """The tokens that a GPU, or a tensor-parallel group, computes at a time where no token needs another one, and what
    waits in host memory.

    mlp_chunk_tokens: of the feed-forward; "whole": all of them. loss_chunk_tokens: of the head and the loss; "auto": as
        many as zbench.cost.loss has. Of chunks there are as few as can be, of about as many tokens each. All else as
        zbench.describe.model.Model has it.
    """

    mlp_chunk_tokens: int | str = WHOLE
    loss_chunk_tokens: int | str = WHOLE
    offload: str = NOWHERE
    offload_layers: int | str = ALL_LAYERS
    offload_tokens: float | str = ALL_LAYERS
    optimizer_layers: int | str = ALL_LAYERS
    parameter_layers: int | str = NOWHERE
    host_updates: str = AS_GRADIENTS_COME
    carried_layers: int | str = ALL_LAYERS

    def __post_init__(self) -> None:
        check_chunk("mlp_chunk_tokens", self.mlp_chunk_tokens, (WHOLE,))
        check_chunk("loss_chunk_tokens", self.loss_chunk_tokens, (WHOLE, AUTO))
        check_choice("memory.offload", self.offload, OFFLOAD)
        check_offload_layers(self.offload_layers, self.layers_on_hosts)
        check_offload_tokens(self.offload_tokens, self.offload_layers, self.layers_on_hosts)
        updates = self.host_updates, self.carried_layers
        check_on_hosts(self.optimizer_layers, self.parameter_layers, updates, self.optimizer_on_hosts)

    def check_offload(self, granularity: str, sharding: Sharding) -> None:
        """Refuses what cannot be in host memory. granularity: of recomputation.

        Raises:
            ValueError: it cannot; the message names the keys.
        """
        told = f"memory.offload is {self.offload} with"
        if self.offload in WITH_INPUTS and granularity != FULL:
            raise ValueError(
                f"{told} recompute.granularity {granularity}; a layer has to keep nothing but its input, so it takes "
                f"recompute={FULL}, or memory.offload={self.offload.replace(INPUTS, ACTIVATIONS)}, all that layers keep"
            )
        for key, value, other in (
            ("offload_layers", self.offload_layers, "a number"),
            ("offload_tokens", self.offload_tokens, "a share"),
        ):
            if value == FEWEST and granularity == ADAPTIVE:
                raise ValueError(
                    f"memory.{key} is {FEWEST} with recompute.granularity {ADAPTIVE}; one of both is chosen for the "
                    f"batch at hand, so it takes {ALL_LAYERS} or {other}"
                )
        if self.optimizer_on_hosts and not sharding.cuts_optimizer_over_all:
            raise ValueError(
                f"{told} sharding {sharding.told}; with it several hosts would update a parameter, and each has one "
                "that does, so it takes sharding=zero1, zero2, zero3, or degrees with optimizer: world"
            )
        if self.parameters_rest_on_hosts and not sharding.cuts_all_over_all:
            raise ValueError(
                f"memory.parameter_layers is {self.parameter_layers} with sharding {sharding.told}; a GPU brings its "
                f"share of a layer before it is gathered, a single GPU the whole layer, so it takes sharding="
                f"{SHARDING[-1]}, or degrees with weights and optimizer: world"
            )


@dataclass(frozen=True, slots=True)
class Parallel:
    """Degrees of parallelism beside data and context parallelism, which are the plans'.

    tensor_parallel: GPUs of a node that are one rank of a plan. pipeline_parallel: stages that the layers are divided
    over. expert_parallel: groups of GPUs that hold all experts of a layer together, some experts each.
    expert_tensor_parallel: GPUs of such a group, over which each of its experts is cut. stage_layers: how many layers
    each stage has, or "even".
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    stage_layers: str | Sequence[int] = EVEN

    def __post_init__(self) -> None:
        for name, degree in self.degrees.items():
            check_whole_number(f"parallel.{name}", degree, 1, MOST)
        check_stage_layers(self.stage_layers)

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees by key; stage_layers is none."""
        return {name: degree for name, degree in asdict(self).items() if name != "stage_layers"}

    @property
    def expert_gpus(self) -> int:
        """The GPUs that hold all experts of a layer together."""
        return self.expert_parallel * self.expert_tensor_parallel
