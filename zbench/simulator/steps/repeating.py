"""Layers that repeat: every hop of one is later than in the layer before by one and the same time.

Then whatever is under way is as it was a layer before, and as many layers as there may be more repeat it: these are
left out where they repeat, and what is played with the others is the whole step as it is with all its layers, but for
rounding. Computes that take no links, as those of optimizers, repeat on each queue by a time of its own, as they wait
for nothing but the one before. Where reductions fall behind layer by layer nothing repeats, though layers may add the
same, to rounding: then the step ends as it does with all its layers, too.
"""

from dataclasses import dataclass, replace

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.simulator.steps.left_out import LeftOut

_SAME = 1e-10  # relative: of what two hops are later by than in the layer before; rounding is some 1e-13


@dataclass(frozen=True)
class RepeatingLayers:
    """The layers of a program that repeat. of: what was left out of it, and how it was played, maybe not to its end."""

    of: LeftOut

    @property
    def _is_staged(self) -> bool:
        return self.of.program.variants[0].of.step.is_staged

    def _repeats_at(self, cut: int) -> int | None:
        """Returns the first of the instances of a cut's run that are alike that is later than the one before it by as
        much as that is than the one before; None where none is, or the last one. All that stands before the run has
        ended by then.

        Not told of pipelines with stages, where something else is under way at other stages, nor where gradients of
        several layers are reduced together.
        """
        if self.of.turn > 1 or self._is_staged:
            return None
        program, same = self.of.program, self.of.alike(cut)
        begin, length = program.begin[same], int(program.begin[same[0] + 1] - program.begin[same[0]])
        run = program.begin[program.run_of(cut)[0]]
        at = _repeating(self.of.timeline.done, begin, length, run, program.is_linkless(same[0]))
        return same[at] if 0 <= at < len(same) - 1 else None

    def found(self, cut: int) -> bool:
        """Returns whether layers of the run of a cut repeat before its last ones."""
        return self._repeats_at(cut) is not None

    def tells_all(self, cut: int) -> bool:
        """Returns whether the run of a cut shows what all its layers do: they repeat, or add the same to rounding."""
        return self.found(cut) or (not self._is_staged and self.of.is_even(cut))

    def left_out(self) -> LeftOut | None:
        """Returns the same layers left out of each run where it repeats, of a program that was played to its end, in
        which all runs tell all. None where something else is under way meanwhile, or where messages are later by what
        runs without any add, as the GPUs that they are between may then be apart in another way.

        Runs without messages are left where they were unless all with messages repeat, as what is under way beside
        them would not be as late as they are.
        """
        program, timeline, skipped = self.of.program, self.of.timeline, self.of.skipped.copy()
        hops = program.hops.row, program.hops.rows.link_a
        linkless = {cut for cut in self.of.cuts if program.is_linkless(cut)}
        found = {cut: at for cut in self.of.cuts if (at := self._repeats_at(cut)) is not None}
        if not found.keys() | linkless >= set(self.of.cuts):
            found = {cut: at for cut, at in found.items() if cut not in linkless}
        for cut, at in found.items():
            skipped[cut], skipped[at + 1] = 0, self.of.skipped[cut]
            end = program.begin[program.run_of(cut)[-1] + 1]
            done = timeline.done[program.begin[at - 1] : program.begin[at]]
            if cut not in linkless and _first_send(timeline.start, *hops, end) < done.max():
                return None
        left = replace(self.of, skipped=skipped, repeating=frozenset(at + 1 for at in found.values()))
        return None if not linkless.isdisjoint(found) and _any_sent(left.later_computes, *hops) else left


@nb.njit(**ENTERED)
def _repeating(done, begin, length, run, linkless):  # type: ignore[no-untyped-def]
    """Returns which of instances is the first that repeats, -1 where none does. done: of hops. begin, length: the hops
    of each instance. run: the first hop of their run."""
    since = 0.0
    for hop in range(0 if linkless else run):
        since = max(since, done[hop])
    for at in range(2, len(begin) if length else 0):
        first, second, third = begin[at - 2], begin[at - 1], begin[at]
        most, until = -np.inf, 0.0
        for hop in range(length):
            most = max(most, _SAME * (done[third + hop] - done[second + hop]))
            until = max(until, done[first + hop])
        alike, known = since <= until, done[second] - done[first]
        for hop in range(length if alike else 0):
            before, more = done[second + hop] - done[first + hop], done[third + hop] - done[second + hop]
            if linkless:
                known = before
            if not (abs(more - known) <= most and abs(before - known) <= most):
                alike = False
                break
        if alike:
            return at
    return -1


@nb.njit(**ENTERED)
def _first_send(start, row, link_a, first):  # type: ignore[no-untyped-def]
    """Returns when the first hop with links begins of those from `first` on, infinity where there is none."""
    found = np.inf
    for hop in range(first, len(start)):
        if start[hop] < found and link_a[row[hop]] >= 0:
            found = start[hop]
    return found


@nb.njit(**ENTERED)
def _any_sent(later, row, link_a):  # type: ignore[no-untyped-def]
    """Returns whether any hop with links is later."""
    found = False
    for hop in range(len(later)):
        found |= later[hop] != 0 and link_a[row[hop]] >= 0
    return found
