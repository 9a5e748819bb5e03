"""Exchanges as messages behind all matmuls of a segment: while one member's tokens are computed, the next arrive.

CommFuse (arXiv 2604.24013) as its digests tell it: there is no barrier and no slice at the end whose exchange is behind
nothing. A member begins with its own tokens, which need no message, and ends with them, of which no sum leaves it. With
both a gather and a reduction it begins with the matmuls of its own tokens up to the one that sums, and ends with that
one. A slice goes through all matmuls of a segment. Messages of gathers go as soon as they can, before those
of sums, each of which waits for its slice's matmuls.
"""

from collections.abc import Sequence

from zbench.step.passes.overlap.messages import arriving, leaving, pieces_of_step, steps
from zbench.step.passes.overlap.segments import ExchangeSegment, Row, SegmentFormula


def commfuse(segment: ExchangeSegment, ring: bool) -> list[Row]:
    """Returns the operations of a segment, its exchanges by ring or directly."""
    members, found = range(len(segment.members)), list[Row]()
    for gathers in (segment.early, segment.late):
        found += [row for step in steps(segment) for one in gathers for row in arriving(segment, one, step, ring)]
    first = [one for one in segment.by_tokens if segment.early and not segment.adds(one)]
    found += _own(segment, first)
    for step in steps(segment):
        for piece in pieces_of_step(segment, step, ring):
            member, _, parts = piece
            found += [row for matmul in segment.by_tokens for row in segment.compute(matmul, member, parts)]
            found += leaving(segment, piece, ring)
    found += _own(segment, [one for one in segment.by_tokens if one not in first])
    return found + [row for one in segment.over_tokens for member in members for row in segment.whole(one, member)]


def _own(segment: ExchangeSegment, matmuls: Sequence[SegmentFormula]) -> list[Row]:
    """Returns the operations of members for their own tokens."""
    return [
        row
        for member, _, parts in pieces_of_step(segment, 0, True)
        for matmul in matmuls
        for row in segment.compute(matmul, member, parts)
    ]
