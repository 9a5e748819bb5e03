"""Torchtitan's options: PyTorch's context parallelism, keys gathered, with either of its load balancers.

Flags: torchtitan/config/configs.py, torchtitan/distributed/context_parallel/api.py and activation_checkpoint.py of
torchtitan at b5bcd76c.
"""

from collections.abc import Sequence
from functools import partial

from zbench.advise.framework import Framework, Keys, LaunchSettings, Option, degrees, limits
from zbench.cost.cost import Cost
from zbench.describe.model import Model

VERSION = "torchtitan, b5bcd76c (2026-08-21), PyTorch 2.13"
_PADDED = (
    "torchtitan cuts documents at the end of a pack and pads what is left; here packs end where the next document does "
    "not fit, and padding costs nothing."
)
_FLEX = "ptrr needs a model with FlexAttention (attn_backend=flex, the default of model_registry)."


def torchtitan() -> Framework:
    """Returns torchtitan."""
    return Framework("torchtitan", VERSION, _options)


def _options(model: Model) -> Sequence[Option]:
    fsdp: Keys = {} if model.sharding == "zero3" else {"sharding": "zero3"}
    return tuple(
        Option(f"torch_cp, {balancer}", "torch_cp", partial(cp_settings, balancer), cp_flags, fsdp, "configured", notes)
        for balancer, notes in (("headtail", (_PADDED,)), ("ptrr", (_PADDED, _FLEX)))
    )


def cp_settings(balancer: str, cost: Cost, tokens: int, longest: int) -> list[Keys]:
    """Returns degrees of context parallelism, each with limits of a rank's tokens. Gathered keys are kept unless layers
    run again."""
    backward = "regather" if cost.model.recompute == "full" else "keep"
    return [
        {"balancer": balancer, "degree": degree, "pack_tokens": one, "backward": backward}
        for degree in degrees(cost, longest, cost.cluster.num_ranks, 4)
        for one in limits(cost, tokens, longest, degree)
    ]


def cp_flags(pinned: LaunchSettings) -> list[str]:
    """Returns the flags of a trainer: a micro-batch of a data-parallel rank is that of the GPUs of a context-parallel
    group."""
    model, degree = pinned.model, pinned.keys["degree"]
    micro = degree * pinned.keys["pack_tokens"]
    groups = pinned.ranks // degree
    return [
        f"--parallelism.context_parallel_degree {degree}",
        f"--parallelism.context_parallel_load_balancer {pinned.keys['balancer']}",
        f"--parallelism.tensor_parallel_degree {model.tensor_parallel}",
        f"--parallelism.pipeline_parallel_degree {model.pipeline_parallel}",
        "--parallelism.fsdp_reshard_after_forward always",
        f"--training.max_context_length {pinned.longest}",
        f"--training.num_tokens_per_microbatch_per_dp_rank {micro}",
        f"--training.num_tokens_per_train_step {groups * micro * max(1, -(-pinned.tokens // (groups * micro)))}",
        f"activation-checkpoint:{'full' if model.recompute == 'full' else 'none'}",
    ]
