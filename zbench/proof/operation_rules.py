"""The rules of operations: what the columns of a plan's operations may hold.

Arrays are as zbench.proof.array_rules wants them.
"""

from collections.abc import Iterator

import numpy as np

from zbench.describe.arrays import Flags
from zbench.describe.model import DKV, DO, DQ, KV, TENSOR_NAMES, O, Q
from zbench.plans.plan import ATTEND, TRANSFER, Column, Ops, Plan

_ALLOWED = {"forward": (Q, KV, O), "backward": (KV, DO, DQ, DKV)}


def operation_fault(plan: Plan, name: str) -> str:
    """Returns the first rule that an operation of the list `name` breaks, and its value; "" if none."""
    every: Ops = getattr(plan, name)
    for begin, ops in every.chunks():
        for broken, column, right in _rules(plan, ops, name):
            if broken.any():
                at = int(np.argmax(broken))
                value = getattr(ops, column)[at]
                return f"{name} operation {begin + at} on rank {ops.src[at]}: {column} is {value}; {right}"
    return ""


def _rules(plan: Plan, ops: Ops, name: str) -> Iterator[tuple[Flags, str, str]]:
    """Yields (operations that break it, the column to show, what is right), each relying on those before it."""
    transfer, attend = ops.kind == TRANSFER, ops.kind == ATTEND
    yield ~transfer & ~attend, "kind", f"it takes {TRANSFER}, a transfer, or {ATTEND}, an attend"
    for column in ("src", "dst"):
        yield _outside(getattr(ops, column), plan.num_ranks), column, f"ranks are 0 to {plan.num_ranks - 1}"
    yield transfer & (ops.src == ops.dst), "dst", "a transfer goes to another rank than it comes from"
    yield attend & (ops.src != ops.dst), "dst", "an attend is on one rank, its src"
    heads = plan.num_heads
    yield _outside(ops.head_lo, heads), "head_lo", f"heads are 0 to {heads - 1}"
    yield (ops.head_hi <= ops.head_lo) | (ops.head_hi > heads), "head_hi", f"it is above head_lo and at most {heads}"
    lists = f"lists are 0 to {len(plan.lists) - 1}"
    yield _outside(ops.blocks, len(plan.lists)), "blocks", lists
    yield attend & _outside(ops.kv_blocks, len(plan.lists)), "kv_blocks", lists
    yield transfer & (ops.kv_blocks != -1), "kv_blocks", "a transfer has none, which is -1"
    yield attend & (ops.tensor != -1), "tensor", "an attend has none, which is -1"
    known = ", ".join(f"{tensor} ({TENSOR_NAMES[tensor]})" for tensor in _ALLOWED[name])
    yield transfer & ~np.isin(ops.tensor, _ALLOWED[name]), "tensor", f"a transfer of the {name} takes {known}"
    yield attend & (ops.via != -1), "via", "an attend is not routed, which is -1"
    lanes = (
        f"it takes a list of lanes, 0 to {len(plan.lanes) - 1}, or " if len(plan.lanes) else "without lanes it takes "
    )
    yield (ops.via < -1) | (ops.via >= len(plan.lanes)), "via", f"{lanes}-1, sent directly"
    yield _outside(ops.keep, 2), "keep", "it takes 0 or 1"
    yield _outside(ops.collective, 2), "collective", "it takes 0 or 1"
    yield attend & (ops.collective == 1), "collective", "an attend is part of none, which is 0"
    copies = transfer & np.isin(ops.tensor, (Q, KV)) & (name == "forward")
    yield (ops.keep == 1) & ~copies, "keep", "only what a transfer of q or kv in the forward brings can be kept"


def _outside(ids: Column, count: int) -> Flags:
    return (ids < 0) | (ids >= count)
