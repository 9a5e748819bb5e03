"""The ceiling of whole steps: no plan of a batch is faster with a job's sharding, overlap, recomputation and degrees.

It is the largest of the bound and three sums (results/docs/ceiling.md has the proof). `computing`: the first
layer's parameters are gathered, the fullest GPU computes, the gradients that come last are reduced and parameters
updated. `carrying`: a port carries all of its gathers and reductions. `between`: the last layer's parameters are
gathered, a layer goes forward and one backward, and gradients are reduced.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.degrees import ShardDegrees
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN
from zbench.simulator.steps.least.bound import step_bound_seconds
from zbench.simulator.steps.least.traffic import HEAD, LAYER, TABLE, PortSeconds, StepTraffic
from zbench.simulator.steps.least.work import StepWork, WorkSeconds, step_work
from zbench.step.passes.parameters.zero import ShardedParameters

_HALVINGS = 40  # of an interval of tokens, in which the fullest group's are found


def step_ceiling_seconds(
    batch: Batch, cost: Cost, of: ShardedParameters, some: Cost | None = None, rows: float = 1.0
) -> float | None:
    """Returns the seconds of a whole step that no plan of `batch` without pipelines of its own can beat; None for
    models with experts on several GPUs or with tensor parallelism, or whose first layers are dense.

    of: the parameters of a stage, with their sharding and overlap. some: where some layers of the stages are recomputed
    and the others not, the cost model that says so; `cost` is then without. rows: as `step_bound_seconds` has it.
    """
    model = cost.gpus.model
    if model.dense_layers or (model.num_experts > 1 and (of.experts > 1 or of.degree > 1)):
        return None
    stages = _stages(cost, of, some, rows)
    return float(max(step_bound_seconds(batch, cost, rows), *(one.seconds(batch) for one in stages)))


@lru_cache(maxsize=8)
def _stages(cost: Cost, of: ShardedParameters, some: Cost | None, rows: float) -> "tuple[_Stage, ...]":
    """Returns the first and the last stage, with what is the same for every batch."""
    work, traffic = step_work(cost.gpus, of.degree).of_rows(rows), StepTraffic(cost.gpus, of)
    again = None if some is None else step_work(_all_again(some.gpus), of.degree).of_rows(rows)
    return tuple(
        _Stage(cost, work, traffic, at == 0, at == cost.pp - 1, again, _least_again(some, at, cost.layers))
        for at in {0, cost.pp - 1}
    )


def _all_again(cost: Cost) -> Cost:
    """Returns the cost model in which all layers are recomputed where some are."""
    return replace(cost, model=replace(cost.model, recompute_layers=ALL_LAYERS, stage_layers=EVEN))


def _least_again(some: Cost | None, stage: int, layers: int) -> int:
    """Returns how many of a stage's layers are recomputed, if it has no more than so many."""
    if some is None:
        return 0
    model = some.model.with_stages(some.pp)
    return max(model.recomputed_of_stages[stage] - (model.layers_of_stages[stage] - layers), 0)


