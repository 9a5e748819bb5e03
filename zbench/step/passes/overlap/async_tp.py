"""Exchanges as messages behind one matmul each, as PyTorch's asynchronous tensor parallelism has them.

`fused_all_gather_matmul` computes a member's own slice first and then those of the members after it, each fetched from
where it is; `fused_matmul_reduce_scatter` computes the slices of the members after it, each taken by its owner, and its
own last (torch 2.13, torch/distributed/_symmetric_memory). What is between two such matmuls is computed whole, and what
gradients of parameters alone read is gathered whole.
"""

from itertools import groupby

from zbench.step.passes.overlap.messages import arriving, leaving, pieces_of_step, steps
from zbench.step.passes.overlap.segments import ExchangeSegment, Row, SegmentFormula


def async_tp(segment: ExchangeSegment) -> list[Row]:
    """Returns the operations of a segment."""
    found = [row for step in steps(segment) for one in segment.early for row in arriving(segment, one, step, False)]
    found += segment.late
    for (reads, sums), run in groupby(segment.by_tokens, lambda one: _exchanges(segment, one)):
        matmuls = list(run)
        if sums:
            found += _summed(segment, matmuls)
        elif reads:
            order = (0, *steps(segment))
            found += [row for step in order for row in _of_step(segment, matmuls, step)]
        else:
            found += [row for one in matmuls for row in _whole(segment, one)]
    return found + [row for one in segment.over_tokens for row in _whole(segment, one)]


def _exchanges(segment: ExchangeSegment, matmul: SegmentFormula) -> tuple[bool, bool]:
    """Returns whether a formula reads what is gathered, and whether it adds to what is reduced."""
    return any(segment.reads(matmul, one) for one in segment.early), segment.adds(matmul)


def _of_step(segment: ExchangeSegment, matmuls: list[SegmentFormula], step: int) -> list[Row]:
    found = []
    for member, _, parts in pieces_of_step(segment, step, False):
        found += [row for one in matmuls for row in segment.compute(one, member, parts)]
    return found


def _summed(segment: ExchangeSegment, matmuls: list[SegmentFormula]) -> list[Row]:
    found: list[Row] = []
    for step in steps(segment):
        for member, owner, parts in pieces_of_step(segment, step, False):
            found += [row for one in matmuls for row in segment.compute(one, member, parts)]
            found += leaving(segment, (member, owner, parts), False)
    return found + _of_step(segment, matmuls, 0)


def _whole(segment: ExchangeSegment, matmul: SegmentFormula) -> list[Row]:
    return [row for member in range(len(segment.members)) for row in segment.whole(matmul, member)]
