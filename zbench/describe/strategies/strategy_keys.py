"""Keys and words of a training strategy: how a field of a model is typed, what tables call a configuration's groups,
and a configuration with other values."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict
from dataclasses import fields as fields_of
from typing import Any

from zbench.describe.degrees import NESTED, ShardDegrees
from zbench.describe.exchanges import COMMFUSE, QUERY_SPLIT, RING, TOKENS
from zbench.describe.expert_schedule import DRAWN, DROPLESS, FLAT, PLANNED, SEQUENTIAL, WITH_LAYER, ZIPF
from zbench.describe.job import TRAINING, RolloutJob
from zbench.describe.model import Model
from zbench.describe.overlap import FLAT as FLAT_COLLECTIVES
from zbench.describe.overlap import LAYER
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN, bracketed
from zbench.describe.strategy import MODEL_FIELDS, STRATEGY_GROUPS
from zbench.describe.sync import EVERY, RoundSync

# Keys of a model that its yaml may leave out, whatever model it is: those that have a usual value, and are set by no
# group and no run.
MODEL_KEYS = frozenset(one.name for one in fields_of(Model) if one.default is not MISSING) - {*MODEL_FIELDS, "mask"}
_JOB = tuple(one.name for one in fields_of(RolloutJob))
_SYNC = tuple(one.name for one in fields_of(RoundSync) if one.name != "method")


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
    for key, usual in (("window", 1), ("gradient_bucket", LAYER), ("collectives", FLAT_COLLECTIVES)):
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
