"""The strategy by which a model is trained: sharding, recomputation, chunks of tokens, degrees of parallelism, how
exchanges of tensor-parallel groups and of experts go beside matmuls, choice of experts, the rounds in which workers
come together, and the job that training is a part of.

Each is a group of the command line with a yaml a choice (conf/sharding, ...), beside the model, as none of it is a
property of a model. The cost model reads most of it as fields of zbench.describe.model.Model, which a run sets
(`TrainingStrategy.model_fields`), so that one object says what a GPU has to hold and compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from types import MappingProxyType
from typing import Any

from zbench.describe.checks import (
    MOST,
    check_choice,
    check_chunk,
    check_recompute_layers,
    check_stage_layers,
    check_whole_number,
)
from zbench.describe.degrees import NESTED, ShardDegrees
from zbench.describe.exchanges import COMMFUSE, NONE, QUERY_SPLIT, RING, TOKENS, ExchangeOverlap
from zbench.describe.expert_schedule import DRAWN, DROPLESS, FLAT, PLANNED, SEQUENTIAL, WITH_LAYER, ZIPF, Experts
from zbench.describe.job import TRAINING, RolloutJob
from zbench.describe.model import AUTO, BOTH, INPUTS, OFFLOAD, OPTIMIZER, RECOMPUTE, SHARDING, WHOLE
from zbench.describe.model import NONE as NOWHERE
from zbench.describe.overlap import LAYER, StepOverlap
from zbench.describe.pipeline.staged_layers import (
    ALL_LAYERS,
    EVEN,
    bracketed,
)
from zbench.describe.sync import EVERY, RoundSync

STRATEGY_GROUPS = ("sharding", "recompute", "memory", "parallel", "overlap", "experts", "sync", "job")
# By field of a model: the group and the key that set it.
MODEL_FIELDS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "recompute": ("recompute", "granularity"),
    "recompute_layers": ("recompute", "layers"),
    "sharding": ("sharding", "strategy"),
    "mlp_chunk_tokens": ("memory", "mlp_chunk_tokens"),
    "loss_chunk_tokens": ("memory", "loss_chunk_tokens"),
    "offload": ("memory", "offload"),
    "tensor_parallel": ("parallel", "tensor_parallel"),
    "pipeline_parallel": ("parallel", "pipeline_parallel"),
    "stage_layers": ("parallel", "stage_layers"),
})  # fmt: skip

_JOB = tuple(one.name for one in fields_of(RolloutJob))
_SYNC = tuple(one.name for one in fields_of(RoundSync) if one.name != "method")


CHUNKED, FULL = "chunked", "full"  # of recomputation: with memory's chunks alone; all of a layer but its input
ADAPTIVE = "adaptive"  # for every batch the least with which it fits


@dataclass(frozen=True, slots=True)
class Sharding:
    """The part of parameters, gradients and optimizer state that every rank holds.

    strategy: as zbench.describe.model.Model has it, its sharding; "nested": by degrees, by name, as of
        zbench.describe.degrees.ShardDegrees, updates and reductions "flat" or "node" among them. window,
        gradient_bucket: what of its gathers and reductions is beside the layers' work, as
        zbench.describe.overlap.StepOverlap has them. bits: of values in transfers between degrees, by name, as of
        zbench.describe.degrees.TransferBits.
    """

    strategy: str
    window: int | str = 1
    gradient_bucket: int | float | str = LAYER
    degrees: Mapping[str, Any] | None = None
    bits: Mapping[str, Any] | None = None

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
    def overlap(self) -> StepOverlap:
        """The gathers and reductions that are beside the layers' work."""
        return StepOverlap(self.window, self.gradient_bucket)


