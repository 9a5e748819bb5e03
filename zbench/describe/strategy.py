"""The strategy by which a model is trained: sharding, recomputation, degrees of parallelism, how exchanges of
tensor-parallel groups go beside matmuls, choice of experts, and the rounds in which workers come together.

Each is a group of the command line with a yaml a choice (conf/sharding, ...), beside the model, as none of it is a
property of a model. The cost model reads most of it as fields of zbench.describe.model.Model, which a run sets
(`TrainingStrategy.model_fields`), so that one object says what a GPU has to hold and compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from zbench.describe.checks import check_whole_number
from zbench.describe.exchanges import COMMFUSE, NONE, RING, ExchangeOverlap
from zbench.describe.model import MOST, RECOMPUTE, SHARDING
from zbench.describe.overlap import LAYER, StepOverlap
from zbench.describe.sync import EVERY, RoundSync

STRATEGY_GROUPS = ("sharding", "recompute", "parallel", "overlap", "experts", "sync")
# By field of a model: the group and the key that set it.
MODEL_FIELDS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "recompute": ("recompute", "granularity"),
    "sharding": ("sharding", "strategy"),
    "tensor_parallel": ("parallel", "tensor_parallel"),
    "pipeline_parallel": ("parallel", "pipeline_parallel"),
})  # fmt: skip

_SYNC = ("steps", "worker", "lr", "momentum", "penalty", "penalty_constant", "clip")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it takes {', '.join(choices[:-1])} or {choices[-1]}")


@dataclass(frozen=True, slots=True)
class Sharding:
    """The part of parameters, gradients and optimizer state that every rank holds.

    strategy: as zbench.describe.model.Model has it, its sharding. window, gradient_bucket: what of its gathers and
        reductions is beside the layers' work, as zbench.describe.overlap.StepOverlap has them.
    """

    strategy: str
    window: int | str = 1
    gradient_bucket: int | float | str = LAYER

    def __post_init__(self) -> None:
        _check_choice("sharding.strategy", self.strategy, SHARDING)
        _ = self.overlap  # refuses what cannot be

    @property
    def overlap(self) -> StepOverlap:
        """The gathers and reductions that are beside the layers' work."""
        return StepOverlap(self.window, self.gradient_bucket)


@dataclass(frozen=True, slots=True)
class Recompute:
    """The part of a layer's forward that runs again in its backward (beside attention's scores, which its kernels make
    again in any case).

    granularity: as zbench.describe.model.Model has it, its recompute.
    """

    granularity: str

    def __post_init__(self) -> None:
        _check_choice("recompute.granularity", self.granularity, RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Parallel:
    """Degrees of parallelism beside data and context parallelism, which are the plans'.

    tensor_parallel: GPUs of a node that are one rank of a plan. pipeline_parallel: stages that the layers are divided
    over. expert_parallel: GPUs that hold all experts of a layer together.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "pipeline_parallel", "expert_parallel"):
            check_whole_number(f"parallel.{name}", getattr(self, name), 1, MOST)


@dataclass(frozen=True, slots=True)
class Experts:
    """The way in which tokens choose experts.

    skew: how unevenly (zbench.step.passes.routing.ExpertParallel), 0: all alike.
    """

    skew: float = 0.0

    def __post_init__(self) -> None:
        if type(self.skew) not in (int, float) or not 0 <= self.skew < 100:
            raise ValueError(f"experts.skew is {self.skew!r}; it takes a number from 0 to below 100")


@dataclass(frozen=True, slots=True)
class TrainingStrategy:
    """The groups together, one part each."""

    sharding: Sharding
    recompute: Recompute
    parallel: Parallel
    overlap: ExchangeOverlap
    experts: Experts
    sync: RoundSync = EVERY

    def __post_init__(self) -> None:
        method = self.overlap.method
        if method != NONE and self.parallel.tensor_parallel == 1:
            raise ValueError(
                f"overlap.method is {method}; with parallel.tensor_parallel=1 no group exchanges anything, so it takes "
                f"{NONE}, or parallel=tp2, tp4 or tp8 beside it"
            )

        parallel = self.parallel
        for key in ("tensor_parallel", "pipeline_parallel", "expert_parallel") if self.sync.in_rounds else ():
            if getattr(parallel, key) > 1:
                raise ValueError(
                    f"parallel.{key} is {getattr(parallel, key)}; with sync={self.sync.method} a worker's GPUs share "
                    "its sequences and shards alone, so it takes 1"
                )

    @property
    def model_fields(self) -> Mapping[str, Any]:
        """The fields of a model that the groups set."""
        return {name: getattr(getattr(self, group), key) for name, (group, key) in MODEL_FIELDS.items()}


def typed_key(field: str) -> str:
    """Returns how a field of a model is set on a command line: a group's choice by the group's name, as in
    sharding=zero1, a degree by its key, as in parallel.tensor_parallel=2, others as the model's own."""
    group, key = MODEL_FIELDS.get(field, ("model", field))
    return group if group == field else f"{group}.{key}"


def strategy_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a configuration's groups say, by the words that tables have for it: fields of a model by their
    names, other keys dotted."""
    found = {field: config[group][key] for field, (group, key) in MODEL_FIELDS.items()}
    found["expert_parallel"] = config["parallel"].get("expert_parallel", 1)
    usual: int | str
    for key, usual in (("window", 1), ("gradient_bucket", LAYER)):
        found[f"sharding.{key}"] = config["sharding"].get(key, usual)
    exchanges = config["overlap"]
    found["overlap"], found["overlap.slices"] = exchanges["method"], exchanges.get("slices", 1)
    found["overlap.transfers"] = exchanges["transfers"] if exchanges["method"] == COMMFUSE else RING  # else no choice
    found |= {"experts.skew": config["experts"]["skew"]}
    return found | {f"sync.{key}": _sync(config)[key] for key in _SYNC} | {"sync": _sync(config)["method"]}


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
    return made
