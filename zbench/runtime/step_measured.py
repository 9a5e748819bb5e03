"""Makes one StepResult of what all ranks measured of a whole step. The driver's side: no torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.interfaces.result import NOT_ON_NVLINK, SECONDS_FOR, SWITCH, StepResult
from zbench.runtime.clocks.named import seconds_for_ranks
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.measured import lateness, nic_series, node_nic_bytes
from zbench.runtime.worker_clocks import StepClock
from zbench.simulator.steps.least.bound import step_bound_seconds
from zbench.step.byte_law import sent_by_purpose
from zbench.step.operations import QUEUES

MESSAGES = "waiting_messages"
_WAITS = tuple(name for name in SECONDS_FOR if name.startswith("waiting_"))


def step_loss(reports: Sequence[StepReport]) -> float:
    """Returns the loss of the whole batch, which one rank has, or one of each worker that trains apart its part of."""
    return sum(one.loss for one in reports if one.loss is not None)


def whole_step_result(
    batch: Batch,
    cost: Cost,
    reports: Sequence[StepReport],
    checks: dict[str, float],
    clock: StepClock | None = None,
    nic_counters: bool = False,
) -> StepResult:
    """Makes the result of a step of the reports of all ranks, which are GPUs. clock: the step's time where it is not
    that of the slowest rank. nic_counters: take NIC bytes from counters, and not from what ranks counted.

    Raises:
        ValueError: with nic_counters, a node has another number of NICs than the cluster.
    """
    cluster, slowest = cost.gpus.cluster, max(reports, key=lambda one: one.seconds)
    clock = clock or StepClock(slowest.seconds, [slowest.seconds - one.seconds for one in reports])

    parts = {name: [one.spent.get(name, 0.0) for one in reports] for name in SECONDS_FOR}
    parts["end"] = list(clock.idle)
    if (late := seconds_for_ranks([one.named for one in reports])) is not None:
        messages = parts.pop(MESSAGES)
        parts["waiting_rank"] = [min(one, of) for one, of in zip(late, messages, strict=True)]
        parts["waiting_link"] = [of - one for one, of in zip(parts["waiting_rank"], messages, strict=True)]
    nic = [{name: _nic_bytes(cluster, reports, name, way) for name in (*QUEUES[1:], SWITCH)} for way in (0, 1)]
    exposed = [_waited(one) for one in reports]
    sent, received = ([int(one) for one in np.sum(list(way.values()), axis=0)] for way in nic)
    if nic_counters:
        sent, received = node_nic_bytes(reports, cluster)
    weighed = [one.store_bytes for one in reports]
    inside = [(name, sent) for one in reports for name, (sent, _) in one.inside.items()]
    return StepResult(
        seconds=clock.seconds,
        bound_seconds=step_bound_seconds(batch, cost),
        attention_seconds=parts["attention"],
        linear_seconds=parts["linear"],
        communication_seconds=[max(one.under_way, waited) for one, waited in zip(reports, exposed, strict=True)],
        exposed_seconds=exposed,
        nic_tx_bytes=sent,
        nic_rx_bytes=received,
        nvlink_bytes=sum(sent for name, sent in inside if name not in NOT_ON_NVLINK),
        peak_bytes=[one.peak_bytes for one in reports],
        capacity_bytes=min(one.capacity_bytes for one in reports),
        out_of_memory=False,  # it ran
        loss=step_loss(reports),
        phases={"compile": max(one.compiling for one in reports), "optimizer": slowest.spent.get("optimizer", 0.0)}
        | ({SWITCH: switching} if (switching := max(one.switching for one in reports)) else {})
        | ({} if clock.wait is None else {"wait": clock.wait})
        | lateness([one.paced for one in reports if one.paced]),
        checks=checks,
        seconds_for={name: values for name, values in parts.items() if any(values)},
        nic_series=nic_series(reports, cluster.gpus_per_node),
        nic_tx_for={name: sizes.tolist() for name, sizes in nic[0].items() if sizes.any()},
        store_bytes=[] if None in weighed else [size for size in weighed if size is not None],
    )


def told_of_update(reports: Sequence[StepReport]) -> dict[str, Any]:
    """Returns what the record's end says of the updates after the last step: the seconds of the slowest rank, and the
    bytes that all ranks sent, by queue."""
    return {"seconds": max(one.seconds for one in reports), "bytes": sent_by_purpose(one.total() for one in reports)}


def _waited(one: StepReport) -> float:
    """Returns the seconds in which a rank waited for messages."""
    return sum(one.spent.get(name, 0.0) for name in _WAITS)


def _nic_bytes(cluster: Cluster, reports: Sequence[StepReport], queue: str, way: int) -> Ints:
    """Returns the bytes of a queue that went through every NIC, int64 [num_nics]. way: 0 sent, 1 received."""
    sizes = [one.across.get(queue, (0, 0))[way] for one in reports]
    return np.bincount(cluster.nic_of, sizes, cluster.num_nics).astype(np.int64)
