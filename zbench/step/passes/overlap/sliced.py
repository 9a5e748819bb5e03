"""Collectives by slices of the tokens: while a slice is computed, later ones are gathered and earlier ones reduced.

A slice has a share of every GPU's own tokens, so that each part of it comes home to where it began. It goes through all
matmuls of a segment. Gathers go before reductions, each of which waits for its slice's matmuls. The last slice's
reduction has nothing to be behind but gradients of parameters, and a forward has none of these.
"""

import numpy as np

from zbench.step.passes.overlap.segments import ExchangeSegment, Row


def sliced(segment: ExchangeSegment) -> list[Row]:
    """Returns the operations of a segment, by slices."""
    members = range(len(segment.members))
    slices = [np.concatenate(own) for own in zip(*segment.slices, strict=True)]
    found = [row for parts in slices for one in segment.early for row in segment.collective(one, parts)]
    found += segment.late
    for parts in slices:
        for matmul in segment.by_tokens:
            found += [row for member in members for row in segment.compute(matmul, member, parts)]
        found += [row for one in segment.reduces for row in segment.collective(one, parts)]
    return found + [row for one in segment.over_tokens for member in members for row in segment.whole(one, member)]
