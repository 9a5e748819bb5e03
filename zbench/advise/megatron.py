"""Megatron-LM's options: dynamic context parallelism, and packs for static groups (`dp_balanced`).

Flags: megatron/training/arguments.py and megatron/core/model_parallel_config.py (branch dev, d48bd6be), and
examples/dynamic_context_parallel there.
"""

from collections.abc import Sequence
from math import ceil, gcd

from zbench.advise.framework import Framework, Keys, LaunchSettings, Option, degrees, limits, power_of_two, roomy_limit
from zbench.cost.cost import Cost
from zbench.describe.model import Model

VERSION = "Megatron-LM, branch dev, d48bd6be (2026-08-21), with Transformer Engine 2.9 or later"
_ADAPTER = (
    "zbench.adapters.megatron_core.install has Megatron take its groups from the planner inside the contract "
    "(docs/adapters.md)."
)
_NO_FSDP = (
    "Megatron refuses dynamic context parallelism together with Megatron-FSDP (ZeRO-2 and 3), so both of its "
    "schedulers are played with ZeRO-1 (--use-distributed-optimizer), and not with the model's sharding={}."
)
_RECOMPUTE = {
    "selective": ["--recompute-granularity selective", "--recompute-modules mlp"],
    "full": ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"],
}


def megatron() -> Framework:
    """Returns Megatron-LM."""
    return Framework("megatron", VERSION, _options)


def _options(model: Model) -> Sequence[Option]:
    zero1: Keys = {} if model.sharding in ("none", "zero1") else {"sharding": "zero1"}
    notes = (_NO_FSDP.format(model.sharding),) if zero1 else ()
    return (
        Option(
            "dynamic_cp",
            "dynamic_cp",
            dynamic_settings,
            megatron_dynamic_flags,
            zero1,
            "free",
            notes,
            ring_contract,
            default_limit,
            _ADAPTER,
            roomy_limit,
        ),
        Option("dp_balanced", "dp_balanced", balanced_settings, balanced_flags, zero1, "free", notes),
    )


def dynamic_settings(cost: Cost, tokens: int, longest: int) -> list[Keys]:
    """Returns limits for max_seqlen_per_dp_cp_rank, none of which needs more ranks for a sequence than there are."""
    return [{"pack_tokens": one} for one in limits(cost, tokens, longest, cost.cluster.num_ranks)]


def default_limit(cost: Cost, tokens: int, longest: int) -> Keys:
    """Returns the limit that users start from: a batch's tokens over the ranks, or more where a sequence needs it."""
    return dynamic_settings(cost, tokens, longest)[0]


def ring_contract(_: Keys) -> Keys:
    """Returns the keys of a planner inside the contract of Megatron's engine; `Option.limit` has its max_tokens."""
    return {"contract": "aligned_pow2_rings"}


def balanced_settings(cost: Cost, tokens: int, longest: int) -> list[Keys]:
    """Returns degrees of static rings, each with limits of its packs."""
    return [
        {"degree": degree, "pack_tokens": one}
        for degree in degrees(cost, longest, cost.cluster.num_ranks)
        for one in limits(cost, tokens, longest, degree)
    ]


def megatron_dynamic_flags(pinned: LaunchSettings) -> list[str]:
    """Returns the flags of dynamic context parallelism. The static degree is that which holds the longest sequence;
    for the scheduler only its product with data parallelism counts."""
    limit = pinned.keys["pack_tokens"]
    degree = power_of_two(pinned.longest / limit, gcd(pinned.ranks, 2**30))
    return [
        "--dynamic-context-parallel",
        "--sequence-packing-scheduler default_dynamic_cp",
        f"--max-seqlen-per-dp-cp-rank {limit}",
        f"--context-parallel-size {degree}",
        "--min-dynamic-context-parallel-size 1",
        *_common(pinned, degree),
    ]


def balanced_flags(pinned: LaunchSettings) -> list[str]:
    """Returns the flags of packs for static groups."""
    degree = pinned.keys["degree"]
    return [
        "--sequence-packing-scheduler dp_balanced",
        f"--max-seqlen-per-dp-cp-rank {pinned.keys['pack_tokens']}",
        f"--context-parallel-size {degree}",
        *_common(pinned, degree),
    ]


def _common(pinned: LaunchSettings, degree: int) -> list[str]:
    """Returns what the job needs whatever packs it: the data loader, parallelism, sharding, recomputation. Megatron has
    the length be a multiple of twice the context-parallel size."""
    model = pinned.model
    sharding = {
        "zero1": ["--use-distributed-optimizer"],
        "zero2": ["--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads"],
        "zero3": ["--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params"],
    }
    multiple = 2 * degree * model.tensor_parallel
    return [
        f"--seq-length {multiple * ceil(pinned.longest / multiple)}",
        "--calculate-per-token-loss",
        "--dataloader-type single",
        f"--tensor-model-parallel-size {model.tensor_parallel}",
        *(["--sequence-parallel"] if model.tensor_parallel > 1 else []),
        f"--pipeline-model-parallel-size {model.pipeline_parallel}",
        *sharding.get(str(model.sharding), []),
        *_RECOMPUTE.get(model.recompute, []),
    ]
