"""Layers that repeat: every hop of one is later than in the layer before by one and the same time.

Then whatever is under way is as it was a layer before, and as many layers as there may be more repeat it: these are
left out where they repeat, and what is played with the others is the whole step as it is with all its layers, but for
rounding. Computes that take no links, as those of optimizers, repeat on each queue by a time of its own, as they wait
for nothing but the one before. Where reductions fall behind layer by layer nothing repeats, though layers may add the
same, to rounding: then the step ends as it does with all its layers, too.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from zbench.describe.arrays import Floats
from zbench.simulator.steps.left_out import LeftOut

_SAME = 1e-10  # relative: of what two hops are later by than in the layer before; rounding is some 1e-13


@dataclass(frozen=True)
class RepeatingLayers:
    """The layers of a program that repeat. of: what was left out of it, and how it was played, maybe not to its end."""

    of: LeftOut

    def _done(self, number: int) -> Floats:
        """Returns when the hops of an instance have ended."""
        begin = self.of.program.begin
        return self.of.timeline.done[begin[number] : begin[number + 1]]

    @property
    def _is_staged(self) -> bool:
        return self.of.program.variants[0].of.step.is_staged

    def _first(self, same: list[int]) -> int:
        """Returns which of instances that are alike is the first that is later than the one before it by as much as
        that is than the one before; -1 where none is. All that stands before the run has ended by then.

        Not told of pipelines with stages, where something else is under way at other stages, nor where gradients of
        several layers are reduced together.
        """
        of, linkless = self.of.program, self.of.program.is_linkless(same[0])
        if self.of.turn > 1 or self._is_staged:
            return -1
        run, before = of.of_runs[of.instances[same[0]].run], np.zeros(0)
        since = 0.0 if linkless else self.of.timeline.done[: of.begin[run[0]]].max(initial=0.0)
        for at, (one, other) in enumerate(pairwise(same), start=1):
            more = self._done(other) - self._done(one)
            if at > 1 and len(more) and since <= self._done(same[at - 2]).max():
                known, most = before if linkless else before[:1], _SAME * more.max()
                if (abs(more - known) <= most).all() and (abs(before - known) <= most).all():
                    return at
            before = more
        return -1

    def found(self, cut: int) -> bool:
        """Returns whether layers of the run of a cut repeat before its last ones."""
        same = self.of.alike(cut)
        return 0 <= self._first(same) < len(same) - 1

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
        program, timeline, skipped = self.of.program, self.of.timeline, np.zeros_like(self.of.skipped)
        sends, repeating = program.hops.rows.link_a[program.hops.row] >= 0, set[int]()
        found = {cut for cut in self.of.cuts if self.found(cut)}
        if any(cut not in found and not program.is_linkless(cut) for cut in self.of.cuts):
            found = {cut for cut in found if not program.is_linkless(cut)}
        for cut in self.of.cuts:
            same, run = self.of.alike(cut), program.of_runs[program.instances[cut].run]
            if cut not in found:
                skipped[cut] = self.of.skipped[cut]
                continue
            at, end = same[self._first(same)], program.begin[run[-1] + 1]
            skipped[at + 1] = self.of.skipped[cut]
            repeating.add(at + 1)
            later = timeline.start[end:][sends[end:]].min(initial=np.inf)
            if not program.is_linkless(at) and later < self._done(at - 1).max():
                return None
        left = replace(self.of, skipped=skipped, repeating=frozenset(repeating))
        return None if left.later_computes[sends].any() else left
