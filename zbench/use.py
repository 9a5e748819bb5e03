"""How attends use their blocks: whole or in part, for the first time or again. Pure: no torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbench.area import Work
from zbench.plan import Ints, Ops, Plan

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Use:
    """How attends use their blocks (arrays over the attends of a list).

    heads, kv_heads: of the call. q_tokens, kv_tokens: of the blocks. buffer: kv tokens that the kernel is given.
    cut: some of the heads only. many: several whole blocks of kv, which are copied into one buffer.
    again_q, again_kv: an earlier attend on the rank had the same q blocks (kv blocks) and heads;
    shares_q, shares_kv: another attend has, earlier or later.
    """

    heads: Ints
    kv_heads: Ints
    q_tokens: Ints
    kv_tokens: Ints
    buffer: Ints
    cut: Flags
    many: Flags
    again_q: Flags
    again_kv: Flags
    shares_q: Flags
    shares_kv: Flags

    @staticmethod
    def of(plan: Plan, ops: Ops, attend: Ints, work: Work, kv_heads: Ints) -> "Use":
        q_list, kv_list, heads = ops.blocks[attend], ops.kv_blocks[attend], (ops.head_hi - ops.head_lo)[attend]
        q_tokens, kv_tokens = plan.list_tokens[q_list], plan.list_tokens[kv_list]
        cut = heads < plan.num_heads
        many = (plan.lists.lengths[kv_list] > 1) & ~cut
        buffer = np.where(many, kv_tokens, np.minimum(work.keys, kv_tokens))
        place = ops.src[attend] * (plan.num_heads + 1) + ops.head_lo[attend]
        (again_q, shares_q), (again_kv, shares_kv) = (_repeats(place, lists, plan) for lists in (q_list, kv_list))
        return Use(heads, kv_heads, q_tokens, kv_tokens, buffer, cut, many, again_q, again_kv, shares_q, shares_kv)


def _repeats(place: Ints, lists: Ints, plan: Plan) -> tuple[Flags, Flags]:
    """(whether an earlier one has the same place and list, whether any other one has)."""
    key = lists * (plan.num_ranks * (plan.num_heads + 1)) + place
    _, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    again = np.ones(len(key), bool)
    again[first] = False
    return again, counts[inverse] > 1
