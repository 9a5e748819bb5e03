"""Torchtitan's options: PyTorch's context parallelism, keys gathered, with either of its load balancers.

Flags: torchtitan/config/configs.py, torchtitan/distributed/context_parallel/api.py and activation_checkpoint.py of
torchtitan at b5bcd76c.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil

from zbench.advise.framework import Framework, Keys, LaunchSettings, Option, degrees, whole_layers
from zbench.cost.cost import Cost
from zbench.describe.model import Model
from zbench.systems.common.micro_batches import fitting_tokens

VERSION = "torchtitan, b5bcd76c (2026-08-21), PyTorch 2.13"
_PADDED = (
    "torchtitan cuts documents at the end of a pack and pads what is left; here packs end where the next document does "
    "not fit, and padding costs nothing."
)
_BALANCER = (
    "zbench.adapters.torch_context_parallel makes a load balancer that knows a pack's documents (docs/adapters.md); "
    "which documents a group gets is the loader's choice."
)
_FLEX = "ptrr needs a model with FlexAttention (attn_backend=flex, the default of model_registry)."


def torchtitan() -> Framework:
    """Returns torchtitan."""
    return Framework("torchtitan", VERSION, _options)


def _options(model: Model) -> Sequence[Option]:
    again, more = whole_layers(model)
    keys: Keys = again if model.sharding == "zero3" else {"sharding": "zero3", **again}
    return tuple(
        Option(
            f"torch_cp, {balancer}",
            "torch_cp",
            partial(cp_settings, balancer),
            cp_flags,
            keys,
            "configured",
            notes,
            permutation_contract,
            None,
            _BALANCER,
        )
        for balancer, notes in (("headtail", (_PADDED, *more)), ("ptrr", (_PADDED, _FLEX, *more)))
    )


def cp_settings(balancer: str, cost: Cost, tokens: int, longest: int) -> list[Keys]:
    """Returns degrees of context parallelism whose groups' even share of a batch holds the longest sequence, as
    torchtitan has every group take as many tokens. Gathered keys are kept unless layers run again.

    Raises:
        ValueError: an even share is more than a GPU holds.
    """
    ranks, room = cost.cluster.num_ranks, fitting_tokens(cost)
    if tokens > ranks * room:
        raise ValueError(f"tokens_per_gpu makes {tokens // ranks:,} tokens a rank; a GPU has room for {room:,}")
    received_kv = "regather" if cost.model.recompute == "full" else "keep"
    wide = [degree for degree in degrees(cost, longest, ranks, ranks) if degree * tokens >= longest * ranks]
    return [{"balancer": balancer, "degree": degree, "received_kv": received_kv} for degree in wide[:6]]


def permutation_contract(keys: Keys) -> Keys:
    """Returns the keys of a planner that deals the tokens of a pack to groups of as many ranks."""
    return {"contract": "equal_token_permutation", "degree": keys["degree"], "received_kv": keys["received_kv"]}


def cp_flags(pinned: LaunchSettings) -> list[str]:
    """Returns the flags of a trainer: a micro-batch of a data-parallel rank is that of the GPUs of a context-parallel
    group."""
    model, degree = pinned.model, pinned.keys["degree"]
    multiple = 2 * degree * model.tensor_parallel  # torchtitan asks for it
    micro = multiple * ceil(degree * pinned.tokens / pinned.ranks / multiple)
    return [
        f"--parallelism.context_parallel_degree {degree}",
        f"--parallelism.context_parallel_load_balancer {pinned.keys['balancer']}",
        f"--parallelism.tensor_parallel_degree {model.tensor_parallel}",
        f"--parallelism.pipeline_parallel_degree {model.pipeline_parallel}",
        "--parallelism.fsdp_reshard_after_forward always",
        f"--training.max_context_length {pinned.longest}",
        f"--training.num_tokens_per_microbatch_per_dp_rank {micro}",
        f"--training.num_tokens_per_train_step {pinned.ranks // degree * micro}",
        f"activation-checkpoint:{'full' if model.recompute == 'full' else 'none'}",
    ]
