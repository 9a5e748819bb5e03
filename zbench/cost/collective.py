"""The collectives that data parallelism adds to a step: parameters gathered, gradients reduced.

Both (zbench.cost.gathers) run in a stream of their own beside the layers. Gradients of a layer are ready when its
backward ends; parameters of a layer are needed when its forward begins.

How often: with ZeRO-1 parameters are gathered in the first forward of a step and gradients reduced in its last
backward. With ZeRO-2 a rank keeps its share of the gradients alone, so every micro-batch reduces its own. With ZeRO-3
(Rajbhandari et al. 2020, arXiv 1910.02054, section 7.2.2) a rank keeps neither, so every micro-batch gathers parameters
for its forward and again for its backward, and reduces its gradients. Pipelines of different shapes
(zbench.plans.pipelines) keep theirs for the step in either case.

Seconds of these are what planners compare plans by; whole steps (zbench.simulator.steps) play every message.
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.gathers import (
    Held,
    everything,
    gather_seconds,
    port_seconds,
    run_port_seconds,
    run_seconds,
)
from zbench.describe.arrays import Floats
from zbench.describe.degrees import WORLD, ShardDegrees, degrees_of

GRADIENT_BYTES = 4  # per parameter: gradients are summed in float32 (Megatron's and torchtitan's default)


@dataclass(frozen=True, slots=True)
class Collectives:
    """A step's collectives by kind: one gather of parameters and one reduction of gradients, all layers, and what
    layers beside them do not hide.

    gather, reduce: seconds. gather_ports, reduce_ports: float64 [classes], of which a rank's ports are busy for so
    long. passes: how many forwards the
    forward and backward of a layer take, but for what selective recomputation adds. every_step: parameters are gathered
    at all, as they are not where every rank keeps its own up to date; then a reduction is an all-reduce.
    every_micro_batch: parameters are gathered in every micro-batch, twice, as with ZeRO-3; else once a step. reduced:
    gradients are reduced in every micro-batch, as with ZeRO-2 and 3; else once a step.
    """

    num_layers: int
    passes: float
    every_step: bool
    every_micro_batch: bool
    gather: float
    reduce: float
    gather_ports: Floats
    reduce_ports: Floats
    reduced: bool

    @staticmethod
    def of(cost: Cost, held: Held | None = None) -> "Collectives":
        """Works out the collectives of a cost model; of a part of a step (Cost.of_part) those that it has. held: what
        the layers of pipelines need of the parameters, for the whole step; None: ranks need all of them, and with
        ZeRO-3 let them go again."""
        cut = cost.model.sharding
        found = Collectives._nested(cost, cut) if isinstance(cut, ShardDegrees) else Collectives._of_levels(cost, held)
        return found.of_part(cost)

    def of_part(self, cost: Cost) -> "Collectives":
        """Leaves out what a step does once in a micro-batch that is not of the part of it that `cost` is of."""
        if cost.opens_step and cost.closes_step:
            return self
        opens, closes = cost.opens_step, cost.closes_step
        gathers, reduces = opens or self.every_micro_batch, closes or self.reduced
        return replace(
            self,
            every_step=self.every_step and gathers,
            gather=self.gather * gathers,
            reduce=self.reduce * reduces,
            gather_ports=self.gather_ports * gathers,
            reduce_ports=self.reduce_ports * reduces,
        )

    @staticmethod
    def _of_levels(cost: Cost, held: Held | None) -> "Collectives":
        """Works out the collectives of ZeRO-1, 2, 3 or none, among all ranks."""
        model, degrees = cost.model, degrees_of(cost.model.sharding)
        every_micro_batch, reduced = degrees.weights != 1 and held is None, degrees.gradients != 1 and held is None
        held = held or everything(cost)
        of_stage = float(model.placed_params) / cost.pp  # stages gather and reduce theirs at the same time
        parameters, gradients = (size * of_stage for size in (model.element_bytes, GRADIENT_BYTES))
        halves = 2 if degrees.optimizer == 1 else 1  # an all-reduce is a reduce-scatter and an all-gather
        return Collectives(
            num_layers=cost.layers,
            passes=3 + model.forwards_again,  # a backward is two
            every_step=degrees.optimizer != 1,
            every_micro_batch=every_micro_batch,
            gather=gather_seconds(cost, parameters, held),
            reduce=halves * gather_seconds(cost, gradients, held),
            gather_ports=port_seconds(cost, parameters, held),
            reduce_ports=halves * port_seconds(cost, gradients, held),
            reduced=reduced,
        )

    @property
    def uncovered(self) -> float:
        """The seconds of a step of one micro-batch that no layer can hide: of the first layer's parameters and of the
        gradients of the layer that is done last."""
        return (self.gather * self.every_step + self.reduce) / self.num_layers

    @staticmethod
    def _nested(cost: Cost, degrees: ShardDegrees) -> "Collectives":
        """Works out the collectives of degrees: of a micro-batch, those among the ranks of each run. Both gathers of it
        count as their mean; with stages a forward's is that of a backward but for a step's first one. What is over the
        rest, once a step, is not in it, unless nothing is in every micro-batch.
        """
        model, cut, bits, of_stage = cost.model, degrees, degrees.bits, float(cost.model.placed_params) / cost.pp
        gradients = bits.value_bytes("gradients", GRADIENT_BYTES) * of_stage
        gathers = [(cut.optimizer, "updates")]
        if cut.weights != 1:
            stays = cost.pp > 1 and cut.secondary != cut.weights
            gathers = [(cut.weights, "weights"), (cut.secondary, "secondary")][int(stays) :]
        sizes = [bits.value_bytes(kind, model.element_bytes) * of_stage for _, kind in gathers]
        runs = [(size, degree) for size, (degree, _) in zip(sizes, gathers, strict=True)]
        reduced = cut.gradients != 1
        halves = 1 if reduced or cut.optimizer != 1 else 2
        among = cut.gradients if reduced else WORLD
        return Collectives(
            num_layers=cost.layers,
            passes=3 + model.forwards_again,
            every_step=cut.weights != 1 or cut.optimizer != 1,
            every_micro_batch=cut.weights != 1,
            gather=sum(run_seconds(cost, *one) for one in runs) / len(runs),
            reduce=halves * run_seconds(cost, gradients, among),
            gather_ports=np.mean([run_port_seconds(cost, *one) for one in runs], axis=0),
            reduce_ports=halves * run_port_seconds(cost, gradients, among),
            reduced=reduced,
        )

    def forward(self, span: float, nic: float) -> float:
        """Returns the seconds by which a forward of `span` seconds, whose layers keep the busiest NIC busy for `nic`,
        is late.

        The gather runs ahead of the layers, the last of which cannot begin before it ends.
        """
        return max(0.0, self.gather + self.gather / self.num_layers - span, self.gather + nic - span)

    def shown_in_forward(self, span: float, nic: float) -> float:
        """Returns what a forward adds as `forward` does, where parameters are gathered for it."""
        return self.forward(span, nic) if self.every_step else 0.0

    def backward(self, span: float, nic: float) -> float:
        """Gives what collectives add to a backward, as `forward` does for a forward.

        The reduction starts when the first layer's gradients are there, one layer at a time, and ends no sooner than
        one layer after the backward.
        """
        more = self.reduce + (self.gather if self.every_micro_batch else 0.0) - span
        return max(self.reduce / self.num_layers, span / self.num_layers + more, nic + more)

    def end_of_pipelines(self, total: Floats, first: Floats, last: Floats, busy: Floats) -> float:
        """Gives the seconds in which pipelines side by side have computed, and gathered and reduced what a step does
        once.

        total, first, last: seconds of each pipeline, of all its micro-batches, and of its first and its last on one
        stage after the other, float64 [pipelines]. busy: of each, the share of the time in which its layers keep the
        NICs of its stages busy.

        Each pipeline waits for parameters in its own first forward. Gradients are summed over all pipelines, so a layer
        is reduced when the last of them has its gradients: one whose last micro-batch is short has them late, and what
        others could have hidden by then does not count.
        """
        ahead, back = first / self.passes, last - last / self.passes
        waits = [self.shown_in_forward(*both) for both in zip(ahead.tolist(), (busy * ahead).tolist(), strict=True)]
        ends = total + waits
        begins = ends - back  # of each one's last backward
        reduced = float((begins + back / self.num_layers).max()) + self.reduce
        own = busy * np.minimum(ends - begins.max(), back)  # of a NIC's seconds from then on, for messages of layers
        shared = float(begins.max() + own.max()) + self.reduce
        return max(reduced, shared, float(ends.max()) + self.reduce / self.num_layers)

    def micro_batch_seconds(self, layers: float) -> float:
        """Gives the seconds of a micro-batch whose layers take `layers` on the slowest rank, with its own collectives.

        They are those of ZeRO-3, and of ZeRO-2 its reduction, where attention leaves the NICs alone. ZeRO-1 has none: a
        step adds what it adds once, whatever the number of micro-batches.
        """
        if not self.reduced:
            return layers
        forward = layers / self.passes
        shown = self.forward(forward, 0.0) if self.every_micro_batch else 0.0
        return layers + shown + self.backward(layers - forward, 0.0)


def once_a_step(cost: Cost) -> bool:
    """Returns whether a step gathers parameters or reduces gradients once, whatever the number of micro-batches."""
    degrees = degrees_of(cost.model.sharding)
    return degrees.weights == 1 or degrees.gradients == 1
