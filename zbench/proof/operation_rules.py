"""The rules of operations: what the columns of a plan's operations may hold.

Arrays are as zbench.proof.array_rules wants them.
"""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.describe.model import DKV, DO, DQ, KV, TENSOR_NAMES, O, Q
from zbench.plans.plan import ATTEND, TRANSFER, Ops, Plan

_ALLOWED = {"forward": (Q, KV, O), "backward": (KV, DO, DQ, DKV)}
_RULES = 18  # that `_first_broken` tries and `_told` has words for


def operation_fault(plan: Plan, name: str) -> str:
    """Returns the first rule that an operation of the list `name` breaks, and its value; "" if none."""
    every: Ops = getattr(plan, name)
    counts = plan.num_ranks, plan.num_heads, len(plan.lists), len(plan.lanes)
    allowed = np.zeros(len(TENSOR_NAMES), np.bool_)
    allowed[list(_ALLOWED[name])] = True
    for begin, ops in every.chunks():
        columns = ops.kind, ops.tensor, ops.src, ops.dst, ops.head_lo, ops.head_hi, ops.blocks, ops.kv_blocks, ops.via
        rule, at = _first_broken((*columns, ops.keep, ops.collective), counts, allowed, name == "forward")
        if rule >= 0:
            column, right = _told(plan, name)[rule]
            value = getattr(ops, column)[at]
            return f"{name} operation {begin + at} on rank {ops.src[at]}: {column} is {value}; {right}"
    return ""


def _told(plan: Plan, name: str) -> tuple[tuple[str, str], ...]:
    """Returns of each rule, in the order in which `_first_broken` has them, the column to show and what is right."""
    ranks, heads = f"ranks are 0 to {plan.num_ranks - 1}", plan.num_heads
    lists = f"lists are 0 to {len(plan.lists) - 1}"
    known = ", ".join(f"{tensor} ({TENSOR_NAMES[tensor]})" for tensor in _ALLOWED[name])
    lanes = (
        f"it takes a list of lanes, 0 to {len(plan.lanes) - 1}, or " if len(plan.lanes) else "without lanes it takes "
    )
    return (
        ("kind", f"it takes {TRANSFER}, a transfer, or {ATTEND}, an attend"),
        ("src", ranks),
        ("dst", ranks),
        ("dst", "a transfer goes to another rank than it comes from"),
        ("dst", "an attend is on one rank, its src"),
        ("head_lo", f"heads are 0 to {heads - 1}"),
        ("head_hi", f"it is above head_lo and at most {heads}"),
        ("blocks", lists),
        ("kv_blocks", lists),
        ("kv_blocks", "a transfer has none, which is -1"),
        ("tensor", "an attend has none, which is -1"),
        ("tensor", f"a transfer of the {name} takes {known}"),
        ("via", "an attend is not routed, which is -1"),
        ("via", f"{lanes}-1, sent directly"),
        ("keep", "it takes 0 or 1"),
        ("collective", "it takes 0 or 1"),
        ("collective", "an attend is part of none, which is 0"),
        ("keep", "only what a transfer of q or kv in the forward brings can be kept"),
    )


@nb.njit(**ENTERED)
def _first_broken(columns, counts, allowed, is_forward):  # type: ignore[no-untyped-def]
    """Returns (the first rule that an operation breaks, the first operation that breaks it), -1 if there is none.
    columns: of Ops, in the order of their names; counts: ranks, heads, lists and lists of lanes; allowed: tensors."""
    kinds, tensors, srcs, dsts, lows, highs, q_lists, kv_lists, vias, keeps, collectives = columns
    ranks, heads, lists, lanes = counts
    first = np.full(_RULES, -1, np.int64)
    for at in range(len(kinds)):
        tensor, src, dst, low, high = tensors[at], srcs[at], dsts[at], lows[at], highs[at]
        kv, via, keep, collective = kv_lists[at], vias[at], keeps[at], collectives[at]
        transfer, attend = kinds[at] == TRANSFER, kinds[at] == ATTEND
        known = tensor >= 0 and tensor < len(allowed) and allowed[tensor]
        copy = transfer and is_forward and tensor in (Q, KV)
        broken = (
            not transfer and not attend,
            src < 0 or src >= ranks,
            dst < 0 or dst >= ranks,
            transfer and src == dst,
            attend and src != dst,
            low < 0 or low >= heads,
            high <= low or high > heads,
            q_lists[at] < 0 or q_lists[at] >= lists,
            attend and (kv < 0 or kv >= lists),
            transfer and kv != -1,
            attend and tensor != -1,
            transfer and not known,
            attend and via != -1,
            via < -1 or via >= lanes,
            keep < 0 or keep >= 2,
            collective < 0 or collective >= 2,
            attend and collective == 1,
            keep == 1 and not copy,
        )
        for rule in range(_RULES):
            if broken[rule] and first[rule] < 0:
                first[rule] = at
    for rule in range(_RULES):
        if first[rule] >= 0:
            return rule, first[rule]
    return -1, np.int64(-1)
