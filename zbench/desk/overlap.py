"""Works out how much of attention's messages hides behind attention's arithmetic, of recorded runs on a desk. Pure: no
torch.

What a step has left for attention (its seconds less linear modules, the reduction of gradients, the optimizer) is set
beside the larger of two things that it cannot be shorter than: the arithmetic of the busiest rank, and the time of the
busiest NIC (or pair of ranks, where NICs have channels) for what the plan sends, forward and backward. Complete overlap
makes it equal; none would make it their sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.links import NIC
from zbench.plans.plan import Plan
from zbench.record.metrics import counted
from zbench.record.record import Line, Run
from zbench.record.rows import label
from zbench.simulator.hops import hops


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap in a run, mean seconds a step: attention took `attention`; its arithmetic `compute`, its NICs
    `transfer`."""

    system: str
    attention: float
    compute: float
    transfer: float

    @property
    def ratio(self) -> float:
        """The seconds of attention over the larger of arithmetic and transfers; 1 is complete overlap."""
        return self.attention / max(self.compute, self.transfer)


def overlap(run: Run, cost: Cost, plans: Callable[[Line], tuple[Plan, ...]]) -> Overlap:
    """Works out the overlap of a recorded run. cost: of the run's cluster and model. plans: of a step.

    Raises:
        ValueError: no step of it counts, or it was simulated.
    """
    steps = counted(run.steps)
    if run.start["facts"]["simulated"] or not steps:
        raise ValueError(f"run {run.start['run']} has no measured step that counts")
    return Overlap(
        label(run.start, "system"),
        fmean(_left(step) for step in steps),
        fmean(max(step["attention_seconds"]) for step in steps),
        fmean(sum(attention_nic_seconds(plan, cost) for plan in plans(step)) for step in steps),
    )


def attention_nic_seconds(plan: Plan, cost: Cost) -> float:
    """Returns the busiest NIC's seconds for what attention sends, one direction, forward and backward of all layers.

    What one rank sends to one other has one of the NIC's channels.
    """
    seconds = 0.0
    for ops in (plan.forward, plan.backward):
        parts = hops(plan, ops, cost.message_bytes(plan, ops), cost.cluster)
        across = parts.link_class == NIC
        size, yes = parts.bytes[across], np.ones(int(across.sum()), bool)
        ends = np.concatenate([parts.link_a[across], parts.link_b[across]])
        carried = np.bincount(ends, weights=np.tile(size, 2), minlength=1)
        alone = np.where(parts.whole[across], cost.transfer_seconds(size, yes), cost.message_seconds(size, yes))
        pair = np.unique(np.stack([parts.queue_a[across], parts.queue_b[across]]), axis=1, return_inverse=True)[1]
        busiest = cost.nic_transfer_seconds(float(carried.max()))
        seconds += max(busiest, float(np.bincount(pair, alone, 1).max()))
    return cost.model.num_layers * seconds


def _left(step: Line) -> float:
    """Returns the seconds of a step that are left for attention, on the rank that has most linear work."""
    phases = step.get("phases", {})
    if lacking := [name for name in ("reduction", "optimizer") if name not in phases]:
        raise ValueError(f"phases of step {step['step']} of run {step['run']} has no {lacking[0]}; training has it")
    apart = max(step["linear_seconds"]) + phases["reduction"] + phases["optimizer"]
    return float(step["seconds"] - apart)
