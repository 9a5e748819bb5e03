"""Bytes that a rank of the torch executor needs, and which recomputation makes them fit. No torch: numpy only.

Not zbench.cost.memory, which reckons what any trainer of that kind would need: whole logits among it, unless model.loss
says otherwise. Here is what this executor keeps: zbench.runtime.training.blocks and zbench.runtime.training.parameters
say why. What runs again, by level, in a layer's backward:

    none       elementwise work alone, as always: no matmul, no attention, no message
    selective  the feed-forward: its input stays, and all of what is before it
    linear     all but attention: its inputs, its output and what was received stay
    full       the layer's whole forward, attention's messages included

Order is that of time: a level that keeps less never takes less time.
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.loss import chunked_bytes, wide_bytes
from zbench.cost.memory.copies import kept_bytes, moment_bytes
from zbench.describe.model import Model
from zbench.plans.plan import Ints, Plan

LEVELS = ("none", "selective", "linear", "full")
INDEX_BYTES = 8  # torch's int64
# Share of a device for its context and the allocator's fragments: a guess. zbench.speed measures what it ought to be,
# (taken_bytes - peak_bytes) / capacity.
RESERVE = 0.06


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """A choice of what is recomputed, and the memory that it needs. level: of LEVELS. predicted_bytes: of the fullest
    rank. capacity_bytes: what it was to fit in."""

    level: str
    predicted_bytes: int
    capacity_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the fullest rank fits, with the reserve left free."""
        return self.predicted_bytes <= self.capacity_bytes * (1 - RESERVE)


def choose_level(
    plans: tuple[Plan, ...], cost: Cost, parameters: str, capacity_bytes: int, levels: tuple[str, ...] = LEVELS
) -> LevelChoice:
    """Chooses the first of `levels` that fits the capacity on every rank; the last one where none does."""
    for level in levels:
        choice = LevelChoice(level, int(predicted_peak_bytes(plans, cost, parameters, level).max()), capacity_bytes)
        if choice.fits:
            break
    return choice


def predicted_peak_bytes(plans: tuple[Plan, ...], cost: Cost, parameters: str, level: str) -> Ints:
    """Returns int64 [num_ranks]: the bytes of every rank at its fullest moment. parameters:
    zbench.runtime.job.job.PARAMETERS."""
    model = cost.model
    peak = np.zeros(cost.cluster.num_ranks, np.int64)
    for plan in plans:
        received = kept_bytes(plan, cost) * (1 if level == "full" else model.num_layers)
        sides = ((plan.forward, False), (plan.backward, True))
        moment = np.maximum(*(moment_bytes(plan, ops, backward, cost) for ops, backward in sides))
        tokens = plan.tokens_per_rank
        kept = model.num_layers * kept_layer_bytes(model, level) * tokens
        at_work = np.maximum(
            [chunked_bytes(model, int(count)) for count in tokens], working_bytes(model, level) * tokens
        )
        peak = np.maximum(peak, kept + at_work + received + moment)
    return peak + training_state_bytes(cost, parameters, level, len(plans))


def training_state_bytes(cost: Cost, parameters: str, level: str, num_micro_batches: int = 1) -> int:
    """Returns the bytes of weights, gradients, both moments, in the wide dtype; and of copies of weights in the
    activations' dtype.

    Every layer's copy of what does not run again stays from its forward to its backward. Sharded ranks gather a layer
    and the next one, and hold whole gradients from one micro-batch to the next.
    """
    model, wide = cost.model, wide_bytes(cost.model)
    narrow = model.element_bytes < wide
    rest = model.total_params - model.num_layers * model.layer_params
    if parameters == "sharded":
        gathered = (2 * model.layer_params + rest) * model.element_bytes
        whole = wide * model.total_params if num_micro_batches > 1 else wide * (model.layer_params + rest)
        return 4 * wide * model.total_params // cost.cluster.num_ranks + gathered + whole
    kept = {"none": model.layer_params, "selective": model.attention_params}.get(level, 0)  # of every layer
    of_layers = model.num_layers * kept + model.layer_params - kept
    copies = (of_layers + model.head_params) * model.element_bytes if narrow else 0
    transient = (model.element_bytes + wide) * 2 * model.hidden * model.ffn_hidden * model.num_experts if narrow else 0
    return 4 * wide * model.total_params + copies + transient + wide * model.head_params


def kept_layer_bytes(model: Model, level: str) -> int:
    """Returns the bytes per token that one layer keeps from its forward to its backward."""
    e, h = model.element_bytes, model.hidden
    if level == "full":
        return e * h
    attention = e * model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads) + model.lse_bytes * model.num_heads
    if level == "linear":
        return e * h + attention
    if level == "selective":
        return 2 * e * h + attention
    if model.num_experts == 1:
        return 2 * e * h + attention + 2 * e * model.ffn_hidden
    # Of experts also the norm's output, rows gathered, outputs in order; the choice, two orders and the share.
    k = model.experts_per_token
    columns = model.active_ffn  # gate and up of the chosen experts and of shared ones
    return (3 + 2 * k) * e * h + attention + 2 * e * columns + k * (3 * INDEX_BYTES + wide_bytes(model))


def working_bytes(model: Model, level: str) -> int:
    """Returns the bytes per token while one layer's backward runs: what it makes again; gradients of x twice, of gate
    and up, of the product, and the product."""
    e, width = model.element_bytes, model.active_ffn
    made_again = kept_layer_bytes(model, "none") - kept_layer_bytes(model, level)
    return made_again + 2 * e * model.hidden + 4 * e * width
