"""Layers that were left out of a program add seconds to it: hops end later, and so does what waits for them.

What a layer adds to a queue was played: the mean, over the steady half of a run of instances, of the times between the
ends of their last hops in it. Where layers are left out of that run, what waits for the instances before them waits for
so much longer. A hop that waits for several begins when the last of them has ended, so it is later by what that moves:
what was left out of one stage of a pipeline may be hidden behind another. A hop waits for links as long as it did.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.compiled import ENTERED, IN_PLACE
from zbench.simulator.steps.program import StepProgram
from zbench.simulator.steps.trains.columns import TrainTimeline

_AGREE = 0.01  # relative: of what layers add in the third and in the last quarter
_SAME = 1e-10  # relative: of the same where layers add evenly; rounding is some 1e-13


class Added(NamedTuple):
    """The seconds that cuts add. cut: of each instance the cut of its run (-1: none) and whether it is after it, int64
    [instances, 2]. late: seconds by cut and queue; the last row, of no cut, is 0."""

    cut: Ints
    late: Floats


@dataclass(frozen=True)
class LeftOut:
    """The layers that were left out of a program. timeline: of the program without it. skipped: for each instance,
    how many layers stood between it and the one before it in its run. turn: the layers after which what is played
    repeats, of which the steady half of a run has whole turns. repeating: the cuts that are where layers repeat
    (zbench.simulator.steps.repeating), so that the last but one before the cut stands for the whole steady half."""

    program: StepProgram
    timeline: TrainTimeline
    skipped: Ints
    turn: int = 1
    repeating: frozenset[int] = frozenset()

    @cached_property
    def cuts(self) -> list[int]:
        """The instances that layers stood before."""
        return [int(at) for at in np.flatnonzero(self.skipped)]

    def _ends_of(self, *numbers: int) -> Floats:
        """Returns when the last hop in each queue has ended of instances of one variant, float64 [instances, queues]; 0
        where they have none."""
        rows, of = self.program.hops.rows, self.program.rows_of(numbers[0])
        hops = rows.queue_a[of], rows.queue_b[of], self.program.begin[list(numbers)]
        found: Floats = _last(*hops, self.timeline.release, self.program.queues)
        return found

    @cached_property
    def _adds(self) -> list[tuple[Floats, float]]:
        """For each cut what `_steady` has."""
        return [self._steady(number) for number in self.cuts]

    def alike(self, number: int) -> list[int]:
        """Returns the instances of a cut's run that are alike, as those that were left out are."""
        return self.program.alike(number)

    def _half(self, count: int) -> int:
        """Returns where the steady half of so many instances that are alike begins."""
        half, quarter = count // 2, 2 * self.turn
        return half if self.turn == 1 else count - max((count - half) // quarter, 1) * quarter

    @cached_property
    def _known(self) -> dict[int, tuple[Floats, float]]:
        """The results of `_added_by` that are known, by cut."""
        return {}

    def _steady(self, number: int) -> tuple[Floats, float]:
        """Returns what `_added_by` has of a cut, which is asked for several times."""
        if number not in self._known:
            self._known[number] = self._added_by(number)
        return self._known[number]

    def _added_by(self, number: int) -> tuple[Floats, float]:
        """Returns what a layer of a cut's run adds to each queue, seconds [queues], and by how much, relatively, the
        most that one adds to a queue differs between the third and the last quarter of the run."""
        if number in self.repeating:
            return (self._ends_of(number - 1) - self._ends_of(number - 2))[0], 0.0
        same = self.alike(number)
        half, last = self._half(len(same)), len(same) - 1
        if half < 1 or last - half < 1:
            return np.zeros(self.program.queues), np.inf
        middle = (half + last) // 2
        begin, center, end = self._ends_of(same[half - 1], same[middle], same[last])
        mean = (end - begin) / (last - half + 1)
        first, second = (center - begin) / (middle - half + 1), (end - center) / (last - middle)
        return mean, float(abs(first.max() - second.max()) / (max(mean.max(), 1e-12) * 2))

    def looked_at(self, number: int) -> Ints:
        """Returns the hops of the instances by which the run of a cut is found to have settled."""
        same, begin = self.alike(number), self.program.begin
        half, last = self._half(len(same)), len(same) - 1
        three = sorted({same[at] for at in (half - 1, (half + last) // 2, last) if at >= 0})
        return np.concatenate([np.arange(begin[at], begin[at + 1]) for at in three])

    def agrees(self, number: int) -> bool:
        """Returns whether the run of a cut has settled, of which what `looked_at` returns has ended."""
        return self._steady(number)[1] <= _AGREE

    def is_even(self, number: int) -> bool:
        """Returns whether layers of the run of a cut add the same, to rounding; as `agrees` otherwise. Others of its
        queues may fall behind, layer by layer, as those of reductions do."""
        return self.turn == 1 and self._steady(number)[1] <= _SAME

    @cached_property
    def steady(self) -> list[tuple[list[int], float]]:
        """The instances of the steady half of each cut's run, and how many layers that were left out each of them
        stands for."""
        found = []
        for number in self.cuts:
            same = self.alike(number)
            half = [number - 2] if number in self.repeating else same[max(self._half(len(same)), 0) :]
            found.append((half, self.skipped[number] / len(half)))
        return found

    @cached_property
    def times(self) -> Floats:
        """The number of layers that each instance stands for, with those that were left out and are not in `beside`,
        float64 [instances]."""
        found = np.ones(len(self.program.of))
        for number, (half, more) in zip(self.cuts, self.steady, strict=True):
            found[half] += 0 if number in self._beside_others else more
        return found

    @property
    def settled(self) -> bool:
        """Whether all runs are that something was left out of."""
        return all(apart <= _AGREE for _, apart in self._adds)

    @cached_property
    def added(self) -> Added:
        """The seconds that each cut adds to what waits across it."""
        of = np.full((len(self.program.of), 2), -1, np.int64)
        late = np.zeros((len(self.cuts) + 1, self.program.queues))
        for at, number in enumerate(self.cuts):
            late[at] = self.skipped[number] * self._adds[at][0]
            mine = np.array(self.program.run_of(number))
            of[mine, 0], of[mine, 1] = at, mine >= number
        return Added(of, late)

    def _later_by(self, late: Floats) -> Floats:
        """Returns the seconds by which each hop is later where cuts add `late` (Added.late), [hops]."""
        program, times, of = self.program, self.timeline, self.added.cut
        adds = (of[:, 1] == 1) & np.isin(of[:, 0], np.flatnonzero(late.any(axis=1)))
        if not adds.any():
            return np.zeros(len(times.start))
        moments, hops = (times.start, times.release, times.done), (program.hops, program.begin, program.owner)
        found: Floats = _later(hops, program.assembled.following, moments, (of, late), int(np.argmax(adds)))
        return found

    @cached_property
    def later(self) -> Floats:
        """The seconds by which each hop is later with all layers, [hops]."""
        return self._later_by(self.added.late)

    @cached_property
    def later_computes(self) -> Floats:
        """The seconds by which hops are later with all layers of those runs alone that repeat and whose hops take no
        links, [hops]."""
        linkless = [number in self._beside_others for number in self.cuts]
        return self._later_by(self.added.late * np.array([*linkless, False])[:, None])

    @cached_property
    def _beside_others(self) -> frozenset[int]:
        """The cuts where layers repeat whose hops take no links, as those of optimizers."""
        return frozenset(number for number in self.repeating if self.program.is_linkless(number))

    @cached_property
    def beside(self) -> TrainTimeline:
        """The timeline in which what is under way beside computes is counted. Where layers repeat, those of runs whose
        hops take no links are in it, as what others send meanwhile goes on at its own time."""
        played, program = self.timeline, self.program
        if not self._beside_others:
            return played
        more = self.later_computes
        found = replace(played, start=played.start + more, release=played.release + more, done=played.done + more)
        for cut, late in zip(self.cuts, self.added.late, strict=False):
            if cut in self._beside_others:
                hops = slice(*program.begin[cut - 1 : cut + 1].tolist())
                found.release[hops] += late[program.hops.rows.queue_a[program.rows_of(cut - 1)]]
        return found

    @cached_property
    def done(self) -> Floats:
        """When the data of every hop has arrived with all layers, seconds [hops]."""
        return self.timeline.done + self.later


@nb.njit(**ENTERED)
def _last(queue_a, queue_b, begin, release, queues):  # type: ignore[no-untyped-def]
    """Returns the latest release in each queue of the hops from each of `begin` on, 0 where there is none."""
    found = np.zeros((len(begin), queues))
    for number in range(len(begin)):
        for hop in range(len(queue_a)):
            for queue in (queue_a[hop], queue_b[hop]):
                if queue >= 0:
                    found[number, queue] = max(found[number, queue], release[begin[number] + hop])
    return found


@nb.njit(**ENTERED)
def _later(hops, following, times, cuts, first):  # type: ignore[no-untyped-def]
    """Returns by how much each hop is later, seconds [hops]; what a hop waits for stands before it. hops: ProgramHops,
    where those of instances begin, and their instances. cuts: of `Added`. first: the first instance behind a cut."""
    before, found = np.zeros(len(times[0])), np.zeros(len(times[0]))
    _follow(hops, following, times, cuts, hops[1][first], before, found)
    return found


@nb.njit(**IN_PLACE)
def _follow(hops, following, times, cuts, since, before, found):  # type: ignore[no-untyped-def]
    """Follows all hops, as `_later`. since: the first hop that may be later. before: when hops could begin, as they
    were played, for all that was followed. found: the same with all layers, and once a hop is followed by how much that
    is later."""
    next_a, next_b, next_pair, offsets, followers = following
    start, release, done = times
    ((row, rows), begin, owner), (cut, late) = hops, cuts
    for number in range(len(begin) - 1):
        of = cut[number, 0] if cut[number, 1] == 0 else np.int64(-1)  # the cut that it stands before
        for hop in range(begin[number], begin[number + 1]):
            found[hop] -= before[hop]
            for way in range(3):
                follower = next_a[hop] if way == 0 else next_b[hop] if way == 1 else next_pair[hop]
                if follower >= since:
                    when = release[hop] if release[hop] <= start[follower] else start[hop]
                    added = 0.0
                    if of >= 0 and cut[owner[follower], 0] == of and cut[owner[follower], 1] == 1:
                        queue, other = rows.queue_a[row[follower]], rows.queue_b[row[follower]]
                        added = late[of, other if way == 1 and rows.queue_b[row[hop]] == other else queue]
                    before[follower] = max(before[follower], when)
                    found[follower] = max(found[follower], when + found[hop] + added)
            for at in range(offsets[hop], offsets[hop + 1]):
                follower, added = followers[at], 0.0
                if follower >= since:
                    if of >= 0 and cut[owner[follower], 0] == of and cut[owner[follower], 1] == 1:
                        added = late[of, rows.queue_a[row[follower]]]
                    before[follower] = max(before[follower], done[hop])
                    found[follower] = max(found[follower], done[hop] + found[hop] + added)
