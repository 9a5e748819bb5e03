"""The seconds of a step as planners estimate them: attention on a cluster's clock, the rest as sums beside it.

A step is, per micro-batch: layers x (linear modules, attention) forward, the head and the loss,
layers x (attention, linear modules) backward; what they do not hide of parameters' gathers and gradients'
reductions; and the optimizer. Attention is played hop by hop (zbench.simulator.clock), the rest is charged
per rank (zbench.cost.cost, zbench.cost.collective). Ranks are held together by their data only: a rank whose
neighbours do not need it runs ahead into the next layer, and, with ZeRO-1, into the next micro-batch. With ZeRO-3
every forward and every backward gathers parameters from all ranks, so there they meet; with ZeRO-2 every backward sums
gradients of all ranks, who have no room for those of more than a layer, so they meet in it.

Of jobs with stages (zbench.cost.ranks_of_gpus) the stage that takes longest is played, by itself, and its longest
micro-batch stands for the others: what one forward, one backward comes to where micro-batches are about alike. Plans
with pipelines have a closed form (zbench.simulator.estimate.pipelined).

Whole steps (zbench.simulator.steps) have all there is to know of a step, and take three to six times as long to tell.
"""

from dataclasses import dataclass
from math import inf

from zbench.cost.bound import bound_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import copies_of_stages, plan_copies
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.ranks_of_gpus import of_gpu
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, degrees_of
from zbench.plans.plan import Plan
from zbench.simulator.attention import Programs, playable, programs
from zbench.simulator.estimate.carried import busiest_seconds, carried_bytes, with_forwards_again
from zbench.simulator.estimate.layers import ClockState, Layers
from zbench.simulator.estimate.pipelined import pipelined_seconds


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


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Compares plans of a batch by the seconds of their steps on the cluster of `cost`, one of
    zbench.interfaces.study.Compares. What a change of pipelines takes is in none of them."""

    cost: Cost

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
        return self.seconds(plans) if self.fits(batch, plans) else inf

    def least_seconds(self, batch: Batch) -> float:
        """Returns the seconds of a step that no plan of a batch can beat."""
        return bound_seconds(batch, self.cost)

    def seconds(self, plans: tuple[Plan, ...]) -> float:
        """Returns the seconds of a step, whether or not there is room for it."""
        cost = self.cost
        if plans[0].pipelines is not None:
            return pipelined_seconds(plans, cost)
        model = cost.model.with_stages(cost.pp)
        again = 1 if model.recompute == "full" else 0
        each = zip(model.layers_of_stages, model.recomputed_of_stages, strict=True)
        weights = [3 * layers + again * some for layers, some in each]
        slowest = max(range(cost.pp), key=lambda stage: (weights[stage], stage))
        end, longest = _played(plans, cost, Collectives.of(cost), slowest)
        return end + (sum(weights) / weights[slowest] - 1) * longest + cost.optimizer_seconds()


def _played(plans: tuple[Plan, ...], job: Cost, of: Collectives, stage: int) -> tuple[float, float]:
    """Plays the micro-batches of a stage of a job, whose ranks work each for itself; returns (seconds when the last
    rank has ended all of them, seconds of the one that takes longest without its head and what is gathered and reduced
    once). of: what is gathered and reduced."""
    cost, longest = job.of_stage(stage), 0.0
    layers, again = cost.layers, cost.again_layers
    state = ClockState.zero(cost.cluster)
    for number, plan in enumerate(plans):
        forward, backward = playable(plan, cost)
        ahead, back = copies_of_stages(plan, job)[stage]
        tokens = plan.tokens_per_rank
        linear, head = cost.linear_seconds(tokens), cost.head_seconds(tokens)
        every, first, last = of.every_micro_batch, number == 0, number == len(plans) - 1
        begin = began = float(state.ready.max())
        used = carried_bytes(forward, cost)
        Layers(forward, linear, layers, ahead).play(state)
        if first or every:
            shown = of.shown_in_forward(float(state.ready.max()) - begin, busiest_seconds(used, cost))
            if every:
                state.meet()
            else:
                began += shown
            state.ready += shown
        state.ready += head
        begin, used = float(state.ready.max()), with_forwards_again(used, carried_bytes(backward, cost), cost)
        if again:
            Layers(forward, linear, again).play(state)
            back = back.beyond(cost.model.forwards_again * linear) if back is not None else None
        Layers(backward, cost.backward_linear_seconds(tokens), layers, back).play(state)
        if last or of.reduced:
            shown = of.backward(float(state.ready.max()) - begin, busiest_seconds(used, cost))
            state.meet()
            began += 0.0 if of.reduced else shown
            state.ready += shown
        longest = max(longest, float((state.ready - head).max()) - began)
    return float(state.ready.max()), longest
