"""Bytes each rank needs for plans at its fullest: the most of every micro-batch's moments, with what plans receive.

Received q and kv stay until a layer's backward, of every layer that keeps them; the copies and partial sums of the
layer under way are there while its attention is at work, and at no other moment.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory.copies import kept_over_own, moment_bytes
from zbench.cost.memory.lines import MomentLine
from zbench.cost.memory.moments import StageMoments
from zbench.cost.memory.needs import moments_of_stages, pipeline_moments
from zbench.cost.memory.shares import shares_of_ranks
from zbench.cost.memory.state import pipeline_state_bytes, tables_sum_bytes
from zbench.describe.arrays import Floats
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.plans.plan import Ints, Plan

Kinds = Sequence[tuple[StageMoments, float | Floats]]


def peak_bytes(plans: tuple[Plan, ...], cost: Cost) -> Ints:
    """Returns int64 [num_ranks], of all stages: the bytes of every rank at its fullest moment over all
    micro-batches."""
    if plans[0].pipelines is not None:
        return _pipelined_bytes(plans, cost)
    return _job_bytes(plans, cost, 1)


def step_bytes(plan: Plan, cost: Cost, shares: Floats | None = None) -> Ints:
    """Gives the `peak_bytes` of a step whose micro-batches are all like `plan`, wherever it is in a step. shares: of
    each sequence's tokens the share of which something is on hosts, [sequences]; None: as the model says."""
    if cost.pp == 1 and shares is None:
        return peak_bytes((plan,), cost)
    return _job_bytes((plan,), cost, cost.pp, None if shares is None else shares_of_ranks(plan, shares))


def _job_bytes(plans: tuple[Plan, ...], cost: Cost, copies: int, shares: Floats | None = None) -> Ints:
    """Returns int64 [stages x ranks of a stage]: stage s of pp holds pp - s micro-batches that follow one another, each
    `copies` times. shares: of each rank's tokens that of which something is on hosts, [ranks]."""
    tokens = np.stack([plan.tokens_per_rank for plan in plans]).astype(np.float64)
    received = np.stack([kept_over_own(plan, cost) for plan in plans])
    ways = [((plan, plan.forward, False), (plan, plan.backward, True)) for plan in plans]
    away = np.stack([np.maximum(*(moment_bytes(*way, cost) for way in both)) for both in ways])
    kinds, peak = _kinds(cost, shares), []
    for stage in range(cost.pp):
        of: Kinds = [(stages[stage % len(stages)], share) for stages, share in kinds]
        kept = sum(
            share * (one.kept * tokens + one.received * received + one.spread * np.sqrt(tokens) + one.fixed)
            for one, share in of
        )
        lasting = np.repeat(kept, copies, axis=0)
        peak.append(_fullest(of, stage, cost.pp, lasting, (tokens, received, away)))
    return np.concatenate(peak)


def _kinds(cost: Cost, shares: Floats | None) -> list[tuple[list[StageMoments], float | Floats]]:
    """Returns the moments of every stage with the share of each rank's tokens that they are of: of those of which
    something is on hosts, and of others. shares: as of _job_bytes."""
    if shares is None:
        return [(moments_of_stages(cost), 1.0)]
    models = replace(cost.model, offload_tokens=ALL_LAYERS), cost.model.offloading(0)
    sent, others = (moments_of_stages(replace(cost, model=model)) for model in models)
    return [(sent, shares), (others, 1 - shares)]


def _pipelined_bytes(plans: tuple[Plan, ...], cost: Cost) -> Ints:
    """Returns the bytes of every rank, int64 [num_ranks]: stage s of pp holds the activations of pp - s micro-batches
    that follow one another."""
    pipelines = plans[0].pipelines
    assert pipelines is not None
    peak = np.full(cost.cluster.num_ranks, pipeline_state_bytes(cost, cost.cluster.num_ranks, 1), np.int64)
    tokens = np.stack([plan.tokens_per_rank for plan in plans])
    staged = int((pipelines.tp * pipelines.pp)[pipelines.pp > 1].sum())
    for lead, tp, pp in zip(*(column.tolist() for column in (pipelines.lead, pipelines.tp, pipelines.pp)), strict=True):
        mine = tokens[tokens[:, lead] > 0, lead]
        rows = (-(-mine // tp) * tp).astype(np.float64)[:, None]  # what a rank has at most, times the ranks
        of, nothing = pipeline_moments(cost, tp, pp, staged), np.zeros((len(rows), 1), np.int64)
        for stage in range(pp):
            first = lead + stage * tp
            lasting = of.kept * rows + of.fixed
            peak[first : first + tp] = _fullest([(of, 1.0)], stage, pp, lasting, (rows, nothing, nothing))
        ends = int(np.ceil(of.state)) + tables_sum_bytes(cost, tp, pp, staged)  # when nothing of a micro-batch is left
        peak[first : first + tp] = np.maximum(peak[first : first + tp], ends)
    return peak


def _fullest(of: Kinds, stage: int, stages: int, lasting: Floats, each: tuple[Floats, Ints, Ints]) -> Ints:
    """Returns int64 [ranks]: the bytes of the ranks of a stage at their fullest moment.

    of: its moments, with the share of each rank's tokens that they are of. lasting: [micro-batches, ranks], bytes that
    each keeps while it is under way. each: of every micro-batch and rank its tokens, the bytes of q and kv that a layer
    receives, and of what its attention has away from home.
    """
    state = of[0][0].state
    peak = np.full(lasting.shape[1], state, np.float64)
    under_way = lasting if stages == 1 else np.array([_window(rows, stages - stage) for rows in lasting.T])
    shares = [share for _, share in of]
    moments = [one.moments(stage == stages - 1, stage == 0) for one, _ in of] if len(lasting) else []
    for lines in zip(*moments, strict=True):
        weighed = list(zip(lines, shares, strict=True))
        constant = sum(share * line.constant for line, share in weighed)
        beside = np.asarray(sum(share * _beside(line, *each) for line, share in weighed))
        if stages > 1:  # a stage is at work on one micro-batch while others come and go
            beside = beside.max(axis=0)
        found = constant + under_way + beside
        peak = np.maximum(peak, state + (found.max(axis=0) if stages == 1 else found))
    return np.asarray(np.ceil(peak), np.int64)


def _beside(line: MomentLine, tokens: Floats, received: Ints, away: Ints) -> Floats:
    """Returns the bytes of micro-batches and ranks at a moment beside what is kept, [micro-batches, ranks]."""
    found = line.token * tokens + line.received * received + line.spread * np.sqrt(tokens)
    if line.copies:
        found = found + away
    return np.asarray(found + line.chunk * np.minimum(tokens, line.chunk_tokens))


def _window(rows: Floats, width: int) -> float:
    """Returns the largest sum of `width` successive values, or of all."""
    total = np.concatenate([[0.0], np.cumsum(rows)])
    width = min(width, len(rows))
    return float((total[width:] - total[: len(total) - width]).max())
