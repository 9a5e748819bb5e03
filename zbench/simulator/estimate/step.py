"""A step as planners estimate it: attention on a described cluster's clock, the rest as sums beside it.

A step is, per micro-batch: layers x (linear modules, attention) forward, the head and the loss,
layers x (attention, linear modules) backward; what they do not hide of parameters' gathers and gradients'
reductions; and the optimizer. Attention is played hop by hop (zbench.simulator.clock), the rest is charged
per rank (zbench.cost.cost, zbench.cost.collective). Ranks are held together by their data only: a rank whose
neighbours do not need it runs ahead into the next layer, and, with ZeRO-1, into the next micro-batch. With ZeRO-3
every forward and every backward gathers parameters from all ranks, so there they meet; with ZeRO-2 every backward sums
gradients of all ranks, who have no room for those of more than a layer, so they meet in it.

Of jobs with stages (zbench.cost.stacks), and of plans with pipelines (zbench.simulator.estimate.pipelined), planners
know the seconds alone. With stages they are those of the one that takes longest, by itself, and of its longest
micro-batch in the others: what one forward, one backward comes to where micro-batches are about alike.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from zbench.cost.bound import bound_seconds, ceiling_seconds
from zbench.cost.collective import Collectives, Sharing
from zbench.cost.cost import Cost
from zbench.cost.groups import of_gpu, of_nics
from zbench.cost.memory.host_copies import copies_of_stages, plan_copies
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, degrees_of
from zbench.interfaces.protocols import Ready
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.simulator.attention import Programs, playable, programs
from zbench.simulator.estimate.layers import ClockState, Layers
from zbench.simulator.estimate.pipelined import pipelined_seconds
from zbench.simulator.estimate.totals import Carried, Totals


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
    """Simulates plans on the cluster of `cost`: a step's result is a function of (batch, plans, cost). Compares steps
    (zbench.interfaces.abilities.Compares), also those of which it tells no result."""

    cost: Cost

    def start(self) -> Ready:
        return Ready()

    def stop(self) -> None:
        pass

    def bound_seconds(self, batch: Batch) -> float:
        """Returns the seconds of a step that no plan of a batch can beat."""
        return bound_seconds(batch, self.cost)

    def least_seconds(self, batch: Batch) -> float:
        """Returns the bound."""
        return self.bound_seconds(batch)

    def fits(self, batch: Batch, plans: tuple[Plan, ...]) -> bool:
        """Returns whether ranks have room for a step."""
        return lacking_bytes(plans, self.cost) == 0

    def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        """Returns the seconds of a step, infinite where there is no room for it."""
        return estimated_seconds(plans, self.cost) if self.fits(batch, plans) else inf

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Simulates one training step of a job without stages, whose plans have no pipelines; seconds are the described
        cluster's, not this machine's."""
        cost = self.cost
        assert cost.pp == 1, "of stages planners know the seconds alone"
        assert plans[0].pipelines is None, "and of pipelines"
        sharing = Sharing(Collectives.of(cost))
        played = _by_ranks(plans, cost, sharing)
        optimizer = cost.optimizer_seconds()
        end = played.end + optimizer
        peak = of_gpu(peak_bytes(plans, cost), cost.tp)
        capacity = capacity_bytes(cost)
        phases = {"forward": played.forward_end, "gradients": sharing.exposed, "optimizer": optimizer}
        sharing_seconds = max(sharing.seconds, sharing.exposed)  # more than alone, where NICs are busy with attention

        def by_gpu(of_ranks: Floats | Ints) -> list[Any]:
            found: list[Any] = np.repeat(of_ranks, cost.tp).tolist()  # GPUs of a group do the same at the same time
            return found

        return StepResult(
            seconds=end,
            bound_seconds=self.bound_seconds(batch),
            ceiling_seconds=ceiling_seconds(batch, cost, sharing.of),
            attention_seconds=by_gpu(played.attention),
            linear_seconds=by_gpu(played.linear),
            communication_seconds=by_gpu(np.minimum(played.communication + sharing_seconds, end)),
            exposed_seconds=by_gpu(played.exposed + sharing.exposed),
            exposed_nic_seconds=by_gpu(played.exposed_nic),
            nic_tx_bytes=of_nics(played.carried.tx + sharing.nic_bytes, cost.bonded_nics).tolist(),
            nic_rx_bytes=of_nics(played.carried.rx + sharing.nic_bytes, cost.bonded_nics).tolist(),
            nvlink_bytes=int(played.carried.nvlink),
            peak_bytes=by_gpu(peak),
            capacity_bytes=capacity,
            out_of_memory=bool(peak.max() > capacity),
            phases=phases,
        )


