"""A step as planners estimate it: attention on a described cluster's clock, the rest as sums beside it.

A step is, per micro-batch: layers x (linear modules, attention) forward, the head and the loss,
layers x (attention, linear modules) backward; what they do not hide of parameters' gathers and gradients'
reductions; and the optimizer. Attention is played hop by hop (zbench.simulator.clock), the rest is charged
per rank (zbench.cost.cost, zbench.cost.collective). Ranks are held together by their data only: a rank whose
neighbours do not need it runs ahead into the next layer, and, with ZeRO-1, into the next micro-batch. With ZeRO-3
every forward and every backward gathers parameters from all ranks, so there they meet; with ZeRO-2 every backward sums
gradients of all ranks, who have no room for those of more than a layer, so they meet in it. Plans with pipelines are
played by zbench.simulator.estimate.pipelined, jobs with stages by zbench.simulator.estimate.staged.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zbench.cost.bound import bound_seconds, ceiling_seconds
from zbench.cost.collective import Collectives, Sharing
from zbench.cost.cost import Cost
from zbench.cost.groups import of_gpu, of_nics
from zbench.cost.memory.host_copies import plan_copies
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.stage import held
from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, degrees_of
from zbench.interfaces.protocols import Ready
from zbench.interfaces.result import StepResult
from zbench.plans.pipelines import Layout
from zbench.plans.plan import Plan
from zbench.simulator.attention import Programs, playable, programs
from zbench.simulator.estimate import pipelined, staged
from zbench.simulator.estimate.layers import ClockState, Layers
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


@dataclass(slots=True)
class StepEstimate:
    """Simulates plans on the cluster of `cost`: a step's result is a function of (batch, plans, cost), and of whether
    its pipelines are those of the step before: parameters that have to be elsewhere are waited for."""

    cost: Cost
    _layout: Layout | None = field(default=None, init=False, repr=False, compare=False)

    def start(self) -> Ready:
        self._layout = None
        return Ready()

    def stop(self) -> None:
        pass

    def bound_seconds(self, batch: Batch) -> float:
        """Returns the seconds of a step that no plan of a batch can beat."""
        return bound_seconds(batch, self.cost)

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Simulates one training step; seconds are the described cluster's, not this machine's."""
        cost, pipelines = self.cost, plans[0].pipelines
        layout = () if pipelines is None else pipelines.layout
        moved, self._layout = self._layout not in (None, layout), layout
        sharing = Sharing(Collectives.of(cost, None if pipelines is None else held(pipelines, cost)))
        phases: dict[str, float] = {}
        if cost.pp > 1:
            played, phases["bubble"] = staged.play(plans, [programs(plan, cost) for plan in plans], cost, sharing)
        else:
            played = (_by_ranks if pipelines is None else pipelined.play)(plans, cost, sharing, moved)
        optimizer = cost.optimizer_seconds()
        end = played.end + optimizer
        peak = of_gpu(peak_bytes(plans, cost), cost.tp)
        capacity = int(cost.cluster.device.memory_bytes / cost.tp)
        phases |= {"forward": played.forward_end, "gradients": sharing.exposed, "optimizer": optimizer}
        sharing_seconds = max(sharing.seconds, sharing.exposed)  # more than alone, where NICs are busy with attention
        shared_bytes = np.tile(sharing.nic_bytes, cost.pp)  # every stage shares its own

        def by_gpu(of_ranks: Floats | Ints) -> list[Any]:
            found: list[Any] = np.repeat(of_ranks, cost.tp).tolist()  # GPUs of a group do the same at the same time
            return found

        return StepResult(
            seconds=end,
            bound_seconds=self.bound_seconds(batch),
            ceiling_seconds=ceiling_seconds(batch, cost, sharing.of, pipelines is not None),
            attention_seconds=by_gpu(played.attention),
            linear_seconds=by_gpu(played.linear),
            communication_seconds=by_gpu(np.minimum(played.communication + sharing_seconds, end)),
            exposed_seconds=by_gpu(played.exposed + sharing.exposed),
            exposed_nic_seconds=by_gpu(played.exposed_nic),
            nic_tx_bytes=of_nics(played.carried.tx + shared_bytes, cost.bonded_nics).tolist(),
            nic_rx_bytes=of_nics(played.carried.rx + shared_bytes, cost.bonded_nics).tolist(),
            nvlink_bytes=int(played.carried.nvlink),
            peak_bytes=by_gpu(peak),
            capacity_bytes=capacity,
            out_of_memory=bool(peak.max() > capacity),
            phases=phases | ({"switch": sharing.moving} if moved else {}),
        )


def _by_ranks(plans: tuple[Plan, ...], cost: Cost, sharing: Sharing, moved: bool) -> Totals:
    """Plans whose ranks work each for itself, micro-batch after micro-batch."""
    cluster, model = cost.cluster, cost.model
    state = ClockState.zero(cluster)
    total = Totals.zero(cluster.num_ranks, cluster.num_nics)
    again = cost.again_layers
    for plan in plans:
        forward, backward = playable(plan, cost)
        ahead, back = plan_copies(plan, cost)
        linear = cost.linear_seconds(plan.tokens_per_rank)
        head = cost.head_seconds(plan.tokens_per_rank)
        every, first, last = sharing.of.every_micro_batch, plan is plans[0], plan is plans[-1]
        begin, used = float(state.ready.max()), Carried.of(forward, cost)
        played = Layers(forward, linear, model.num_layers, ahead).play(state)
        if first or every:
            shown = sharing.forward(float(state.ready.max()) - begin, used.busiest(cost), moved and first)
            if every:
                state.meet()
            state.ready += shown
        total.forward_end = float(state.ready.max()) if first else total.forward_end
        state.ready += head
        begin, used_back = float(state.ready.max()), used.of_layers(again, cost).plus(Carried.of(backward, cost))
        replayed = [Layers(forward, linear, again).play(state)] if again else []
        back = back.beyond(model.forwards_again * linear) if back is not None and again else back
        linear_back = cost.backward_linear_seconds(plan.tokens_per_rank)
        played_back = Layers(backward, linear_back, model.num_layers, back).play(state)
        if last or sharing.of.reduced:
            shown = sharing.backward(float(state.ready.max()) - begin, used_back.busiest(cost))
            state.meet()
            state.ready += shown
        total.add(played, *replayed, played_back)
        total.repack(plan, cost)
        total.linear += head
        total.carried = total.carried.plus(used).plus(used_back)
        if cost.tp > 1:
            total.exchange(plan, cost)
    total.end = float(state.ready.max())
    return total
