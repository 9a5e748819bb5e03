"""Attention of plans for Hugging Face Transformers, registered by a name that `attn_implementation` takes.

Transformers hands keyword arguments of model(...) down to its attention functions, and so the micro-batch comes:

    zbench.torch.register_with_transformers()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="zbench")
    model(input_ids=tokens[None], position_ids=micro_batch.positions[None], micro_batch=micro_batch)

Shapes: Transformers' query [1, H, T, D], key and value [1, K, T, D]; ours as in zbench.torch.planned_batch.
"""

from importlib import import_module
from typing import Any

from torch import Tensor

from zbench.console.extras import need
from zbench.describe.units import with_noun
from zbench.torch.planned_batch import PlannedBatch


def register_with_transformers(name: str = "zbench") -> None:
    """Registers attention of plans with Transformers, for attn_implementation=name; any number of times.

    Raises:
        ValueError: the package transformers is not installed.
    """
    need("transformers", f"attn_implementation={name!r}")
    import_module("transformers").AttentionInterface.register(name, planned_attention)


def planned_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    micro_batch: PlannedBatch | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Returns ([1, T, H, D], None), as Transformers wants it of an attention function. others: what it has besides.

    Raises:
        ValueError: the model was called without a micro-batch, with several rows or a mask, or it wants what plans do
            not have: dropout, a soft cap, a bias, another window than the plan's.
    """
    if not isinstance(micro_batch, PlannedBatch):
        given = "None" if micro_batch is None else f"of type {type(micro_batch).__name__}"
        raise ValueError(f"micro_batch is {given}; model(...) takes one of zbench.torch.Runtime.micro_batches")
    if len(query) != 1:
        raise ValueError(
            f"input_ids has {with_noun(len(query), 'row')}; it takes one row of this rank's tokens, [1, T]"
        )
    if attention_mask is not None:
        raise ValueError("attention_mask is given; plans know where sequences begin and end, so it takes None")
    _check_wanted(module, micro_batch, others)
    scale, usual = others.get("scaling"), query.shape[-1] ** -0.5
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if scale is not None and scale != usual:
        q = q * (scale / usual)  # kernels have the usual one
    return micro_batch.attention(q, k, v)[None], None


def _check_wanted(module: Any, micro_batch: PlannedBatch, others: dict[str, Any]) -> None:
    """Refuses what a model wants of attention and no plan has."""
    for name, usual in (("dropout", 0.0), ("softcap", None), ("position_bias", None), ("s_aux", None)):
        found = others.get(name)
        if found is not None and found != usual:
            raise ValueError(f"{name} of the model's attention is {found!r:.60}; plans have none, so it takes {usual}")
    mask, window = micro_batch.mask, others.get("sliding_window") or 0
    if window != mask.window:
        raise ValueError(f"the model's sliding_window is {window}; the plan's mask is {mask}")
    if bool(getattr(module, "is_causal", True)) != mask.causal:
        raise ValueError(f"is_causal of the model is {not mask.causal}; the plan's mask is {mask}")
