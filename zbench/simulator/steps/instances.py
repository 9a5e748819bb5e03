"""The instances of a step that are played: all, or those of fewer layers, as those in the middle of each stage are left
out.

They follow from a step's order alone, whatever its templates do, and the steps of a run have few orders: so what
follows is kept from step to step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.template import ACROSS, Instance, Items, StageStart, Step

TURNS = 4  # of several layers that are played at least, two before and two after those that are left out
# Of instances: template, layers before and after, and of the first kind, place. What is farther away is not touched.
Likeness = tuple[int, int, int, int, int]


class AlikeInstances(NamedTuple):
    """Instances of a template of which the same is near, as far as their template reaches. likenesses: what those that
    are alike have in common, each once. which: int64 [instances], the number of each one's."""

    likenesses: Sequence[Likeness]
    which: Ints


@dataclass(frozen=True)
class PlayedInstances:
    """Instances one after another, int64 [instances] each column.

    entry: in the step's order; run: that entry's; template, layer: its own. skipped: how many layers before it in its
    run were left out. span: int64 [instances, 3], how many layers of its stage stand before and after it, and how many
    of the first kind from it on, below 0: behind how many it stands. place: from which it is played, below 0 of one
    that is played across pipelines, a number for each run of layers that are on the same stages. num_layers: of the
    step that they are all of. where: by `place`, the place that each of a template's is (Step.where).
    """

    num_layers: int
    entry: Ints
    run: Ints
    template: Ints
    layer: Ints
    skipped: Ints
    span: Ints
    place: Ints
    where: Mapping[int, Ints]
    _alike: dict[tuple[int, ...], AlikeInstances] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.entry)

    @cached_property
    def templates(self) -> list[int]:
        """The templates that they are of, each once."""
        found: list[int] = np.unique(self.template).tolist()
        return found

    @cached_property
    def of_runs(self) -> dict[int, list[int]]:
        """The instances of each run."""
        found: dict[int, list[int]] = {}
        for number, run in enumerate(self.run.tolist()):
            found.setdefault(run, []).append(number)
        return found

    @cached_property
    def stage(self) -> Ints:
        """The number of each one's place among those that they are played from."""
        number: dict[int, int] = {}
        return np.array([number.setdefault(place, len(number)) for place in self.place.tolist()], np.int64)

    def alike(self, reach: tuple[int, ...]) -> AlikeInstances:
        """Returns which of them are alike. reach: of each of `templates`, PlayedTemplate.reach."""
        if reach not in self._alike:
            most = np.zeros(max(self.templates, default=0) + 1, np.int64)
            most[self.templates] = reach
            far = most[self.template][:, None] * np.array([1, 1, 1])
            near = np.minimum(self.span, far)
            near[:, 2] = np.maximum(near[:, 2], -far[:, 2])
            rows = map(tuple, np.column_stack([self.template, near, self.place]).tolist())
            number: dict[Likeness, int] = {}
            which = [number.setdefault(row, len(number)) for row in rows]
            self._alike[reach] = AlikeInstances(list(number), np.array(which, np.int64))
        return self._alike[reach]


