"""Converts older records to what records are today. Pure: no torch.

Before there were worlds (zbench.describe.worlds), all was nominal; before there were masks (zbench.describe.mask), all
was causal; ports served messages in their plan's order (zbench.describe.cluster); devices did not say that messages
slow no computes beside them (zbench.describe.device); and no group was free (zbench.run.fastest); executor=simulated
played attention alone, as simulated_attention did, and whole_step was what simulated is; executor=torch and desk ran
plans of attention, as torch_attention and desk_attention do, and torch_whole_step and desk_whole_step were what torch
and desk are. Sharding, recomputation and
degrees of parallelism were keys of the model and of the executor before they were groups (zbench.describe.strategy),
and the loss was whole or in chunks by a key of the model; gradients were reduced layer by layer
(zbench.describe.overlap), exchanges of tensor-parallel groups were whole (zbench.describe.exchanges), workers came
together in every step (zbench.describe.sync), and a step was a training step (zbench.describe.job).
Before facts told a run's GPUs, those of a run with tensor parallelism were of a group of GPUs: so many times the memory
and rate of one, and NICs of as many times the bandwidth as they were fewer. So were the memory and the NICs of its
steps.
Before facts told a run's tensor-parallel groups, these were its ranks: lists of a step had the mean of a group's GPUs,
of memory the most of one. Each GPU of a group is read with that: what a table makes of it is what it was, and which of
a group's GPUs had more is not known.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zbench.cost.ranks_of_gpus import of_gpu
from zbench.describe.cluster import PLAN
from zbench.describe.exchanges import NONE
from zbench.describe.expert_schedule import DRAWN, DROPLESS, FLAT, PLANNED, SEQUENTIAL, WITH_LAYER, ZIPF
from zbench.describe.layers.on_hosts import AS_GRADIENTS_COME, NOWHERE
from zbench.describe.model import AUTO, WHOLE
from zbench.describe.overlap import FLAT as FLAT_COLLECTIVES
from zbench.describe.overlap import LAYER
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN
from zbench.describe.rollouts.stages import NO_ROLLOUTS
from zbench.describe.strategy import MODEL_FIELDS
from zbench.describe.sync import EVERY_STEP
from zbench.describe.worlds import NOMINAL
from zbench.record.old_names import REGROUPED

Line = dict[str, Any]
_WITHOUT_WORLDS = {"world": {"_target_": "zbench.describe.worlds.World"}, "planners_see": "world"}
_BEFORE: dict[str, Any] = {"free_groups": [], "mask": "causal"}
_CLUSTER = "zbench.describe.cluster.Cluster"
_DEVICE = "zbench.describe.device.Device"
_MODEL = "zbench.describe.model.Model"
_SHARDING = "zbench.describe.strategy.Sharding"
_EXCHANGES = {"_target_": "zbench.describe.exchanges.ExchangeOverlap", "method": NONE}
_EVERY_STEP = {"_target_": "zbench.describe.sync.RoundSync", "method": EVERY_STEP}
_TRAINING = {"_target_": "zbench.describe.job.RolloutJob", "algorithm": NO_ROLLOUTS}
_LAYERS_ON_HOSTS = {
    "offload_tokens": ALL_LAYERS,
    "optimizer_layers": ALL_LAYERS,
    "parameter_layers": NOWHERE,
    "host_updates": AS_GRADIENTS_COME,
    "carried_layers": ALL_LAYERS,
}
_EXPERTS = "zbench.describe.expert_schedule.Experts"
_STRATEGY, _WHOLE_STEP = "zbench.describe.strategy", "zbench.simulated.executor.Simulated"
_SEQUENTIAL: dict[str, Any] = {
    "schedule": SEQUENTIAL,
    "degree": 1,
    "popularity": ZIPF,
    "drift": 1,
    "capacity": DROPLESS,
    "padded": False,
    "dispatch": FLAT,
    "gradients": WITH_LAYER,
    "routing": DRAWN,
    "homes": PLANNED,
}  # as they were before they had a choice
# Lists of a step that are of ranks, beside the parts of its seconds.
_OF_RANKS = (
    "attention_seconds",
    "linear_seconds",
    "communication_seconds",
    "exposed_seconds",
    "exposed_nic_seconds",
    "peak_bytes",
)
# What choices of executors were called before, by their class; the class has today's name here.
_EXECUTORS = {
    ("zbench.simulator.estimate.step.StepEstimate", "simulated"): "simulated_attention",
    (_WHOLE_STEP, "whole_step"): "simulated",
    ("zbench.runtime.attention_executor.TorchAttention", "torch"): "torch_attention",
    ("zbench.runtime.step_executor.Torch", "torch_whole_step"): "torch",
    ("zbench.desk.attention_executor.DeskAttention", "desk"): "desk_attention",
    ("zbench.desk.step_executor.Desk", "desk_whole_step"): "desk",
}


def with_all_keys(config: Any) -> Any:
    """Returns a configuration with the mask and the world it is of, the groups that its systems chose, and those that
    say how its model was trained; what is none stays as it is."""
    if not isinstance(config, Mapping):
        return config
    config = _with_executor(_with_strategy({**_BEFORE, **config}))
    sharding = config.get("sharding")
    if isinstance(sharding, Mapping) and sharding.get("_target_") == _SHARDING:
        config["sharding"] = {"gradient_bucket": LAYER, "collectives": FLAT_COLLECTIVES, **sharding}
    if "parallel" in config:
        config = _with_memory({"overlap": _EXCHANGES, "sync": _EVERY_STEP, "job": _TRAINING, **config})
    parallel = config.get("parallel")
    if isinstance(parallel, Mapping) and parallel.get("_target_") == f"{_STRATEGY}.Parallel":
        config["parallel"] = {"expert_tensor_parallel": 1, "stage_layers": EVEN, **parallel}
    again = config.get("recompute")
    if isinstance(again, Mapping) and again.get("_target_") == f"{_STRATEGY}.Recompute":
        config["recompute"] = {"layers": ALL_LAYERS, **again}
    memory = config.get("memory")
    if isinstance(memory, Mapping) and memory.get("_target_") == f"{_STRATEGY}.TrainingMemory":
        config["memory"] = {"offload_layers": ALL_LAYERS, **_LAYERS_ON_HOSTS, **memory}
    experts = config.get("experts")
    if isinstance(experts, Mapping) and experts.get("_target_") == _EXPERTS:
        config["experts"] = {**_SEQUENTIAL, **experts}
    cluster = config.get("cluster")
    if isinstance(cluster, Mapping) and cluster.get("_target_") == _CLUSTER:
        config["cluster"] = cluster = {"port_order": PLAN, **cluster}
        device = cluster.get("device")
        if isinstance(device, Mapping) and device.get("_target_") == _DEVICE:
            cluster["device"] = {"compute_slowdown": 1.0, **device}
    if "world" in config:
        return config
    choices = config.get("choices", {})
    named = {"choices": {**choices, "world": NOMINAL}} if isinstance(choices, Mapping) else {}
    return {**config, **_WITHOUT_WORLDS, **named}


def _with_memory(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with the chunks of tokens that its model's key had, which is gone."""
    model = config.get("model")
    if "memory" in config or not isinstance(model, Mapping):
        return config
    loss = AUTO if model.get("loss") == "chunked" else WHOLE
    memory = {
        "_target_": f"{_STRATEGY}.TrainingMemory",
        "mlp_chunk_tokens": WHOLE,
        "loss_chunk_tokens": loss,
        "offload": "none",
        "offload_layers": ALL_LAYERS,
        **_LAYERS_ON_HOSTS,
    }
    moved = {key: value for key, value in model.items() if key != "loss" or model.get("_target_", _MODEL) != _MODEL}
    return {**config, "memory": memory, "model": moved}