@dataclass(frozen=True, slots=True)
class Recompute:
    """The part of a layer's forward that runs again in its backward (beside attention's scores, which its kernels make
    again in any case).

    granularity: as zbench.describe.model.Model has it, its recompute; "adaptive": chosen for every batch
        (zbench.simulated.recomputation), of steps that are planned for "full". layers: of each stage, its first ones,
        one number for all stages or one for each, or "all".
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
class TrainingMemory:
    """The tokens that a GPU, or a tensor-parallel group, computes at a time where no token needs another one, and what
    waits in host memory.

    mlp_chunk_tokens: of the feed-forward; "whole": all of them. loss_chunk_tokens: of the head and the loss; "auto": as
        many as zbench.cost.loss has. Of chunks there are as few as can be, of about as many tokens each. offload: as
        zbench.describe.model.Model has it.
    """

    mlp_chunk_tokens: int | str = WHOLE
    loss_chunk_tokens: int | str = WHOLE
    offload: str = NOWHERE

    def __post_init__(self) -> None:
        check_chunk("mlp_chunk_tokens", self.mlp_chunk_tokens, (WHOLE,))
        check_chunk("loss_chunk_tokens", self.loss_chunk_tokens, (WHOLE, AUTO))
        check_choice("memory.offload", self.offload, OFFLOAD)

    def check_offload(self, granularity: str, stages: int, sharding: str) -> None:
        """Refuses what cannot be in host memory. granularity: of recomputation; stages: of a pipeline; sharding: its
        strategy.

        Raises:
            ValueError: it cannot; the message names the keys.
        """
        if self.offload in (INPUTS, BOTH) and (granularity, stages) != (FULL, 1):
            raise ValueError(
                f"memory.offload is {self.offload} with recompute.granularity {granularity} and "
                f"parallel.pipeline_parallel {stages}; a layer keeps nothing but its input, and all layers are on all "
                f"GPUs, with {FULL} and 1"
            )
        if self.offload in (OPTIMIZER, BOTH) and (stages != 1 or sharding not in SHARDING[1:]):
            raise ValueError(
                f"memory.offload is {self.offload} with sharding {sharding} and parallel.pipeline_parallel {stages}; "
                "each parameter's optimizer state is in one host's memory, and all layers are on all GPUs, with zero1, "
                "zero2 or zero3 and 1"
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
                f"{NONE}, or parallel=tp2, tp4 or tp8 beside it"
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
        stages = self.parallel.pipeline_parallel
        self.memory.check_offload(self.recompute.granularity, stages, self.sharding.strategy)
        for name in ("mlp_chunk_tokens", "loss_chunk_tokens"):
            tokens = getattr(self.memory, name)
            if method != NONE and tokens not in (WHOLE, AUTO):
                raise ValueError(
                    f"memory.{name} is {tokens} and overlap.method {method}, which cuts tokens its own way; beside it "
                    f"memory.{name} takes {WHOLE}"
                )

        for key, degree in self.parallel.degrees.items() if self.sync.in_rounds else ():
            if degree > 1:
                raise ValueError(
                    f"parallel.{key} is {degree}; with sync={self.sync.method} a worker's GPUs share "
                    "its sequences and shards alone, so it takes 1"
                )
        if self.sync.in_rounds and self.experts.routing != DRAWN:
            raise ValueError(
                f"experts.routing is {self.experts.routing}; with sync={self.sync.method} workers have steps of their "
                f"own, in which experts are drawn, so it takes {DRAWN}"
            )
        if self.sync.in_rounds and self.sharding.strategy == NESTED:
            raise ValueError(
                f"sharding is {NESTED}; with sync={self.sync.method} each worker cuts its own parameters, so it takes "
                "none, zero1, zero2 or zero3"
            )
        if self.recompute.is_adaptive and (self.sync.in_rounds or self.job.has_rollouts):
            beside = "job=rlhf" if self.job.has_rollouts else f"sync={self.sync.method}"
            raise ValueError(
                f"recompute.granularity is {ADAPTIVE}; with {beside} it takes {', '.join(RECOMPUTE[:-1])} or {FULL}"
            )
        if self.sync.in_rounds and self.memory.offload != NOWHERE:
            raise ValueError(
                f"memory.offload is {self.memory.offload}; with sync={self.sync.method} workers share a node's host "
                f"memory, so it takes {NOWHERE}"
            )

    def _check_job(self) -> None:
        """Refuses rollouts with what their iterations have no stages of.

        Raises:
            ValueError: the message names the key of the other group.
        """
        if not self.job.has_rollouts:
            return
        strategy = self.sharding.strategy
        unnested = strategy if strategy != NESTED else "none, zero1, zero2 or zero3"
        for name, value, usual in (
            ("sync", self.sync.method, EVERY.method),
            ("sharding.strategy", strategy, unnested),
            ("parallel.pipeline_parallel", self.parallel.pipeline_parallel, 1),
            ("parallel.expert_parallel", self.parallel.expert_parallel, 1),
            ("parallel.expert_tensor_parallel", self.parallel.expert_tensor_parallel, 1),
            ("memory.offload", self.memory.offload, NOWHERE),
            ("overlap.slices", self.overlap.slices, self.overlap.count),
        ):
            if value != usual:
                raise ValueError(f"{name} is {value}; with job=rlhf it takes {usual}")

    @property
    def model_fields(self) -> Mapping[str, Any]:
        """The fields of a model that the groups set."""
        found = {name: getattr(getattr(self, group), key) for name, (group, key) in MODEL_FIELDS.items()}
        return found | {"sharding": self.sharding.of_model, "recompute": self.recompute.of_model}


def typed_key(field: str) -> str:
    """Returns how a field of a model is set on a command line: a group's choice by the group's name, as in
    sharding=zero1, a degree by its key, as in parallel.tensor_parallel=2, others as the model's own."""
    group, key = MODEL_FIELDS.get(field, ("model", field))
    return group if group == field else f"{group}.{key}"