def capacity_bytes(cost: Cost) -> int:
    """Returns the bytes of a GPU."""
    return int(cost.cluster.device.memory_bytes / cost.tp)


def lacking_bytes(plans: tuple[Plan, ...], cost: Cost) -> int:
    """Returns the bytes that the fullest GPU lacks for a step, 0 where it fits."""
    return max(0, int(of_gpu(peak_bytes(plans, cost), cost.tp).max()) - capacity_bytes(cost))


def estimated_seconds(plans: tuple[Plan, ...], cost: Cost) -> float:
    """Returns the seconds of a step, whether or not there is room for it."""
    if plans[0].pipelines is not None:
        return pipelined_seconds(plans, cost)
    of, model = Collectives.of(cost), cost.model.with_stages(cost.pp)
    again = 1 if model.recompute == "full" else 0
    each = zip(model.layers_of_stages, model.recomputed_of_stages, strict=True)
    weights = [3 * layers + again * some for layers, some in each]
    slowest = max(range(cost.pp), key=lambda stage: (weights[stage], stage))
    played = _by_ranks(plans, cost, Sharing(of), slowest)
    others = sum(weights) / weights[slowest] - 1
    return played.end + others * played.longest + cost.optimizer_seconds()


def _by_ranks(plans: tuple[Plan, ...], job: Cost, sharing: Sharing, stage: int = 0) -> Totals:
    """Plays a stage of a job, whose ranks work each for itself, micro-batch after micro-batch."""
    cost = job.of_stage(stage)
    cluster, model = cost.cluster, cost.model
    state = ClockState.zero(cluster)
    total = Totals.zero(cluster.num_ranks, cluster.num_nics)
    again = cost.again_layers
    for plan in plans:
        forward, backward = playable(plan, cost)
        ahead, back = copies_of_stages(plan, job)[stage]
        linear = cost.linear_seconds(plan.tokens_per_rank)
        head = cost.head_seconds(plan.tokens_per_rank)
        every, first, last = sharing.of.every_micro_batch, plan is plans[0], plan is plans[-1]
        begin = began = float(state.ready.max())
        used = Carried.of(forward, cost)
        played = Layers(forward, linear, cost.layers, ahead).play(state)
        if first or every:
            shown = sharing.forward(float(state.ready.max()) - begin, used.busiest(cost))
            if every:
                state.meet()
            else:
                began += shown
            state.ready += shown
        total.forward_end = float(state.ready.max()) if first else total.forward_end
        state.ready += head
        begin, used_back = float(state.ready.max()), used.of_layers(again, cost).plus(Carried.of(backward, cost))
        replayed = [Layers(forward, linear, again).play(state)] if again else []
        back = back.beyond(model.forwards_again * linear) if back is not None and again else back
        linear_back = cost.backward_linear_seconds(plan.tokens_per_rank)
        played_back = Layers(backward, linear_back, cost.layers, back).play(state)
        if last or sharing.of.reduced:
            shown = sharing.backward(float(state.ready.max()) - begin, used_back.busiest(cost))
            state.meet()
            began += 0.0 if sharing.of.reduced else shown
            state.ready += shown
        total.longest = max(total.longest, float((state.ready - head).max()) - began)
        total.add(played, *replayed, played_back)
        total.repack(plan, cost)
        total.linear += head
        total.carried = total.carried.plus(used).plus(used_back)
        if cost.tp > 1:
            total.exchange(plan, cost)
    total.end = float(state.ready.max())
    return total
