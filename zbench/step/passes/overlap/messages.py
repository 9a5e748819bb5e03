"""Exchanges as messages between the members of a group: where each step of them goes, by ring or directly.

In step k of n - 1 (n members, counted round the group) a member computes the slice of the member k before it (ring)
or k after it (direct). By ring it has come from the neighbour before, and what is summed goes on to the neighbour
after, until it is home; directly it comes from its home, and goes there.
"""

from collections.abc import Iterator

from zbench.describe.arrays import Ints
from zbench.step.operations import MOVE, SEND
from zbench.step.passes.overlap.segments import ExchangeSegment, Row


def steps(segment: ExchangeSegment) -> range:
    """Returns the steps of an exchange; step 0 is a member's own slice, of which nothing moves."""
    return range(1, len(segment.members))


def pieces_of_step(segment: ExchangeSegment, step: int, ring: bool) -> Iterator[tuple[int, int, Ints]]:
    """Yields (member, whose slice it computes in a step, the parts of the slice), slices of a GPU one after another."""
    for at in range(len(segment.slices[0])):
        for member in range(len(segment.members)):
            owner = segment.at(member, -step if ring else step)
            yield member, owner, segment.slices[owner][at]


def arriving(segment: ExchangeSegment, gather: Row, step: int, ring: bool) -> list[Row]:
    """Returns the messages of a gather which bring what is computed in a step."""
    found = []
    for member, owner, parts in pieces_of_step(segment, step, ring):
        found += segment.message(SEND, gather, (segment.at(member, -1) if ring else owner, member), parts)
    return found


def leaving(segment: ExchangeSegment, piece: tuple[int, int, Ints], ring: bool) -> list[Row]:
    """Returns the messages by which a member's sums of a piece leave it after they were computed."""
    member, owner, parts = piece
    ends = member, segment.at(member, 1) if ring else owner
    return [row for one in segment.reduces for row in segment.message(MOVE, one, ends, parts)]