def _with_executor(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with today's name of its choice of executor."""
    executor, choices = config.get("executor"), config.get("choices")
    if not isinstance(executor, Mapping) or not isinstance(choices, Mapping):
        return config
    name = _EXECUTORS.get((str(executor.get("_target_")), str(choices.get("executor"))))
    return {**config, "choices": {**choices, "executor": name}} if name else config


def _with_strategy(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration with the groups of a strategy, of what its model and its executor had of them. What they
    lacked was as the class had it then, and has it now."""
    model, executor = config.get("model"), config.get("executor")
    if "sharding" in config or not isinstance(model, Mapping):
        return dict(config)
    ours = model.get("_target_", _MODEL) == _MODEL
    had = {field: model[field] for field in MODEL_FIELDS if ours and field in model}
    own = executor if isinstance(executor, Mapping) and executor.get("_target_") == _WHOLE_STEP else {}
    strategy = had.get("sharding", "zero1")
    window = {} if strategy == "none" else {"window": own.get("window", 1)}
    degrees = {name: had.get(name, 1) for name in ("tensor_parallel", "pipeline_parallel")}
    groups: dict[str, dict[str, Any]] = {
        "sharding": {"_target_": _SHARDING, "strategy": strategy, **window},
        "recompute": {"_target_": f"{_STRATEGY}.Recompute", "granularity": had.get("recompute", "none")},
        "parallel": {
            "_target_": f"{_STRATEGY}.Parallel",
            **degrees,
            "expert_parallel": own.get("expert_parallel", 1),
        },
        "experts": {"_target_": _EXPERTS, "skew": own.get("routing_skew", 0)},
    }
    moved = {"model": {key: value for key, value in model.items() if key not in had}}
    if own:
        kept = {key: value for key, value in own.items() if key not in REGROUPED[_WHOLE_STEP]}
        moved["executor"] = kept
    return {**config, **moved, **groups}


def as_today(start: Line, steps: Sequence[Line]) -> tuple[Line, list[Line]]:
    """Returns a run's start line and steps, with the facts of GPUs and NICs as they were configured.

    Raises:
        ValueError: facts that have to be of a number of GPUs are not.
    """
    start, found = _with_gpus(start, steps)
    facts = start["facts"]
    tp = facts.get("tensor_parallel", 1)
    if tp == 1 or "num_tensor_parallel_groups" in facts or not isinstance(facts.get("num_ranks"), int):
        return start, found
    groups = facts["num_ranks"]
    changed = {"num_ranks": groups * tp, "num_tensor_parallel_groups": groups}
    return {**start, "facts": {**facts, **changed}}, [_by_gpu(step, tp) for step in found]


def _by_gpu(line: Line, tp: int) -> Line:
    """Returns the line with what it says of a tensor-parallel group for each of its GPUs."""
    lists = {name: np.repeat(line[name], tp).tolist() for name in _OF_RANKS if line.get(name) is not None}
    spent = {name: np.repeat(seconds, tp).tolist() for name, seconds in line.get("seconds_for", {}).items()}
    return {**line, **lists, **({"seconds_for": spent} if spent else {})}


def _with_gpus(start: Line, steps: Sequence[Line]) -> tuple[Line, list[Line]]:
    """Returns a run's start line and steps with the number of GPUs, and with NICs and memory as of one GPU.

    Raises:
        ValueError: facts that have to be of a number of GPUs are not.
    """
    facts = start["facts"]
    if "num_gpus" in facts or not isinstance(facts.get("num_ranks"), int):
        return start, list(steps)
    tp = facts.get("tensor_parallel", 1)
    if tp == 1:
        return {**start, "facts": {**facts, "num_gpus": facts["num_ranks"]}}, list(steps)
    cluster = start["config"].get("cluster")
    nics = cluster.get("nics_per_node") if isinstance(cluster, Mapping) else None
    try:
        bonded = nics // facts["nics_per_node"]
        changed = {
            "num_gpus": facts["num_ranks"] * tp,
            "gpus_per_node": facts["gpus_per_node"] * tp,
            "nics_per_node": nics,
            "num_nics": facts["num_nics"] * bonded,
            "nic_bandwidth": facts["nic_bandwidth"] / bonded,
            "peak_flops": facts["peak_flops"] / tp,
            "memory_bytes": facts["memory_bytes"] / tp,
            "device": facts["device"].removeprefix(f"tp groups of {tp} "),
        }
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(
            f"facts of the start line are not those of groups of {tp!r} GPUs on nodes of {nics!r} NICs"
        ) from error
    return {**start, "facts": {**facts, **changed}}, [_step(step, tp, bonded) for step in steps]


def _step(line: Line, tp: int, bonded: int) -> Line:
    """Returns the line with the memory of one GPU of every rank, and the bytes of every NIC."""
    nics = {name: bytes_of_nics(line[name], bonded) for name in ("nic_tx_bytes", "nic_rx_bytes")}
    peak = of_gpu(np.array(line["peak_bytes"]), tp).tolist()
    return {**line, **nics, "peak_bytes": peak, "capacity_bytes": line["capacity_bytes"] // tp}


def bytes_of_nics(sizes: Sequence[int], bonded: int) -> list[int]:
    """Returns the bytes through every NIC, where `bonded` of them in order are one that carries a size."""
    return [(size + at) // bonded for size in sizes for at in range(bonded)]
