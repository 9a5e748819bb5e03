"""Room for Hydraulis' long sequences, each on a pipeline with little else under way.

pp micro-batches of a pipeline are under way together, so its capacity is about a pp-th of what it has room for. A
sequence above that gets a micro-batch of its own on one pipeline, and that pipeline's capacity falls: what is left of
its room is shared by the other micro-batches under way. So any pp of its micro-batches have room together, whatever
their order.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.hydraulis.cost import Schemes


@dataclass(frozen=True, slots=True, eq=False)
class LongPlacement:
    """The long sequences of a batch have pipelines of a strategy, and leave others some room.

    pin: int64 [n], the pipeline of every long sequence; -1: the others may be wherever they fit. capacity: int64
    [num_pipelines], tokens of a micro-batch beside those. over: tokens of sequences that no pipeline has room for.
    """

    pin: Ints
    capacity: Ints
    over: int

    def kinds(self, scheme: Ints) -> tuple[Ints, Ints]:
        """Groups pipelines that can have the same sequences: (int64 [num_kinds], a pipeline of each kind; int64
        [num_pipelines], the kind of each). One with long sequences is a kind of its own."""
        pipeline = np.arange(len(scheme))
        own = np.isin(pipeline, self.pin)
        names = np.where(own, -1 - pipeline, scheme)
        _, first, kind = np.unique(names, return_index=True, return_inverse=True)
        return first, kind

    def fits(self, lengths: Ints, kinds: tuple[Ints, Ints]) -> Flags:
        """Says whether pipelines of a kind can have a sequence, [num_kinds, n]; each fits one at least."""
        first, kind = kinds
        found = lengths <= self.capacity[first, None]
        pinned = np.flatnonzero(self.pin >= 0)
        found[:, pinned] = False
        found[kind[self.pin[pinned]], pinned] = True
        return np.asarray(found)


def room(lengths: Ints, seconds: Floats, scheme: Ints, of: Schemes) -> LongPlacement:
    """Gives long sequences their pipelines, one by one from the longest on.

    While the next one is above the capacity of every pipeline, it goes to the pipeline that then ends first or, if
    not all have room so, to the one in which it leaves least.

    lengths: ascending. seconds: [num_schemes, n], of every sequence on a stage. scheme: int64 [num_pipelines], of
    every pipeline.
    """
    rooms = (of.capacity, of.alone, of.window, of.working)
    soonest = LongPlacement(*_pinned(lengths, seconds, scheme, of.tp, of.pp, rooms, False))
    if not soonest.over:
        return soonest
    snug = LongPlacement(*_pinned(lengths, seconds, scheme, of.tp, of.pp, rooms, True))
    return snug if snug.over < soonest.over else soonest


@nb.njit(**ENTERED)
def _pinned(lengths, seconds, scheme, tp, pp, rooms, snug):  # type: ignore[no-untyped-def]
    """Gives long sequences their pipelines, from the longest on; returns the fields (pin, capacity, over) of Room."""
    capacity, alone, window, working = rooms
    number = len(scheme)
    pin, level, over = np.full(len(lengths), -1, np.int64), capacity[scheme], 0
    left, pins = window[scheme], np.zeros(number, np.int64)
    total, longest = np.zeros(number), np.zeros(number)
    for i in range(len(lengths) - 1, -1, -1):
        if lengths[i] <= level.max():
            break
        to, least, widest = -1, np.inf, 0
        for p in range(number):
            k = scheme[p]
            s = seconds[k, i]
            rest = _rest(left[p], pins[p], lengths[i], tp[k], working[k])
            if alone[k] > alone[scheme[widest]]:
                widest = p
            if lengths[i] <= alone[k] and rest >= 0 and pins[p] + 1 < pp[k]:
                price = rest if snug else total[p] + s + (pp[k] - 1) * max(longest[p], s)
                if price < least:
                    to, least = p, price
        if to < 0:
            pin[i] = widest
            over += lengths[i]
            continue
        k = scheme[to]
        left[to] = _rest(left[to], pins[to], lengths[i], tp[k], working[k])
        pins[to] += 1
        pin[i] = to
        level[to] = int(left[to] / (pp[k] - pins[to])) // tp[k] * tp[k]
        total[to] += seconds[k, i]
        longest[to] = max(longest[to], seconds[k, i])
    return pin, level, over


@nb.njit(**INNER)
def _rest(left, pins, tokens, tp, working):  # type: ignore[no-untyped-def]
    """Returns how many tokens a pipeline has left for others under way with one more sequence. It is worked on, too, if
    it is the longest, which is the first."""
    rows = (tokens + tp - 1) // tp * tp
    return left - rows - (working * rows if pins == 0 else 0.0)
