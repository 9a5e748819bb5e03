"""The search over stages, micro-batches, cuts of layers and a strategy of each layer: Galvatron-BMW's, beside others.

What of a pipeline's layers is best for a number of stages and micro-batches is found by LayerProgramme for each stage;
a number whose least seconds, without any limit of memory, are no less than what was found before is not looked at.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from math import inf

import numpy as np

from zbench.cost.by_layer.decision_tree import AGAIN, TENSOR, LayerStrategy, decision_tree
from zbench.cost.by_layer.layer_costs import LayerCosts, Outside
from zbench.cost.by_layer.packs import SequencePacks
from zbench.cost.by_layer.programme import LayerProgramme
from zbench.cost.by_layer.stage_cuts import Cut, balanced_cut, even_cut, moved_cut, pipeline_seconds
from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints

UNIT = 1 << 26  # bytes of a step of memory
MOST_MICRO_BATCHES = 64


@dataclass(frozen=True)
class LayerPlan:
    """The strategies that were found. cut: layers of each stage. strategies: of every layer, by stage. stages: the
    seconds of a micro-batch on each; room: the bytes that each needs."""

    micro_batches: int
    cut: Cut
    strategies: tuple[tuple[LayerStrategy, ...], ...]
    stages: tuple[float, ...]
    room: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return pipeline_seconds(self.stages, self.micro_batches)


@dataclass
class CutPipeline:
    """A pipeline of so many stages and micro-batches: what is best on each stage, for any number of its layers."""

    costs: LayerCosts
    stages: int
    room: int
    _programmes: dict[int, LayerProgramme] = field(default_factory=dict, init=False, repr=False)
    _found: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = field(default_factory=dict, init=False, repr=False)

    def under_way(self, stage: int) -> int:
        """Returns the micro-batches that a stage holds at most, one forward following one backward."""
        return min(self.stages - stage, self.costs.micro_batches)

    def outside(self, stage: int) -> Outside:
        """Returns what else than layers a stage has."""
        return self.costs.outside(stage == 0, stage + 1 == self.stages)

    def programme(self, stage: int) -> LayerProgramme:
        """Returns the programme of a stage; stages that hold as many micro-batches have the same."""
        under_way = self.under_way(stage)
        if under_way not in self._programmes:
            self._programmes[under_way] = LayerProgramme(self.costs.table(under_way), self.room, UNIT)
        return self._programmes[under_way]

    def best(self, stage: int, layers: int) -> tuple[float, tuple[int, ...]]:
        """Returns the least seconds of a stage with so many layers and the strategy of each: the programme's, or,
        as their bytes are not rounded, one for all of them, or one and the same recomputed."""
        if (stage, layers) not in self._found:
            seconds, taken, loss = self.outside(stage)
            inner, chosen = self.programme(stage).best(layers, taken, loss)
            alike = [(layers * float(self.programme(stage).table.seconds[one]), (one,) * layers) for one in self.usable]
            fitting = [one for one in alike if self.bytes(stage, one[1]) <= self.room]
            mixed = [found for pair in self.pairs if (found := self.fewest(stage, layers, *pair))]
            fitting += [(float(self.programme(stage).table.seconds[list(one)].sum()), one) for one in mixed]
            inner, chosen = min([(inner, chosen), *fitting])
            self._found[stage, layers] = inner + seconds, chosen
        return self._found[stage, layers]

    @property
    def usable(self) -> range:
        """The numbers of the strategies that there are."""
        return range(len(self.costs.usable))

    def bytes(self, stage: int, chosen: Sequence[int]) -> int:
        """Returns the bytes of a stage whose layers have these strategies."""
        table, (_, taken, loss) = self.programme(stage).table, self.outside(stage)
        index = np.array(chosen)
        return taken + int(table.bytes[index].sum()) + table.moment(index, loss)

    def fewest(self, stage: int, layers: int, kept: int, again: int) -> tuple[int, ...]:
        """Returns the strategies of a stage's layers, as few of them `again` and not `kept` as fit; () if none fit."""
        every = [(again,) * count + (kept,) * (layers - count) for count in range(layers + 1)]
        if self.bytes(stage, every[0]) <= self.room:
            return every[0]
        at = 1 + bisect_left(every[1:], True, key=lambda one: self.bytes(stage, one) <= self.room)
        return every[at] if at <= layers else ()

    def fewest_seconds(self, kept: int, again: int, stage: int, layers: int) -> float:
        """Returns the seconds of a stage of `fewest`, infinite if none fit."""
        chosen = self.fewest(stage, layers, kept, again)
        return self.outside(stage).seconds + self._seconds(stage, chosen) if chosen else inf

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of strategies that differ in recomputation alone: one that keeps all, and another."""
        named = list(enumerate(self.costs.usable))
        return [
            (kept, again)
            for kept, one in named
            for again, other in named
            if one.recompute == "none" != other.recompute and one.levels == other.levels
        ]

    def alike_seconds(self, one: int, cut: Cut) -> float:
        """Returns the seconds of a step in which all layers have one strategy, infinite if it does not fit."""
        if any(self.bytes(stage, (one,) * count) > self.room for stage, count in enumerate(cut)):
            return inf
        each = [
            self.outside(stage).seconds + count * float(self.programme(stage).table.seconds[one])
            for stage, count in enumerate(cut)
        ]
        return pipeline_seconds(each, self.costs.micro_batches)

    def seconds(self, cut: Cut) -> float:
        """Returns the seconds of a step with a cut, infinite if it does not fit."""
        return pipeline_seconds(
            [self.best(stage, count)[0] for stage, count in enumerate(cut)], self.costs.micro_batches
        )

    def plan(self, cut: Cut, chosen: Sequence[tuple[int, ...]]) -> LayerPlan:
        """Returns the plan of a cut with the strategies of every stage's layers."""
        times = [self.outside(stage).seconds + self._seconds(stage, mine) for stage, mine in enumerate(chosen)]
        named = tuple(tuple(self.costs.usable[one] for one in mine) for mine in chosen)
        room = tuple(self.bytes(stage, mine) for stage, mine in enumerate(chosen))
        return LayerPlan(self.costs.micro_batches, cut, named, tuple(times), room)

    def _seconds(self, stage: int, chosen: Sequence[int]) -> float:
        table = self.programme(stage).table
        changes = sum(table.layout[a] != table.layout[b] for a, b in pairwise(chosen))
        return float(table.seconds[list(chosen)].sum()) + int(changes) * table.change

    def balanced(self, of: str) -> Cut:
        """Returns the cut that is even in "seconds" or in "bytes", all layers with the strategy that is fastest without
        limit."""
        layers = self.costs.cost.model.num_layers

        def weight(stage: int, count: int) -> float:
            table, (seconds, size, loss) = self.programme(stage).table, self.outside(stage)
            one = int(table.seconds.argmin())
            if of == "seconds":
                return seconds + count * float(table.seconds[one])
            return size + loss + count * int(table.bytes[one])

        return balanced_cut(layers, self.stages, weight)

    @cached_property
    def least(self) -> float:
        """The seconds that no cut can beat, whatever memory there is."""
        table, layers = self.programme(0).table, self.costs.cost.model.num_layers
        work = layers * float(table.seconds.min()) + self.outside(self.stages - 1).seconds
        return work * (1 + (self.costs.micro_batches - 1) / self.stages)


