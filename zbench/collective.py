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
Ints = NDArray[np.int64]
GRADIENT_BYTES = 4  # per parameter: gradients are summed in float32 (Megatron's and torchtitan's default)


@dataclass(frozen=True, slots=True)
class Gradient:
    """seconds: the collectives' own time; exposed: what nothing hid, `moving` of it because parameters had to be in
    other places than in the step before; nic_bytes: int64 [num_nics], each way."""

    seconds: float
    exposed: float
    optimizer: float
    nic_bytes: Ints
    moving: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """Shares of the parameters that the layers on a rank (most of any) and on a node ([num_nodes]) compute with.

    Where optimizer state, gradients' sums and, between steps, parameters are is another matter: an even share of every
    tensor on every rank, whatever the layout of the layers.
    """

    rank: float
    node: Floats


def everything(cost: Cost) -> Held:
    """Data and context parallelism: every rank has all layers."""
    return Held(1.0, np.ones(cost.cluster.num_nodes))


def gather_seconds(cost: Cost, size: float, held: Held | None = None) -> float:
    """All-gather (or reduce-scatter) of what is `held` of `size` bytes (None: all) over every rank."""
    c = cost.cluster
    if c.num_ranks == 1:
        return 0.0
    held = held or everything(cost)
    yes, no = np.array([True]), np.array([False])
    nvlink = cost.transfer_seconds(np.array([held.rank * size * (c.num_ranks - 1) / c.num_ranks]), no)[0]
    nic = cost.transfer_seconds(np.array([nic_bytes(cost, float(held.node.max()) * size)]), yes)[0]
    return float(max(nvlink, nic) + hop_seconds(cost))


def hop_seconds(cost: Cost) -> float:
    """Latencies of a gather: ranks of a node in turn, and nodes."""
    c = cost.cluster
    return c.nvlink_latency * (c.gpus_per_node - 1) + c.nic_latency * (c.num_nodes - 1)


def nic_bytes(cost: Cost, size: float) -> int:
    """What each NIC sends (and receives) in an all-gather or reduce-scatter of `size` bytes."""
    c = cost.cluster
    return int(size * (c.num_nodes - 1) / c.num_nodes / c.nics_per_node)


def every_nic(cost: Cost, size: float, held: Held) -> Ints:
    """int64 [num_nics]: nic_bytes where nodes hold different shares of `size` bytes."""
    each = [nic_bytes(cost, share * size) for share in held.node.tolist()]
    return np.repeat(np.array(each, np.int64), cost.cluster.nics_per_node)


def finish(
    cost: Cost,
    ready: Floats,
    forward_end: float,
    backward_begin: float,
    nic_tx: NDArray[np.int64],
    nic_rx: NDArray[np.int64],
    held: Held | None = None,
    moved: bool = False,
) -> tuple[float, Gradient]:
    """(when the step ends, its collectives), from when each rank's last backward ends.

    The reduction starts when the first layer's gradients are there, one layer at a time, and ends no
    sooner than one layer after the backward. It shares the NICs with attention: it also ends no sooner
    than the busiest NIC needs for both. Parameter gathers run ahead of the forward (and, sharded as in
    ZeRO-3, of the backward) and cost what does not fit beside it. held: what layers need, None: all on every rank.
    moved: in another place than in the step before; then nothing of the first gather is hidden, as the buffers that
    it fills are laid out anew before the first layer can begin.
    """
    model, layers = cost.model, cost.model.num_layers
    params, held = float(model.total_params), held or everything(cost)
    gather = gather_seconds(cost, model.element_bytes * params, held)
    reduce = gather_seconds(cost, GRADIENT_BYTES * params, held)
    end = float(ready.max())
    span = end - backward_begin
    gathers = 2 if model.sharding == "zero3" else 1
    reduce_part = reduce + (gathers - 1) * gather
    busiest = float(cost.transfer_seconds(np.array([max(nic_tx.max(), nic_rx.max())]), np.array([True]))[0])
    share = span / end if end > 0 else 0.0
    tail = max(reduce / layers, span / layers + reduce_part - span, busiest * share + reduce_part - span)
    tail = tail if cost.cluster.num_ranks > 1 else 0.0
    late = max(0.0, gather + gather / layers - forward_end)
    moving = max(0.0, gather - late) if moved else 0.0
    optimizer = cost.optimizer_seconds()
    sent = gathers * every_nic(cost, model.element_bytes * params, held)
    sent += every_nic(cost, GRADIENT_BYTES * params, held)
    exposed = tail + late + moving
    return end + exposed + optimizer, Gradient(reduce + gathers * gather, exposed, optimizer, sent, moving)
