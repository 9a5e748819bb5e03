"""Makes ranks go from round to round, and stay until what they send has arrived.

A round is messages and the attends that stand after them in the list, up to the next message. By data alone a rank
attends as soon as it has the keys, and passes them on as soon as they are there, however many of its own messages are
still under way. Where a plan is in rounds (`Plan.in_rounds`), a rank's operations of a round wait for all messages of
the round before that it sends or receives, as in a loop that waits for both before it goes on; its messages wait at
both of their ends, and also for the attends of the round before the last, as where two streams take turns. An attend
that needs a message of its own round, as the last one of a list may, waits for all of them.

Transformer Engine's ring is such a loop (docs/systems/ring.md).
"""

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.plans.dataflow import Edges
from zbench.plans.plan import ATTEND, Ops


def in_rounds(found: Edges, ops: Ops) -> Edges:
    """Returns `found` with the waits of a list in rounds."""
    attend = ops.kind == ATTEND
    before, after = round_waits(attend, (ops.src, ops.dst), np.zeros(len(ops), np.int64), found)
    kind = found.producer.dtype
    return Edges(
        np.concatenate([found.producer, before.astype(kind)]), np.concatenate([found.consumer, after.astype(kind)])
    )


def round_waits(attend: Flags, ends: tuple[Ints, Ints], part: Ints, found: Edges) -> tuple[Ints, Ints]:
    """Returns (producers, consumers) of the waits of rounds, of a list of operations.

    attend: [n], the others are messages. ends: [n] each, where an operation starts and where a message arrives. part:
    int64 [n], ascending; operations of different parts of a list do not wait for each other. found: the list's data
    edges.
    """
    opens = ~attend & np.concatenate([[True], attend[:-1]])
    number = np.cumsum(opens) + 3 * part  # further apart than any of the waits reaches
    index, most = np.arange(len(attend)), int(number.max(initial=0)) + 3
    message = np.flatnonzero(~attend)
    both = np.concatenate([message, message])
    at_both = np.concatenate([ends[0][message], ends[1][message]]).astype(np.int64)
    mine, here = index[attend], ends[0][attend].astype(np.int64)
    moved = _Keyed.of(at_both * most + number[both], both)
    attended = _Keyed.of(here * most + number[mine], mine)
    own = found.consumer[
        attend[found.consumer] & ~attend[found.producer] & (number[found.producer] == number[found.consumer])
    ]
    own = np.unique(own).astype(np.int64)
    waits = (
        moved.before(at_both * most + number[both] - 1, both),
        moved.before(here * most + number[mine] - 1, mine),
        moved.before(ends[0][own].astype(np.int64) * most + number[own], own),
        attended.before(at_both * most + number[both] - 2, both),
    )
    producer, consumer = (np.concatenate(side) for side in zip(*waits, strict=True))
    return producer, consumer


def later_computes(sender: tuple[Ints, Ints], compute: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Returns (producers, consumers): of every message, and the first compute after it at the place that sends it.

    sender, compute: (operations, ascending; the place of each).
    """
    size = 1 + int(max(sender[0].max(initial=0), compute[0].max(initial=0)))
    key = np.sort(compute[1] * size + compute[0])
    at = np.searchsorted(key, sender[1] * size + sender[0])
    there = at < len(key)
    there[there] = key[at[there]] // size == sender[1][there]
    return sender[0][there], key[at[there]] % size


class _Keyed:
    """Operations by a key, for all that have the same."""

    def __init__(self, keys: Ints, ops: Ints) -> None:
        self.keys, self.ops = keys, ops

    @staticmethod
    def of(keys: Ints, ops: Ints) -> "_Keyed":
        order = np.argsort(keys, kind="stable")
        return _Keyed(keys[order], ops[order])

    def before(self, wanted: Ints, consumer: Ints) -> tuple[Ints, Ints]:
        """Returns edges from all operations with the key that each consumer wants."""
        first, last = np.searchsorted(self.keys, wanted), np.searchsorted(self.keys, wanted, side="right")
        count = last - first
        place = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
        return self.ops[place], np.repeat(consumer, count)
