"""What data parallelism adds to a step: parameters gathered, gradients reduced, the optimizer. Pure: no torch.

Both collectives run hierarchically (inside the node over NVLink, across nodes with every NIC taking
an equal share) on a channel of their own beside the layers. Gradients of a layer are ready when its
backward ends; parameters of a layer are needed when its forward begins.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbench.cost import Cost

Floats = NDArray[np.float64]
GRADIENT_BYTES = 4  # per parameter: gradients are summed in float32 (Megatron's and torchtitan's default)


@dataclass(frozen=True, slots=True)
class Gradient:
    """seconds: the collectives' own time; exposed: what nothing hid; nic_bytes: each way on every NIC."""

    seconds: float
    exposed: float
    optimizer: float
    nic_bytes: int


def gather_seconds(cost: Cost, size: float) -> float:
    """All-gather (or reduce-scatter) of `size` bytes in all over every rank."""
    c = cost.cluster
    if c.num_ranks == 1:
        return 0.0
    yes, no = np.array([True]), np.array([False])
    nvlink = cost.transfer_seconds(np.array([size * (c.num_ranks - 1) / c.num_ranks]), no)[0]
    nic = cost.transfer_seconds(np.array([nic_bytes(cost, size)]), yes)[0]
    hops = c.nvlink_latency * (c.gpus_per_node - 1) + c.nic_latency * (c.num_nodes - 1)
    return float(max(nvlink, nic) + hops)


def nic_bytes(cost: Cost, size: float) -> int:
    """What each NIC sends (and receives) in an all-gather or reduce-scatter of `size` bytes."""
    c = cost.cluster
    return int(size * (c.num_nodes - 1) / c.num_nodes / c.nics_per_node)


def finish(
    cost: Cost,
    ready: Floats,
    forward_end: float,
    backward_begin: float,
    nic_tx: NDArray[np.int64],
    nic_rx: NDArray[np.int64],
) -> tuple[float, Gradient]:
    """(when the step ends, its collectives), from when each rank's last backward ends.

    The reduction starts when the first layer's gradients are there, one layer at a time, and ends no
    sooner than one layer after the backward. It shares the NICs with attention: it also ends no sooner
    than the busiest NIC needs for both. Parameter gathers run ahead of the forward (and, sharded as in
    ZeRO-3, of the backward) and cost what does not fit beside it.
    """
    model, layers = cost.model, cost.model.num_layers
    params = float(model.total_params)
    gather, reduce = gather_seconds(cost, model.element_bytes * params), gather_seconds(cost, GRADIENT_BYTES * params)
    end = float(ready.max())
    span = end - backward_begin
    gathers = 2 if model.sharding == "zero3" else 1
    reduce_part = reduce + (gathers - 1) * gather
    busiest = float(cost.transfer_seconds(np.array([max(nic_tx.max(), nic_rx.max())]), np.array([True]))[0])
    share = span / end if end > 0 else 0.0
    tail = max(reduce / layers, span / layers + reduce_part - span, busiest * share + reduce_part - span)
    tail = tail if cost.cluster.num_ranks > 1 else 0.0
    late = max(0.0, gather + gather / layers - forward_end)
    optimizer = cost.optimizer_seconds()
    sent = gathers * nic_bytes(cost, model.element_bytes * params) + nic_bytes(cost, GRADIENT_BYTES * params)
    return end + tail + late + optimizer, Gradient(reduce + gathers * gather, tail + late, optimizer, sent)