@dataclass
class LayerSearch:
    """The searches for a batch on a cluster. cost: of GPUs, as make_cost has it without groups and stages. lengths: of
    every sequence of the batch. recompute: what of a layer may run again.

    Raises:
        ValueError: the cluster's nodes or GPUs are no power of two.
    """

    cost: Cost
    lengths: Ints
    recompute: tuple[str, ...] = AGAIN
    _pipelines: dict[tuple[int, int], CutPipeline] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        c = self.cost.cluster
        for name, count in (("num_nodes", c.num_nodes), ("gpus_per_node", c.gpus_per_node)):
            if count & (count - 1):
                raise ValueError(f"cluster.{name} is {count}; strategies by layer take a power of two")

    @cached_property
    def _packs(self) -> SequencePacks:
        return SequencePacks(self.cost, self.lengths)

    def pipelines(self) -> Iterator[CutPipeline]:
        """Yields the pipelines: every number of stages and of micro-batches that is a power of two."""
        c, layers = self.cost.cluster, self.cost.model.num_layers
        for stages in (2**power for power in range(min(c.num_ranks, layers).bit_length())):
            strategies = decision_tree(c.num_ranks // stages, self.recompute)
            for count in (2**power for power in range(MOST_MICRO_BATCHES.bit_length())):
                if (stages, count) not in self._pipelines:
                    costs = LayerCosts(self.cost, self.lengths, c.num_ranks // stages, count, strategies, self._packs)
                    self._pipelines[stages, count] = CutPipeline(costs, stages, int(c.device.memory_bytes))
                if self._pipelines[stages, count].costs.usable:
                    yield self._pipelines[stages, count]

    def alike(self, allowed: Callable[[int, LayerStrategy], bool] | None = None) -> LayerPlan | None:
        """Returns the fastest plan with one strategy for all layers and an even cut, None if none fits. allowed: of
        (stages, strategy)."""
        found: tuple[float, LayerPlan | None] = (inf, None)
        for pipeline in self.pipelines():
            cut = even_cut(self.cost.model.num_layers, pipeline.stages)
            for one in pipeline.usable:
                if allowed is not None and not allowed(pipeline.stages, pipeline.costs.usable[one]):
                    continue
                seconds = pipeline.alike_seconds(one, cut)
                if seconds < found[0]:
                    found = seconds, pipeline.plan(cut, [(one,) * count for count in cut])
        return found[1]

    def is_played(self, stages: int, one: LayerStrategy) -> bool:
        """Returns whether whole steps have a strategy for all layers, in so many stages: tensor parallelism of
        consecutive GPUs inside nodes, and stages without sharding, of whole nodes, which are all that is searched."""
        c = self.cost.cluster
        if one.stride(TENSOR) > 1 or one.tensor > c.gpus_per_node or c.gpus_per_node % one.tensor:
            return False
        return stages == 1 or not (c.num_nodes % stages or one.is_sharded)

    def is_played_even(self, stages: int, one: LayerStrategy) -> bool:
        """Returns whether whole steps have it in stages of as many layers each."""
        return self.cost.model.num_layers % stages == 0 and self.is_played(stages, one)

    def recomputed(self) -> LayerPlan | None:
        """Returns the fastest plan that whole steps have in which stages differ in their layers, and layers in whether
        they are recomputed, alone: of each stage as few as have to be, its first ones; all or none of them, where that
        is faster; None if none fits. Cuts are found by moves."""
        alike = self.alike(self.is_played_even)
        found = (inf, alike) if alike is None else (alike.seconds, alike)
        for pipeline in self.pipelines():
            for pair in pipeline.pairs:
                if not self.is_played(pipeline.stages, pipeline.costs.usable[pair[0]]):
                    continue
                for cut in _moved(pipeline, partial(pipeline.fewest_seconds, *pair)):
                    chosen = [pipeline.fewest(stage, count, *pair) for stage, count in enumerate(cut)]
                    plan = pipeline.plan(cut, chosen) if all(chosen) else None
                    if plan is not None and plan.seconds < found[0]:
                        found = plan.seconds, plan
        return found[1]

    def even(self) -> LayerPlan | None:
        """Returns the fastest plan with a strategy for each layer and an even cut, as the public code searches."""
        return self._best(lambda pipeline: [even_cut(self.cost.model.num_layers, pipeline.stages)])

    def balanced(self) -> LayerPlan | None:
        """Returns the fastest plan with a strategy for each layer and a cut found by moves from the one that is even in
        memory; the one even in time and the even one are begun from as well."""
        return self._best(lambda pipeline: _moved(pipeline, lambda *of: pipeline.best(*of)[0]))

    def _best(self, cuts: Callable[[CutPipeline], Sequence[Cut]]) -> LayerPlan | None:
        found: tuple[float, LayerPlan | None] = (inf, None)
        for pipeline in sorted(self.pipelines(), key=lambda one: one.least):
            if pipeline.least >= found[0]:
                break
            for cut in cuts(pipeline):
                seconds = pipeline.seconds(cut)
                if seconds < found[0]:
                    chosen = [pipeline.best(stage, count)[1] for stage, count in enumerate(cut)]
                    found = seconds, pipeline.plan(cut, chosen)
        return found[1]


def _moved(pipeline: CutPipeline, seconds: Callable[[int, int], float]) -> list[Cut]:
    """Returns the cuts that moves end at. seconds: of (stage, its layers)."""
    begun = [pipeline.balanced("bytes"), pipeline.balanced("seconds")]
    begun.append(even_cut(pipeline.costs.cost.model.num_layers, pipeline.stages))
    return [moved_cut(cut, seconds, pipeline.costs.micro_batches) for cut in dict.fromkeys(begun)]
