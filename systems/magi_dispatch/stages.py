"""MagiAttention's schedule: a rank attends to its own keys while those of others come, stage by stage.

A group-cast sends every piece of kv from its home to each rank whose mask needs it, once. What a rank receives comes in
stages; it attends to its own keys first, then to each stage's. The backward does the same in the same order, with kv
sent again, and after each stage its part of dkv goes home, where parts are summed (group-reduce). Source: MagiAttention
2c641357, magi_attention/functional/dist_attn.py, meta/solver/dist_attn_solver.py and overlap_solver.py.
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.model import KV
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.plan import TRANSFER, Ints, Ops, Plan
from zbench.systems.common.scattered import Pieces, add_units, attends, needed, ragged

PART = 512  # least tokens of what stages are made of (OverlapConfig.min_chunk_size)
MOST_PARTS = 64  # of what a rank receives (OverlapConfig.max_num_chunks)
NEVER = 1 << 40  # a stage after all others


@dataclass(frozen=True, slots=True, eq=False)
class Casts:
    """Copies of kv sent between ranks, int64 [n] each: of which unit, from which rank to which, in which stage at the
    earliest and its gradient at the latest, from which other rank it came to src (src itself at home), and hops from
    its home."""

    unit: Ints
    src: Ints
    dst: Ints
    first: Ints
    last: Ints
    came: Ints
    hop: Ints

    def take(self, index: Ints) -> "Casts":
        """Returns the copies at `index` alone."""
        return Casts(*(getattr(self, name)[index] for name in Casts.__dataclass_fields__))

    @staticmethod
    def concatenate(parts: list["Casts"]) -> "Casts":
        """Returns the copies of all `parts`, one after another."""
        return Casts(*(np.concatenate([getattr(one, name) for one in parts]) for name in Casts.__dataclass_fields__))


def staged_plan(builder: Builder, pieces: Pieces, stages: int, group: int, per_node: int | None) -> Plan:
    """Returns the plan of `pieces`, none empty, which all work where they live.

    stages: of what a rank receives; 0: one attend, when all is there. group: ranks of a group, which are neighbours.
    per_node: GPUs of a node if a piece crosses to each other node once and is spread from there by the GPU with the
    same place; None: its home sends to every rank itself.
    """
    block, units = add_units(builder, pieces)
    unit, rank = needed(units, builder.mask)
    stage = stages_of(units.stop[unit] - units.start[unit], rank, max(stages, 1))
    home = np.arange(len(units.seq), dtype=np.int64)
    own = np.full(len(home), 0 if stages else 1, np.int64)
    attended, when = attends(
        builder,
        block,
        units,
        np.ones(len(home), bool),
        np.concatenate([home, unit]),
        np.concatenate([units.home, rank]),
        np.concatenate([own, stage]),
        builder.num_ranks,
    )
    source = units.home[unit]
    casts = Casts(unit, source, rank, stage, stage, source, 0 * unit)
    if per_node is not None:
        casts = by_node(casts, per_node)
    sent, first = _messages(builder, block, casts, casts.first, group)
    returned, last = _messages(builder, block, casts, casts.last, group)
    # A stage's keys are on their way while the one before is attended to; backward, what an attend adds to leaves then.
    forward = _ordered([(sent, 2 * first - 2), (attended, 2 * when + 1)])
    mirrored = _ordered([(returned, -2 * last), (attended, 1 - 2 * when)])
    return _with_backward(builder, forward, mirrored)


def _messages(builder: Builder, block: Ints, casts: Casts, stage: Ints, group: int) -> tuple[Ops, Ints]:
    """Returns (transfers, the stage of each): what a rank sends another in a stage is one message, but what is passed
    on waits for its first sender alone. In the order of an all-to-all: everybody sends and receives one message a
    turn."""
    columns = (casts.came, casts.dst, casts.src, exchange_turns(casts.src, casts.dst, group), casts.hop, stage)
    order = np.lexsort(columns)
    rows = np.stack(columns)[:, order]
    starts = np.flatnonzero(np.concatenate([[True], (rows[:, 1:] != rows[:, :-1]).any(axis=0)])[: len(order)])
    names = ragged(builder, np.diff(np.append(starts, len(order))), block[casts.unit[order]])
    one = order[starts]
    return Ops.transfers(KV, casts.src[one], casts.dst[one], (0, builder.num_heads), names), stage[one]


def exchange_turns(src: Ints, dst: Ints, group: int) -> Ints:
    """Returns in which round of an all-to-all inside its group of `group` ranks each src sends to its dst, as
    zbench.plans.patterns.partner pairs ranks off."""
    here, there = src % group, dst % group
    return here ^ there if group & (group - 1) == 0 else (there - here) % group


def _ordered(parts: list[tuple[Ops, Ints]]) -> Ops:
    order = np.argsort(np.concatenate([when for _, when in parts]), kind="stable")
    return Ops.concatenate([ops for ops, _ in parts]).take(order)


def _with_backward(builder: Builder, forward: Ops, mirrored: Ops) -> Plan:
    """Returns the plan whose backward sends kv again as `forward` does, and else is `mirrored` in reverse."""
    builder.add_ops(forward, mirrored)
    both = builder.build()
    assert len(both.forward) == len(forward) + len(mirrored), "no block is empty, so nothing is left out"
    plan = reverse(both.with_(forward=both.forward.take(slice(0, len(forward)))), "regather")
    other = reverse(both.with_(forward=both.forward.take(slice(len(forward), None))), "regather").backward
    again, back = (int((ops.kind == TRANSFER).sum()) for ops in (forward, mirrored))
    return plan.with_(backward=Ops.concatenate([plan.backward.take(slice(0, again)), other.take(slice(back, None))]))


def stages_of(tokens: Ints, rank: Ints, stages: int) -> Ints:
    """Returns int64 [n], from 1: the stage of every copy, given its tokens and the rank that receives it; in pack
    order.

    What a rank receives counts as parts of at least PART tokens, at most MOST_PARTS; parts, with the rank's own keys as
    one before the others, are dealt to the stages in order. A copy is in the stage of the part that its middle is in.
    """
    order = np.argsort(rank, kind="stable")
    ends = np.cumsum(tokens[order])
    begin = np.searchsorted(rank[order], rank[order])
    middle = ends - tokens[order] + tokens[order] // 2 - (ends[begin] - tokens[order][begin])
    total = np.bincount(rank, tokens).astype(np.int64)[rank[order]]
    size = np.maximum(PART, -(-total // MOST_PARTS))
    parts = -(-total // size)
    used = np.minimum(stages, parts)  # stages that would have no part come last and are empty
    each, rest = np.divmod(parts + 1, used)
    item = middle // size + 1
    found = np.empty(len(rank), np.int64)
    found[order] = 1 + np.where(item < rest * (each + 1), item // (each + 1), rest + (item - rest * (each + 1)) // each)
    return found


def by_node(casts: Casts, per_node: int) -> Casts:
    """Routes copies so that every unit crosses to each other node once, to the GPU with its home's place there, which
    passes it on.

    It crosses before the first stage that needs it there, and its gradient comes back after the last one.
    """
    node, own = casts.dst // per_node, casts.src // per_node
    away = node != own
    door = node * per_node + casts.src % per_node
    crossing = casts.unit * (int(node.max(initial=0)) + 1) + node
    _, one, which = np.unique(crossing[away], return_index=True, return_inverse=True)
    first, last = np.full(len(one), NEVER), np.zeros(len(one), np.int64)
    np.minimum.at(first, which, casts.first[away])
    np.maximum.at(last, which, casts.last[away])
    one = np.flatnonzero(away)[one]
    across = Casts(casts.unit[one], casts.src[one], door[one], first, last, casts.src[one], 0 * one)
    near, on = np.flatnonzero(~away), np.flatnonzero(away & (door != casts.dst))
    inside = casts.take(near)
    onward = replace(casts.take(on), src=door[on], hop=0 * on + 1)
    return Casts.concatenate([across, inside, onward])
