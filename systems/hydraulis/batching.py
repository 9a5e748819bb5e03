"""Hydraulis' ways of batching: which pipeline, and which of its micro-batches, has which sequence.

search: dispatch and packing with moves and swaps (zbench.systems.hydraulis.dispatch, hydraulis_pack). published: the
two stages of the public code. fixed: its dispatch, then greedy packs of one size. first_fit: packs of one size dealt in
turn, without any dispatch, which is what its baselines do (zbench.systems.hydraulis.published).
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.plans.plan import Ints
from zbench.systems.hydraulis.cost import Schemes
from zbench.systems.hydraulis.dispatch import dispatch, orders
from zbench.systems.hydraulis.pack import pack_pipelines
from zbench.systems.hydraulis.published import first_fit, greedy_packs, pack_evenly, packs_in_turn, published_dispatch
from zbench.systems.hydraulis.room import LongPlacement, room

WAYS = ("search", "published", "fixed", "first_fit")
WORK = 30_000_000  # places that a candidate's trials look at, and its moves: less than a tenth of a second each


@dataclass(frozen=True, slots=True, eq=False)
class SchemeSequences:
    """The sequences of a batch, sorted by length, with their seconds on every scheme. lengths: int64 [n], ascending.
    seconds: [num_schemes, n], of each on a stage. arrival: int64 [n], their places here in the batch's order."""

    lengths: Ints
    seconds: Floats
    arrival: Ints

    @staticmethod
    def of(lengths: Ints, schemes: Schemes) -> "SchemeSequences":
        """Sorts a batch's sequences and works out their seconds on every scheme."""
        order = np.argsort(lengths, kind="stable")
        return SchemeSequences(lengths[order], schemes.seconds(lengths[order]), np.argsort(order, kind="stable"))


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """Sequences dealt to pipelines and micro-batches. pipeline, micro: int64 [n], of every sequence, in the order of
    Sequences. each: seconds of a stage, without what is fixed, [num_pipelines, micro_batches]. played: [num_pipelines],
    of all micro-batches and pp - 1 times the longest; seconds: likewise, as the way of batching reckons it."""

    pipeline: Ints
    micro: Ints
    each: Floats
    played: Floats
    seconds: Floats


def place_on_pipelines(
    way: str, given: SchemeSequences, scheme: Ints, of: Schemes, trials: int, pack_tokens: int | None
) -> Assignment:
    """Deals sequences to pipelines and their micro-batches. scheme: int64 [num_pipelines], the widest first. trials:
    orders of a dispatch. pack_tokens: of a pack of fixed and first_fit, where a pipeline holds so many; None: what it
    holds."""
    has = room(given.lengths, given.seconds, scheme, of)
    if way == "first_fit":
        return _first_fit(given, has, scheme, of, pack_tokens)
    kinds = first, kind = has.kinds(scheme)
    of_kind, fits = given.seconds[scheme[first]], has.fits(given.lengths, kinds)
    if way == "search":
        pipeline = _searched(of_kind, fits, kind, of.pp[scheme], trials)
        own, fullest = given.seconds[scheme[pipeline], np.arange(len(pipeline))], np.maximum(has.capacity, 1)
        micro, total = pack_pipelines(own, given.lengths, pipeline, of.fixed[scheme], of.pp[scheme], fullest)
        return Assignment(pipeline, micro, _each(own, pipeline, micro, len(scheme)), total, total)
    pipeline = published_dispatch(of_kind, fits, kind, of.pp[scheme], _tries(fits, kind, trials))
    if way == "fixed":
        return _fixed(given, pipeline, has, scheme, of, pack_tokens)
    return _published(given, pipeline, has, scheme, of)