@dataclass(frozen=True)
class _Stage:
    """A stage of any step. is_first: it has the embedding. is_last: it has the head. again: the work where all layers
    are recomputed, and of how many it is, where `work` is without."""

    cost: Cost
    work: StepWork
    traffic: StepTraffic
    is_first: bool
    is_last: bool
    again: StepWork | None = None
    again_layers: int = 0

    def seconds(self, batch: Batch) -> float:
        """Returns the seconds that a batch's step takes at least."""
        attention = self.attention(batch)
        return max(self.computing(batch, attention), self.carrying, self.between(batch, attention))

    @property
    def layers(self) -> int:
        return self.cost.layers

    @property
    def groups(self) -> int:
        return self.cost.cluster.num_ranks

    # -- gathers, reductions and updates ----------------------------------------------------------------

    @cached_property
    def none(self) -> PortSeconds:
        """No collectives."""
        return self.traffic.gather(LAYER).times(0)

    def gathers(self, layers: int) -> PortSeconds:
        """Returns the gathers that stand before a layer's work: the table's and those of so many layers, or all where
        all come first."""
        of = self.traffic
        table = of.gather(TABLE) if self.is_first else self.none
        if not of.of.gathered_first:
            return table.plus(of.gather(LAYER).times(layers))
        head = of.gather(HEAD) if self.is_last else self.none
        found = head.plus(of.gather(LAYER).times(self.layers))
        return found.plus(table) if self.is_first else found

    @cached_property
    def buckets(self) -> tuple[int, int]:
        """How many layers the first and the last bucket of gradients have."""
        of = self.traffic.of
        size = self.layers if of.reduced_last else max(1, min(of.bucket_layers, self.layers))
        return size, (self.layers - 1) % size + 1

    @cached_property
    def tail(self) -> list[tuple[PortSeconds, Floats]]:
        """The reductions that nothing but updates follows, as they follow one another: each with those before it, and
        the seconds of the updates after it, by slice."""
        of, layer = self.traffic, self.traffic.update(LAYER)
        outer = [of.update(TABLE)] if self.is_first else []
        outer += [of.update(HEAD)] if self.is_last and of.weights(HEAD) else []
        zero = np.zeros_like(layer)
        order: list[tuple[str, PortSeconds, list[Floats]]] = []
        for number in range(self.buckets[1]):
            order.append((LAYER, of.reduce(LAYER), [(self.layers - number) * layer, *outer]))
        if self.is_first:
            at = 0 if of.of.reduced_last else len(order)
            order.insert(at, (TABLE, of.reduce(TABLE), outer))
        if self.is_last and of.of.reduced_last and of.weights(HEAD):
            order.append((HEAD, of.reduce(HEAD), outer[-1:]))
        found, so_far = [], self.none
        for group, reduction, updates in order:
            so_far = so_far.plus(reduction)
            found.append((so_far, of.after(group, [zero, *updates])))
        return found

    # -- computing ----------------------------------------------------------------------------------------

    def attention(self, batch: Batch) -> tuple[float, float]:
        """Returns the seconds of attention in all layers of the stage, forward and backward, the mean over groups'
        first GPUs, which have an even share of the heads."""
        share = self.layers / self.groups / self.traffic.of.degree
        there, back = self.work.attention(batch)
        return share * there, share * back

    def attention_again(self, batch: Batch) -> float:
        """Returns the seconds of what is made again of attention, which `attention` is without, the same mean."""
        if self.again is None:
            return 0.0
        more = sum(self.again.attention(batch)) - sum(self.work.attention(batch))
        return self.again_layers / self.groups / self.traffic.of.degree * more

    @cached_property
    def part(self) -> WorkSeconds:
        """The linear work of the stage that is behind its first gather and before its last reduction."""
        layer = self.work.forward.plus(self.work.backward)
        found = layer.times(self.layers)
        if self.again is not None:
            more = self.again.forward.plus(self.again.backward).plus(layer.times(-1))
            found = found.plus(more.times(self.again_layers))
        if self.is_last:
            found = found.plus(self.work.head)
        return found.plus(self.work.outer.times(-1)) if self.traffic.of.degree > 1 else found

    def _alone(self, tokens: float) -> float:
        """Returns the seconds of the linear work of a group with so many tokens."""
        chunks = self.work.chunks(tokens) if self.is_last else 0.0
        return self.part.token * tokens + self.part.start * min(tokens, 1.0) + chunks

    def fullest(self, total: int, attention: float) -> float:
        """Returns the seconds for which the busiest of the groups' first GPUs is at work at least. total: the batch's
        tokens. attention: seconds of the mean of these GPUs.

        If no group has more than t tokens, a token takes no less than one of t on a group, as starts are shared by at
        most t; and if one has more, it takes what t tokens take. The t at which both are the same is the worst.
        """

        def even(tokens: float) -> float:
            return total * self._alone(tokens) / tokens / self.groups + attention

        low, high = max(1.0, total / self.groups), float(total)
        if self._alone(high) < even(high):
            return even(high)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._alone(middle) < even(middle) else (low, middle)
        return max(min(self._alone(low), even(low)), self._alone(-(-total // self.groups)))

    # -- sums -----------------------------------------------------------------------------------------------

    def computing(self, batch: Batch, attention: tuple[float, float]) -> float:
        """Returns the first gathers, the busiest GPU's computing, and the last reductions and updates."""
        begin, end = self._around
        return begin + self.fullest(batch.num_tokens, sum(attention) + self.attention_again(batch)) + end

    @cached_property
    def _around(self) -> tuple[float, float]:
        """The first gathers, and the last reductions and updates."""
        return self.gathers(1).seconds, max(part.seconds + float(after[0]) for part, after in self.tail)

    @cached_property
    def carrying(self) -> float:
        """All that the busiest port carries, and what follows the last of it."""
        of, size = self.traffic, self.traffic.of
        gathers = of.gather_again(LAYER).times(self.layers).plus(self.gathers(self.layers))
        if self.is_last and not size.gathered_first:
            gathers = gathers.plus(of.gather(HEAD))
        every = gathers.plus(of.reduce(LAYER).times(self.layers - self.buckets[1]))
        if self.is_last and not size.reduced_last:
            every = every.plus(of.reduce(HEAD))
        return self._carried(every.ports.sum(axis=0))

    def _carried(self, before: Floats) -> float:
        """Returns the seconds until the last update where ports have `before` to carry and then the last reductions, of
        which any slice's may be the last."""
        found, least = 0.0, np.inf
        for part, after in self.tail:
            least = min(least, float(after.min())) if self.traffic.of.degree > 1 else float(after[0])
            carried = float((before + part.ports.sum(axis=0)).max())
            found = max(found, carried + float(part.latency.min()) + least)
        return found

    def between(self, batch: Batch, attention: tuple[float, float]) -> float:
        """Returns the gathers of all layers, and what computing divides them from: the reductions."""
        size, first, (there, back) = self.traffic.of, self.buckets[0], attention
        each = batch.num_tokens / self.groups
        forward = self.layers * self.work.forward.token * each + there
        backward = self.layers * self.work.backward.token * each + back
        head = self.work.head.token * each if self.is_last else 0.0
        outer = self.work.outer.token * each if size.degree > 1 else 0.0
        begun = max(
            self._around[0] + forward,
            self._gathered + (0.0 if size.gathered_first else forward / self.layers),
        )
        return begun - outer + head + first * backward / self.layers + self._reduced

    @cached_property
    def _gathered(self) -> float:
        """The gathers of all layers."""
        return self.gathers(self.layers).seconds

    @cached_property
    def _reduced(self) -> float:
        """The reductions that computing divides from gathers, with the gathers of a backward and the last updates."""
        of, size, (first, last) = self.traffic, self.traffic.of, self.buckets
        rest = [of.reduce(LAYER).times(self.layers - last)]
        if size.gathered:
            again = of.gather_again(LAYER).times(max(self.layers - first - size.window, 0))
            # By degrees they may take other ports than reductions, whose queue is another one: one beside the other.
            rest = [*rest, again] if isinstance(size.stage, ShardDegrees) else [rest[0].plus(again)]
        return max(
            float((before.waited[0] + part.waited[0]).max() + part.latency[0] + after[0])
            for before in rest
            for part, after in self.tail
        )