def strategy_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a configuration's groups say, by the words that tables have for it: fields of a model by their
    names, other keys dotted."""
    later = {"recompute": {"layers": ALL_LAYERS, **config["recompute"]}}  # configurations from before have none
    later |= {"parallel": {"stage_layers": EVEN, **config["parallel"]}}
    found = {field: bracketed({**config, **later}[group][key]) for field, (group, key) in MODEL_FIELDS.items()}
    if found["sharding"] == NESTED:
        found["sharding"] = str(ShardDegrees.of(*(config["sharding"].get(name) for name in ("degrees", "bits"))))
    found |= {key: config["parallel"].get(key, 1) for key in ("expert_parallel", "expert_tensor_parallel")}
    usual: int | str
    for key, usual in (("window", 1), ("gradient_bucket", LAYER)):
        found[f"sharding.{key}"] = config["sharding"].get(key, usual)
    exchanges = config["overlap"]
    found["overlap"], found["overlap.slices"] = exchanges["method"], exchanges.get("slices", 1)
    free = exchanges["method"] in (COMMFUSE, QUERY_SPLIT)  # else no choice
    found["overlap.transfers"] = exchanges["transfers"] if free else RING
    found["overlap.balance"] = exchanges.get("balance", TOKENS)
    experts = config["experts"]
    schedule = {"experts": experts.get("schedule", SEQUENTIAL), "experts.degree": experts.get("degree", 1)}
    schedule |= {"experts.capacity": experts.get("capacity", DROPLESS), "experts.padded": experts.get("padded", False)}
    schedule |= {"experts.dispatch": experts.get("dispatch", FLAT), "experts.routing": experts.get("routing", DRAWN)}
    schedule |= {
        "experts.gradients": experts.get("gradients", WITH_LAYER),
        "experts.homes": experts.get("homes", PLANNED),
    }
    law = {"experts.popularity": experts.get("popularity", ZIPF), "experts.drift": experts.get("drift", 1)}
    found |= schedule | {"experts.skew": experts["skew"]} | law
    found |= {f"sync.{key}": _sync(config)[key] for key in _SYNC} | {"sync": _sync(config)["method"]}
    job = asdict(TRAINING) | dict(config["job"])
    return found | {f"job.{key}": job[key] for key in _JOB}


def _sync(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the keys of a configuration's rounds, those that it leaves out as they usually are."""
    return asdict(EVERY) | dict(config["sync"])


def with_model_fields(config: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration's groups, plain, with other values of a model's fields; those that no group sets are for
    its model."""
    made = {group: dict(config[group]) for group in (*STRATEGY_GROUPS, "model")}
    for field, value in fields.items():
        group, key = MODEL_FIELDS.get(field, ("model", field))
        made[group][key] = value
        if field == "recompute":
            made[group].pop("layers", None)  # of the recomputation that it had
        if field == "sharding":
            for name in ("degrees", "bits"):  # of the strategy that it had
                made[group].pop(name, None)
    return made
