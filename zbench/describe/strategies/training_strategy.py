"""The groups of a training strategy together: which of their choices cannot stand beside each other, and what they set
of a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zbench.describe.checks import CHOSEN
from zbench.describe.degrees import NESTED
from zbench.describe.exchanges import NONE, ExchangeOverlap
from zbench.describe.expert_schedule import FLAT, PLANNED, SEQUENTIAL, Experts
from zbench.describe.job import TRAINING, RolloutJob
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AFTER_BACKWARD, AS_GRADIENTS_COME
from zbench.describe.model import NONE as NOWHERE
from zbench.describe.model import RECOMPUTE, WHOLE
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, bracketed
from zbench.describe.strategy import (
    ADAPTIVE,
    CHUNKED,
    FULL,
    MODEL_FIELDS,
    Parallel,
    Recompute,
    Sharding,
    TrainingMemory,
)
from zbench.describe.sync import EVERY, RoundSync


@dataclass(frozen=True, slots=True)
class TrainingStrategy:
    """The groups together, one part each."""

    sharding: Sharding
    recompute: Recompute
    memory: TrainingMemory
    parallel: Parallel
    overlap: ExchangeOverlap
    experts: Experts
    sync: RoundSync = EVERY
    job: RolloutJob = TRAINING

    def __post_init__(self) -> None:
        self._check_job()
        method = self.overlap.method
        if method != NONE and self.parallel.tensor_parallel == 1:
            raise ValueError(
                f"overlap.method is {method}; with parallel.tensor_parallel=1 no group exchanges anything, so it takes "
                f"{NONE}, or parallel=tp2, tp4 or tp8 beside it in executor=simulated, torch or desk"
            )
        experts = self.experts
        for name, value, usual in (
            ("schedule", experts.schedule, SEQUENTIAL),
            ("dispatch", experts.dispatch, FLAT),
            ("homes", experts.homes, PLANNED),
        ):
            if value != usual and self.parallel.expert_gpus == 1:
                raise ValueError(
                    f"experts.{name} is {value}; with parallel.expert_parallel=1 no token is sent to an expert, so it "
                    f"takes {usual}, or, with experts, parallel.expert_parallel above 1 (or expert_tensor_parallel)"
                )
        if self.recompute.granularity == CHUNKED and self.memory.mlp_chunk_tokens == WHOLE:
            raise ValueError(
                f"recompute.granularity is {CHUNKED} and memory.mlp_chunk_tokens {WHOLE}; {CHUNKED} takes chunks of "
                "tokens, as in memory=chunks or memory.mlp_chunk_tokens=4096"
            )
        layers = self.recompute.layers
        if experts.exchanges.reduces_between and not isinstance(layers, str):
            raise ValueError(
                f"recompute.layers is {bracketed(layers)}; with experts.gradients={experts.gradients} those of a layer "
                f"go between experts' messages of the next one, which is like it, so it takes {ALL_LAYERS} or {CHOSEN}"
            )
        self.memory.check_offload(self.recompute.granularity, self.sharding)
        if self.sync.in_rounds:
            self._check_rounds()
        if self.recompute.is_adaptive and (self.sync.in_rounds or self.job.has_rollouts):
            beside = "job=rlhf" if self.job.has_rollouts else f"sync={self.sync.method}"
            raise ValueError(
                f"recompute.granularity is {ADAPTIVE}; with {beside} it takes {', '.join(RECOMPUTE[:-1])} or {FULL}"
            )

    def _check_rounds(self) -> None:
        """Refuses what workers that train apart cannot have.

        Raises:
            ValueError: the message names the key of the other group.
        """
        sync, experts = f"sync={self.sync.method}", self.experts
        if experts.homes != PLANNED:
            raise ValueError(
                f"experts.homes is {experts.homes}; with {sync} tokens live where each worker's planner has them, so "
                f"it takes {PLANNED}"
            )
        if self.sharding.strategy == NESTED:
            raise ValueError(
                f"sharding is {self.sharding.told}; with {sync} each worker cuts its own parameters, so it takes none, "
                "zero1, zero2 or zero3"
            )
        memory = self.memory
        for key, value in (("optimizer", memory.optimizer_layers), ("parameter", memory.parameter_layers)):
            if value == CHOSEN:
                raise ValueError(
                    f"memory.{key}_layers is {value}; with {sync} each worker has a step and host memory of its own, "
                    f"and such numbers are chosen by a step of all GPUs, so it takes a number or {ALL_LAYERS}"
                )
        if memory.optimizer_on_hosts and memory.host_updates == ACROSS_STEPS:
            raise ValueError(
                f"memory.host_updates is {memory.host_updates}; with {sync} a round's average is of parameters that "
                f"all of its steps have updated, so it takes {AS_GRADIENTS_COME} or {AFTER_BACKWARD}"
            )

    def _check_job(self) -> None:
        """Refuses rollouts with what their iterations have no stages of.

        Raises:
            ValueError: the message names the key of the other group.
        """
        if not self.job.has_rollouts:
            return
        strategy = self.sharding.told
        unnested = strategy if self.sharding.strategy != NESTED else "none, zero1, zero2 or zero3"
        for name, value, usual in (
            ("sync", self.sync.method, EVERY.method),
            ("sharding", strategy, unnested),
            ("parallel.pipeline_parallel", self.parallel.pipeline_parallel, 1),
            ("parallel.expert_parallel", self.parallel.expert_parallel, 1),
            ("parallel.expert_tensor_parallel", self.parallel.expert_tensor_parallel, 1),
            ("memory.offload", self.memory.offload, NOWHERE),
            ("memory.parameter_layers", self.memory.parameter_layers, NOWHERE),
            ("overlap.slices", self.overlap.slices, self.overlap.count),
        ):
            if value != usual:
                raise ValueError(f"{name} is {value}; with job=rlhf it takes {usual}")

    @property
    def model_fields(self) -> Mapping[str, Any]:
        """The fields of a model that the groups set."""
        found = {name: getattr(getattr(self, group), key) for name, (group, key) in MODEL_FIELDS.items()}
        return found | {"sharding": self.sharding.of_model, "recompute": self.recompute.of_model}
