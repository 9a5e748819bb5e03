"""Flags of frameworks: which settings are tried, and what a launch script gets of those that were chosen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zbench.advise.framework import Framework, LaunchSettings, Option, degrees, limits, power_of_two
from zbench.advise.megatron import megatron
from zbench.advise.torchtitan import torchtitan
from zbench.advise.verl import verl
from zbench.api.parts import cluster_named, model_named
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.systems.in_contract.planner import InContract


@pytest.fixture(scope="module")
def model() -> Model:
    return model_named("llama_7b")


@pytest.fixture(scope="module")
def cost(model: Model) -> Cost:
    return make_cost(cluster_named("a800_4x8"), model)


def option(of: Callable[[], Framework], name: str, model: Model) -> Option:
    return next(one for one in of().options(model) if one.name == name)


def pinned(model: Model, longest: int = 65536, **keys: Any) -> LaunchSettings:
    return LaunchSettings(keys, model, 32, longest, 131072)


def test_megatrons_dynamic_context_parallelism(model: Model) -> None:
    found = option(megatron, "dynamic_cp", model)
    assert found.model == {"sharding": "zero1"}  # the engine refuses Megatron-FSDP beside it
    played = replace(model, **found.model)
    assert found.flags(pinned(played, pack_tokens=8192)) == [
        "--dynamic-context-parallel",
        "--sequence-packing-scheduler default_dynamic_cp",
        "--max-seqlen-per-dp-cp-rank 8192",
        "--context-parallel-size 8",
        "--min-dynamic-context-parallel-size 1",
        "--seq-length 65536",
        "--calculate-per-token-loss",
        "--dataloader-type single",
        "--tensor-model-parallel-size 1",
        "--pipeline-model-parallel-size 1",
        "--use-distributed-optimizer",
    ]


def test_megatrons_flags_follow_the_model(model: Model) -> None:
    found = option(megatron, "dp_balanced", model)
    wide = replace(model, tensor_parallel=2, recompute="full", sharding="none")
    flags = found.flags(pinned(wide, longest=65535, degree=4, pack_tokens=16384))
    assert "--context-parallel-size 4" in flags
    assert "--seq-length 65536" in flags  # a multiple of 2 x 4 x 2
    assert "--sequence-parallel" in flags
    assert "--recompute-granularity full" in flags
    assert "--use-distributed-optimizer" not in flags
    fsdp = found.flags(pinned(model, degree=4, pack_tokens=16384))
    assert "--use-megatron-fsdp" in fsdp
    part = found.flags(pinned(replace(model, recompute="selective", sharding="zero2"), degree=4, pack_tokens=16384))
    assert "--recompute-modules mlp" in part
    assert "--data-parallel-sharding-strategy optim_grads" in part
    two = option(megatron, "dynamic_cp", replace(model, sharding="zero2"))
    assert two.model == {"sharding": "zero1"}
    assert "sharding=zero2" in two.notes[0]


def test_engines_that_run_whole_layers_again_are_played_so(model: Model) -> None:
    part = replace(model, recompute="selective")
    for of, name in ((torchtitan, "torch_cp, headtail"), (verl, "verl_balance")):
        found = option(of, name, part)
        assert found.model == {"recompute": "full"}
        assert "recompute=selective is played as full" in found.notes[-1]
    flags = option(verl, "dynamic_cp", part).flags(pinned(part, pack_tokens=8192))
    assert "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_modules=[mlp]" in flags


def test_verls_engines(model: Model) -> None:
    balance = option(verl, "verl_balance", model)
    flags = balance.flags(pinned(model, degree=4, pack_tokens=16384))
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384" in flags
    assert "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=4" in flags
    assert "actor_rollout_ref.model.enable_gradient_checkpointing=False" in flags
    dynamic = option(verl, "dynamic_cp", model)
    flags = dynamic.flags(pinned(replace(model, **dynamic.model), pack_tokens=4096))
    assert "actor_rollout_ref.actor.megatron.dynamic_context_parallel=True" in flags
    assert "actor_rollout_ref.actor.megatron.max_seqlen_per_dp_cp_rank=4096" in flags
    assert "actor_rollout_ref.actor.megatron.context_parallel_size=16" in flags


def test_torchtitans_micro_batches_are_of_context_parallel_groups(model: Model) -> None:
    found = option(torchtitan, "torch_cp, ptrr", model)
    flags = found.flags(pinned(model, balancer="ptrr", degree=8, received_kv="keep"))
    assert "--parallelism.context_parallel_degree 8" in flags
    assert "--parallelism.context_parallel_load_balancer ptrr" in flags
    assert "--training.num_tokens_per_microbatch_per_dp_rank 32768" in flags
    assert "--training.num_tokens_per_train_step 131072" in flags  # four groups, one micro-batch each


def test_torchtitans_contract_is_of_its_groups(model: Model, cost: Cost) -> None:
    found = option(torchtitan, "torch_cp, headtail", model)
    assert found.contract is not None
    planner = InContract(cost, **found.contract({"balancer": "headtail", "degree": 8, "received_kv": "keep"}))
    plans = planner.plan(Batch(np.array([40_000, 9000, 800, 70]), seed=0, step=0))
    assert {plan.backward_mode for plan in plans} == {"keep"}
    assert all((plan.forward.src // 8 == plan.forward.dst // 8).all() for plan in plans)  # inside their groups


@pytest.mark.parametrize("of", [megatron, verl, torchtitan])
def test_all_settings_that_are_tried_hold_the_longest_sequence(
    of: Callable[[], Framework], model: Model, cost: Cost
) -> None:
    for one in of().options(model):
        tried = one.settings(cost, 131072, 65536)
        assert tried
        share = 131072 // 32  # of a rank, where the limit follows from the batch
        assert all(keys.get("pack_tokens", share) * keys.get("degree", 32) >= 65536 for keys in tried)
        assert all(32 % keys.get("degree", 1) == 0 for keys in tried)


def test_limits_begin_with_an_even_share(cost: Cost) -> None:
    assert limits(cost, 131072) == [4096, 8192, 16384]  # 32,768 are more than fit
    assert limits(cost, 131072, 65536, 4) == [16384]
    assert degrees(cost, 65536, 32)[0] * 32768 >= 65536
    assert (power_of_two(8.0, 32), power_of_two(8.1, 32), power_of_two(100, 12)) == (8, 16, 8)