def _tries(fits: Flags, kind: Ints, trials: int) -> int:
    return min(trials, max(WORK // (int(fits.shape[1]) * len(kind)), 1))


def _searched(seconds: Floats, fits: Flags, kind: Ints, stages: Ints, trials: int) -> Ints:
    count, number = seconds.shape[1], len(kind)
    tries = orders(seconds, fits, _tries(fits, kind, trials))
    moves = WORK * number // (count * (count + number)) if trials > 1 else 0
    return dispatch(seconds, fits, kind, stages, tries, moves)[0]


def _published(given: SchemeSequences, pipeline: Ints, has: LongPlacement, scheme: Ints, of: Schemes) -> Assignment:
    micro, bound = np.zeros(len(pipeline), np.int64), np.zeros(len(scheme))
    own = given.seconds[scheme[pipeline], np.arange(len(pipeline))]
    for p, k in enumerate(scheme.tolist()):
        mine = np.flatnonzero(pipeline == p)
        if len(mine):
            capacity = max(int(has.capacity[p]), 1)
            found, bound[p] = pack_evenly(own[mine], given.lengths[mine], of.fixed[k], of.pp[k], capacity)
            micro[mine] = _fullest_first(found, given.lengths[mine])
    return replace(_played(given, pipeline, micro, scheme, of), seconds=bound)


def _fixed(
    given: SchemeSequences, pipeline: Ints, has: LongPlacement, scheme: Ints, of: Schemes, pack_tokens: int | None
) -> Assignment:
    micro = np.zeros(len(pipeline), np.int64)
    for p in range(len(scheme)):
        mine = np.flatnonzero(pipeline == p)
        lengths = given.lengths[mine]
        micro[mine] = _fullest_first(greedy_packs(lengths, _size(lengths, int(has.capacity[p]), pack_tokens)), lengths)
    return _played(given, pipeline, micro, scheme, of)


def _first_fit(
    given: SchemeSequences, has: LongPlacement, scheme: Ints, of: Schemes, pack_tokens: int | None
) -> Assignment:
    """Packs by first fit; sequences that need a pipeline nearly to themselves have micro-batches of their own, the
    first ones."""
    count = len(given.lengths)
    pipeline, micro = has.pin.copy(), np.zeros(count, np.int64)
    held = np.zeros(len(scheme), np.int64)
    for seq in np.flatnonzero(has.pin >= 0).tolist():
        micro[seq] = held[has.pin[seq]]
        held[has.pin[seq]] += 1
    rest = given.arrival[has.pin[given.arrival] < 0]
    if len(rest):
        lengths = given.lengths[rest]
        pack = first_fit(lengths, _size(lengths, int(has.capacity.max()), pack_tokens))
        tokens = np.zeros(int(pack.max()) + 1, np.int64)
        np.add.at(tokens, pack, lengths)
        of_pack = packs_in_turn(tokens, has.capacity, held)
        place = np.empty(len(tokens), np.int64)
        for p in np.unique(of_pack).tolist():
            mine = np.flatnonzero(of_pack == p)
            place[mine] = held[p] + np.arange(len(mine))
        pipeline[rest], micro[rest] = of_pack[pack], place[pack]
    return _played(given, pipeline, micro, scheme, of)


def _size(lengths: Ints, capacity: int, pack_tokens: int | None) -> int:
    """Returns the tokens of a pack: `pack_tokens`, or the longest of `lengths` where that is more, as far as `capacity`
    goes."""
    longest = int(lengths.max(initial=1))
    return min(max(pack_tokens, longest), capacity) if pack_tokens else capacity


def _fullest_first(pack: Ints, tokens: Ints) -> Ints:
    """Packs numbered by falling tokens; empty ones have no number."""
    held = np.zeros(int(pack.max(initial=0)) + 1, np.int64)
    np.add.at(held, pack, tokens)
    place = np.empty(len(held), np.int64)
    place[np.argsort(-held, kind="stable")] = np.arange(len(held))
    return place[pack]


def _played(given: SchemeSequences, pipeline: Ints, micro: Ints, scheme: Ints, of: Schemes) -> Assignment:
    own = given.seconds[scheme[pipeline], np.arange(len(pipeline))]
    each = _each(own, pipeline, micro, len(scheme))
    used, fixed = (each > 0).sum(axis=1), of.fixed[scheme]
    bubble = np.where(used > 0, (of.pp[scheme] - 1) * (each.max(axis=1) + fixed), 0.0)
    played = each.sum(axis=1) + used * fixed + bubble
    return Assignment(pipeline, micro, each, played, played)


def _each(own: Floats, pipeline: Ints, micro: Ints, number: int) -> Floats:
    each = np.zeros((number, int(micro.max()) + 1))
    np.add.at(each, (pipeline, micro), own)
    return each
