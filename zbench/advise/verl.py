"""The options of verl: whole sequences to data-parallel groups (FSDP with Ulysses), and dynamic context parallelism
(Megatron).

Keys: verl/trainer/config (ppo_trainer.yaml, actor, engine/fsdp.yaml, engine/megatron.yaml), verl/workers/config
and docs/advance/dynamic_context_parallel.rst of verl at 1dda039b.
"""

from collections.abc import Mapping, Sequence
from math import gcd

from zbench.advise.framework import (
    Framework,
    Keys,
    LaunchSettings,
    Option,
    degrees,
    limits,
    power_of_two,
    roomy_limit,
    whole_layers,
)
from zbench.advise.megatron import default_limit, dynamic_settings, ring_contract
from zbench.cost.cost import Cost
from zbench.describe.model import Model

VERSION = "verl, 1dda039b (2026-08-22); its dynamic context parallelism needs a Megatron-Core with d2e7ec5b"
_BALANCER = (
    "zbench.adapters.verl.install has verl balance by the cost model's work, each micro-batch within the limit "
    "(docs/adapters.md); what that gains is not played here."
)
_GROUPS = (
    "zbench.adapters.verl.install_dynamic_cp has it take its groups from the planner inside the contract "
    "(docs/adapters.md)."
)
_ACTOR = "actor_rollout_ref.actor"


def verl() -> Framework:
    """Returns verl. What is played is the update of the actor."""
    return Framework("verl", VERSION, _options)


def _options(model: Model) -> Sequence[Option]:
    again, more = whole_layers(model)
    fsdp: Keys = again if model.sharding == "zero3" else {"sharding": "zero3", **again}
    zero1: Keys = {} if model.sharding == "zero1" else {"sharding": "zero1"}
    return (
        Option(
            "verl_balance",
            "verl_balance",
            balance_settings,
            balance_flags,
            fsdp,
            "configured",
            ("verl's FSDP engine shards parameters and gathers them again for the backward (ZeRO-3).", *more),
            whole_contract,
            None,
            _BALANCER,
        ),
        Option(
            "dynamic_cp",
            "dynamic_cp",
            dynamic_settings,
            verl_dynamic_flags,
            zero1,
            "free",
            (
                "verl's Megatron engine has ZeRO-1 (megatron.use_distributed_optimizer). The reference model takes the "
                "same keys. FP8, multimodal and value models, distillation and virtual stages do not go with it.",
            ),
            ring_contract,
            default_limit,
            _GROUPS,
            roomy_limit,
        ),
    )


def balance_settings(cost: Cost, tokens: int, longest: int) -> list[Keys]:
    """Returns degrees of Ulysses, each with limits of a GPU's tokens."""
    widest = gcd(cost.cluster.num_ranks, cost.model.num_heads)
    return [
        {"degree": degree, "pack_tokens": one}
        for degree in degrees(cost, longest, widest)
        for one in limits(cost, tokens, longest, degree)
    ]


def whole_contract(keys: Keys) -> Keys:
    """Returns the keys of a planner that deals whole sequences to as many data-parallel groups."""
    return {"contract": "whole_on_dp", "degree": keys["degree"]}


def balance_flags(pinned: LaunchSettings) -> list[str]:
    """Returns the keys of the FSDP engine with Ulysses."""
    return [
        "trainer.balance_batch=True",
        f"{_ACTOR}.use_dynamic_bsz=True",
        f"{_ACTOR}.ppo_max_token_len_per_gpu={pinned.keys['pack_tokens']}",
        f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size={pinned.keys['degree']}",
        f"{_ACTOR}.fsdp_config.reshard_after_forward=True",
        "actor_rollout_ref.model.use_remove_padding=True",
        f"actor_rollout_ref.model.enable_gradient_checkpointing={pinned.model.recompute == 'full'}",
    ]


def verl_dynamic_flags(pinned: LaunchSettings) -> list[str]:
    """Returns the keys of the Megatron engine with dynamic context parallelism."""
    own, limit, model = f"{_ACTOR}.megatron", pinned.keys["pack_tokens"], pinned.model
    recompute: Mapping[str, Keys] = {
        "selective": {"recompute_granularity": "selective", "recompute_modules": "[mlp]"},
        "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    }
    return [
        "model_engine=megatron",
        f"{own}.dynamic_context_parallel=True",
        f"{own}.max_seqlen_per_dp_cp_rank={limit}",
        f"{own}.context_parallel_size={power_of_two(pinned.longest / limit, gcd(pinned.ranks, 2**30))}",
        f"{own}.tensor_model_parallel_size={model.tensor_parallel}",
        f"{own}.pipeline_model_parallel_size={model.pipeline_parallel}",
        f"{own}.use_distributed_optimizer=True",
        f"{own}.use_remove_padding=True",
        *(
            f"{own}.override_transformer_config.{key}={value}"
            for key, value in recompute.get(model.recompute, {}).items()
        ),
    ]