@dataclass(frozen=True)
class StepOrder:
    """The order in which a step plays its templates, and on what: fields as of Step."""

    num_gpus: int
    num_hosts: int
    num_layers: int
    order: tuple[Instance, ...]
    stages: tuple[StageStart, ...]
    leading: int
    _kept: dict[int, PlayedInstances] = field(default_factory=dict, init=False, repr=False, compare=False)
    _runs: dict[bytes, int] = field(default_factory=dict, init=False, repr=False, compare=False)  # by their stages

    @staticmethod
    def of(step: Step) -> "StepOrder":
        """Returns the order of a step, one object of those that are the same."""
        return _known(StepOrder(step.num_gpus, step.num_hosts, step.num_layers, step.order, step.stages, step.leading))

    @cached_property
    def step(self) -> Step:
        """A step of this order without templates."""
        none = Items.of([])
        size = self.num_gpus, self.num_hosts, self.num_layers
        return Step(*size, (), (), (), self.order, none, none, self.stages, self.leading)

    @cached_property
    def longest_stage(self) -> int:
        """The most layers that are on the same stages of all pipelines and play the same templates."""
        return max(end - begin for begin, end in pairwise([*self.step.cuts, self.num_layers]))

    @property
    def all_instances(self) -> PlayedInstances:
        """The instances of all layers."""
        return self.instances(self.num_layers)

    def instances(self, kept: int) -> PlayedInstances:
        """Returns those of at most `kept` layers in each stage: those in the middle of a stage are left out, or of what
        stages of several pipelines have in common.

        Where gradients are reduced several layers together these are left out together, and a few more may be kept.
        """
        kept = min(kept, self.longest_stage)
        if kept not in self._kept:
            self._kept[kept] = self._instances(*self._with_fewer_layers(kept))
        return self._kept[kept]

    def _with_fewer_layers(self, kept: int) -> tuple[Step, dict[int, int]]:
        """Returns a step with fewer layers, and the number in it of each layer that is kept."""
        step = self.step
        number, firsts, which = 0, {}, {}
        for first, end in pairwise([*step.cuts, step.num_layers]):
            firsts[first] = number
            begin, less = _left_out(end - first, kept, step.turn_layers)
            for layer in (*range(first, first + begin), *range(first + begin + less, end)):
                which[layer] = number
                number += 1
        which[step.num_layers] = number
        stages = tuple(StageStart(firsts[one.layer], one.place) for one in step.stages)
        leading = firsts[step.leading] if step.leading else 0
        return replace(step, num_layers=number, stages=stages, leading=leading), which

    def _instances(self, short: Step, which: dict[int, int]) -> PlayedInstances:
        """Returns the instances of layers that are kept. short, which: as `_with_fewer_layers` has them."""
        runs = self.step.runs
        before, since = dict.fromkeys(runs, -1), dict.fromkeys(runs, -1)  # by run: the last one kept, and of all
        rows, where = list[tuple[int, ...]](), dict[int, Ints]()
        for entry, (of, run) in enumerate(zip(self.order, runs, strict=True)):
            for layer in of.layers:
                since[run] += 1
                if layer in which:
                    mine, skipped = which[layer], since[run] - before[run] - 1
                    low, high = short.span(mine, of.place)
                    span = mine - low, high - mine, short.leading - mine if short.leading else 0
                    place = self._place(of.place, mine, short)
                    rows.append((entry, run, of.template, mine, skipped, *span, place))
                    if place not in where:
                        where[place] = short.where(of.place, mine)
                    before[run] = since[run]
        entries, numbers, templates, layers, skips, *spans, places = np.array(rows, np.int64).reshape(-1, 9).T.copy()
        stacked = np.stack(spans, axis=1)
        return PlayedInstances(short.num_layers, entries, numbers, templates, layers, skips, stacked, places, where)

    def _place(self, place: int, layer: int, short: Step) -> int:
        """Returns PlayedInstances.place."""
        if place != ACROSS:
            return place
        stages = short.shifts[:, min(layer, short.num_layers)].tobytes()
        return ACROSS - self._runs.setdefault(stages, len(self._runs))


@lru_cache(maxsize=16)
def _known(order: StepOrder) -> StepOrder:
    return order


def _left_out(count: int, kept: int, turn: int) -> tuple[int, int]:
    """Returns how many of a stage's layers stand before those that are left out, and how many these are. turn: the
    layers that are left out together, counted from the last."""
    kept = max(kept, TURNS * turn + count % turn) if turn > 1 else kept
    begin, less = min(kept, count) // 2, max(count - kept, 0)
    begin += (count - begin) % turn
    return begin, less // turn * turn
