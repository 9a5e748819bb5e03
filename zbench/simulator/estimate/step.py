"""The seconds of a step as planners estimate them: attention on a cluster's clock, the rest as sums beside it.

A step is, per micro-batch: layers x (linear modules, attention) forward, the head and the loss,
layers x (attention, linear modules) backward; what they do not hide of parameters' gathers and gradients'
reductions; and the optimizer. Attention is played hop by hop (zbench.simulator.clock), the rest is charged
per rank (zbench.cost.cost, zbench.cost.collective). Ranks are held together by their data only: a rank whose
neighbours do not need it runs ahead into the next layer, and, with ZeRO-1, into the next micro-batch. With ZeRO-3
every forward and every backward gathers parameters from all ranks, so there they meet; with ZeRO-2 every backward sums
gradients of all ranks, who have no room for those of more than a layer, so they meet in it. Plans with pipelines are
played by zbench.simulator.estimate.pipelined, jobs with stages by zbench.simulator.estimate.staged.

Whole steps (zbench.simulator.steps) have all there is to know of a step, and take three to six times as long to tell.
"""

from dataclasses import dataclass, field
from math import inf

from zbench.cost.bound import bound_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.groups import of_gpu
from zbench.cost.memory.host_copies import plan_copies
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.stage import held
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, degrees_of
from zbench.plans.pipelines import Layout
from zbench.plans.plan import Plan
from zbench.simulator.attention import Programs, playable, programs
from zbench.simulator.estimate import pipelined, staged
from zbench.simulator.estimate.carried import busiest_seconds, carried_bytes, with_forwards_again
from zbench.simulator.estimate.layers import ClockState, Layers


def layer_seconds(plan: Plan, cost: Cost, layers: int, parts: Programs | None = None) -> float:
    """Returns the seconds of one layer, forward and backward, as the mean over `layers`: what planners compare plans
    by.

    parts: the plan's programs, where they are at hand.
    """
    return float(sum(ends[-1] for ends in _layer_ends(plan, cost, layers, parts or programs(plan, cost)))) / layers


def _layer_ends(plan: Plan, cost: Cost, layers: int, parts: Programs) -> list[list[float]]:
    """Tells when the last rank ends every layer of the forward and the backward: seconds from when the first begins."""
    state = ClockState.zero(cost.cluster)
    tokens, ends, begin = plan.tokens_per_rank, [], 0.0
    linear = cost.linear_seconds(tokens), cost.backward_linear_seconds(tokens)
    for part, seconds, copies in zip(parts, linear, plan_copies(plan, cost), strict=True):
        played, found = Layers(part, seconds, layers, copies), []
        for _ in range(layers):
            played.one(state)
            found.append(float(state.ready.max()) - begin)
        if degrees_of(cost.model.sharding).weights == WORLD:
            state.meet()
        begin += found[-1]
        ends.append(found)
    return ends


@dataclass(slots=True)
class StepEstimate:
    """Compares plans of a batch by the seconds of their steps on the cluster of `cost`, one of
    zbench.interfaces.study.Compares. They depend on the plans, the cost, and on whether pipelines are those of the
    step before: parameters that have to be elsewhere are waited for."""

    cost: Cost
    _layout: Layout | None = field(default=None, init=False, repr=False, compare=False)

    def lacking_bytes(self, plans: tuple[Plan, ...]) -> int:
        """Returns the bytes that the fullest GPU lacks for a step of plans; 0 where they fit."""
        tp = self.cost.tp
        capacity = int(self.cost.cluster.device.memory_bytes / tp)
        return max(0, int(of_gpu(peak_bytes(plans, self.cost), tp).max()) - capacity)

    def fits(self, batch: Batch, plans: tuple[Plan, ...]) -> bool:
        """Returns whether GPUs have room for a step."""
        return not self.lacking_bytes(plans)

    def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        """Returns the seconds of a step, infinite where GPUs have no room for it."""
        moved = self._moved(plans)
        return self._seconds(plans, moved) if self.fits(batch, plans) else inf

    def least_seconds(self, batch: Batch) -> float:
        """Returns the seconds of a step that no plan of a batch can beat."""
        return bound_seconds(batch, self.cost)

    def seconds(self, plans: tuple[Plan, ...]) -> float:
        """Returns the seconds of a step, whether or not there is room for it."""
        return self._seconds(plans, self._moved(plans))

    def _moved(self, plans: tuple[Plan, ...]) -> bool:
        """Returns whether plans have other pipelines than those of the step before, and keeps theirs."""
        pipelines = plans[0].pipelines
        layout = () if pipelines is None else pipelines.layout
        before, self._layout = self._layout, layout
        return before not in (None, layout)

    def _seconds(self, plans: tuple[Plan, ...], moved: bool) -> float:
        cost, pipelines = self.cost, plans[0].pipelines
        of = Collectives.of(cost, None if pipelines is None else held(pipelines, cost))
        if cost.pp > 1:
            end = staged.staged_end(plans, [programs(plan, cost) for plan in plans], cost, of)
        elif pipelines is not None:
            end = pipelined.pipelined_end(plans, cost, of, moved)
        else:
            end = _end(plans, cost, of, moved)
        return end + cost.optimizer_seconds()


def _end(plans: tuple[Plan, ...], cost: Cost, of: Collectives, moved: bool) -> float:
    """Returns when the last rank has ended all micro-batches. of: what is gathered and reduced. moved: parameters are
    elsewhere than they were."""
    layers, again = cost.model.num_layers, cost.again_layers
    state = ClockState.zero(cost.cluster)
    for plan in plans:
        forward, backward = playable(plan, cost)
        ahead, back = plan_copies(plan, cost)
        linear, tokens = cost.linear_seconds(plan.tokens_per_rank), plan.tokens_per_rank
        every, first, last = of.every_micro_batch, plan is plans[0], plan is plans[-1]
        begin, used = float(state.ready.max()), carried_bytes(forward, cost)
        Layers(forward, linear, layers, ahead).play(state)
        if first or every:
            span = float(state.ready.max()) - begin
            shown = of.shown_in_forward(span, busiest_seconds(used, cost), moved and first)
            if every:
                state.meet()
            state.ready += shown
        state.ready += cost.head_seconds(tokens)
        begin, used = float(state.ready.max()), with_forwards_again(used, carried_bytes(backward, cost), cost)
        if again:
            Layers(forward, linear, again).play(state)
            back = back.beyond(cost.model.forwards_again * linear) if back is not None else None
        Layers(backward, cost.backward_linear_seconds(tokens), layers, back).play(state)
        if last or of.reduced:
            shown = of.backward(float(state.ready.max()) - begin, busiest_seconds(used, cost))
            state.meet()
            state.ready += shown
    return float(state.ready.max())
