"""The collectives that data parallelism adds to a step: parameters gathered, gradients reduced.

Both (zbench.cost.gathers) run in a stream of their own beside the layers. Gradients of a layer are ready when its
backward ends; parameters of a layer are needed when its forward begins.

How often: with ZeRO-1 parameters are gathered in the first forward of a step and gradients reduced in its last
backward. With ZeRO-2 a rank keeps its share of the gradients alone, so every micro-batch reduces its own. With ZeRO-3
(Rajbhandari et al. 2020, arXiv 1910.02054, section 7.2.2) a rank keeps neither, so every micro-batch gathers parameters
for its forward and again for its backward, and reduces its gradients. Pipelines of different shapes
(zbench.plans.pipelines) keep theirs for the step in either case.
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.gathers import (
    Held,
    every_nic,
    every_run_nic,
    everything,
    gather_seconds,
    port_seconds,
    run_port_seconds,
    run_seconds,
)
from zbench.describe.arrays import Floats, Ints
from zbench.describe.degrees import WORLD, ShardDegrees, degrees_of

GRADIENT_BYTES = 4  # per parameter: gradients are summed in float32 (Megatron's and torchtitan's default)


@dataclass(frozen=True, slots=True)
class Collectives:
    """A step's collectives by kind: one gather of parameters and one reduction of gradients, all layers, and what
    layers beside them do not hide.

    gather, reduce: seconds. gather_ports, reduce_ports: float64 [classes], of which a rank's ports are busy for so
    long. gather_bytes, reduce_bytes: int64 [num_nics], each way. passes: how many forwards the
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
    gather_bytes: Ints
    reduce_bytes: Ints
    reduced: bool

    @staticmethod
    def of(cost: Cost, held: Held | None = None) -> "Collectives":
        """Works out the collectives of a cost model. held: what the layers of pipelines need of the parameters, for the
        whole step; None: ranks need all of them, and with ZeRO-3 let them go again."""
        model, degrees = cost.model, degrees_of(cost.model.sharding)
        if isinstance(model.sharding, ShardDegrees):
            return Collectives._nested(cost, model.sharding)
        every_micro_batch, reduced = degrees.weights != 1 and held is None, degrees.gradients != 1 and held is None
        held = held or everything(cost)
        of_stage = float(model.total_params) / cost.pp  # stages gather and reduce theirs at the same time
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
            gather_bytes=every_nic(cost, parameters, held),
            reduce_bytes=halves * every_nic(cost, gradients, held),
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
        model, cut, bits, of_stage = cost.model, degrees, degrees.bits, float(cost.model.total_params) / cost.pp
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
            gather_bytes=np.sum([every_run_nic(cost, *one) for one in runs], axis=0) // len(runs),
            reduce_bytes=halves * every_run_nic(cost, gradients, among),
            reduced=reduced,
        )

    def forward(self, span: float, nic: float) -> float:
        """Returns the seconds by which a forward of `span` seconds, whose layers keep the busiest NIC busy for `nic`,
        is late.

        The gather runs ahead of the layers, the last of which cannot begin before it ends.
        """
        return max(0.0, self.gather + self.gather / self.num_layers - span, self.gather + nic - span)

    def backward(self, span: float, nic: float) -> float:
        """Gives what collectives add to a backward, as `forward` does for a forward.

        The reduction starts when the first layer's gradients are there, one layer at a time, and ends no sooner than
        one layer after the backward.
        """
        more = self.reduce + (self.gather if self.every_micro_batch else 0.0) - span
        return max(self.reduce / self.num_layers, span / self.num_layers + more, nic + more)

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


@dataclass(slots=True)
class Sharing:
    """The collectives of one step so far, added up. gathers, reductions: how many. exposed: seconds that nothing hid,
    `moving` of them because parameters had to be in other places than in the step before. Its methods return what they
    add to that."""

    of: Collectives
    gathers: int = 0
    reductions: int = 0
    exposed: float = 0.0
    moving: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all gathers and reductions, hidden or not."""
        return self.gathers * self.of.gather + self.reductions * self.of.reduce

    @property
    def nic_bytes(self) -> Ints:
        """Bytes through every NIC, int64 [num_nics], each way."""
        return self.gathers * self.of.gather_bytes + self.reductions * self.of.reduce_bytes

    def forward(self, span: float, nic: float, moved: bool) -> float:
        """Adds a forward's gather and returns the seconds that nothing hides of it. moved: parameters were in other
        places in the step before; then nothing of the gather is hidden, as the buffers that it fills are laid out anew
        before the first layer can begin."""
        if not (self.of.every_step or moved):
            return 0.0
        late = self.of.forward(span, nic)
        moving = max(0.0, self.of.gather - late) if moved else 0.0
        self.moving += moving
        return self._add(1, 0, late + moving)

    def backward(self, span: float, nic: float) -> float:
        """Adds a backward's reduction (with ZeRO-3 its gather too) and returns the seconds that nothing hides of
        them."""
        return self._add(int(self.of.every_micro_batch), 1, self.of.backward(span, nic))

    def _add(self, gathers: int, reductions: int, exposed: float) -> float:
        self.gathers += gathers
        self.reductions += reductions
        self.exposed += exposed
        return exposed
