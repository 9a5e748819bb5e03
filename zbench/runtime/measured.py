"""Makes one StepResult of the reports of all ranks, and says where its bytes come from. The driver's side: no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Protocol

from zbench.cost.bound import bound_seconds
from zbench.cost.cost import Cost
from zbench.cost.gathers import nic_bytes
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.interfaces.result import StepResult
from zbench.runtime.clocks.named import seconds_for_ranks
from zbench.runtime.job.footprint import LevelChoice
from zbench.runtime.job.job import Report
from zbench.runtime.traffic import Sent

COUNTED = (
    "attention: the size of every message, counted where it is posted (of an all-to-all that another package calls: "
    "where it is called); gradients and parameters: not counted but computed, as of ring collectives that run node by "
    "node - what gloo or NCCL sends for theirs is its own affair (executor=torch sends them itself, and "
    "counts every message by what it is for)"
)
_ROUNDING = 1e-9  # relative: of parts that are differences
COUNTERS = "counters of the machines' NICs"


class ReadsNics(Protocol):
    """A report of a rank that may have read its node's counters (zbench.runtime.job.job.Report has the fields'
    meaning)."""

    @property
    def nic(self) -> Mapping[str, Any]: ...

    @property
    def nic_series(self) -> dict[str, Any]: ...


def step_result(
    batch: Batch,
    num_micro_batches: int,
    cost: Cost,
    reports: list[Report],
    parameters: str,
    nic_counters: bool,
    checks: dict[str, float],
    choice: LevelChoice,
) -> StepResult:
    """Makes the result of a step of all ranks' reports.

    Raises:
        ValueError: with nic_counters, a node has another number of NICs than the cluster.
    """
    cluster = cost.cluster
    if nic_counters:
        tx, rx = node_nic_bytes(reports, cluster)
    else:
        sent = Sent.of(cluster, [one.inside for one in reports], [one.across for one in reports])
        more = _parameter_bytes(cost, parameters, num_micro_batches) if cluster.num_nodes > 1 else 0
        tx, rx = [one + more for one in sent.nic_tx], [one + more for one in sent.nic_rx]
    slowest = max(reports, key=lambda one: one.seconds)
    return StepResult(
        seconds=slowest.seconds,
        bound_seconds=bound_seconds(batch, cost),
        attention_seconds=[one.attention_seconds for one in reports],
        linear_seconds=[one.linear_seconds for one in reports],
        communication_seconds=[one.communication_seconds for one in reports],
        exposed_seconds=[one.exposed_seconds for one in reports],
        nic_tx_bytes=tx,
        nic_rx_bytes=rx,
        nvlink_bytes=sum(one.inside[0] for one in reports),
        peak_bytes=[one.peak_bytes for one in reports],
        capacity_bytes=min(one.capacity_bytes for one in reports),
        out_of_memory=False,  # it ran
        loss=reports[0].loss,
        phases=slowest.phases | lateness([one.phases for one in reports if "overrun" in one.phases]),
        checks=checks,
        seconds_for=_seconds_for(reports, slowest.seconds),
        nic_series=nic_series(reports, cluster.gpus_per_node),
        recompute=asdict(choice),
    )


def _seconds_for(reports: list[Report], seconds: float) -> dict[str, list[float]]:
    """Returns StepResult.seconds_for of what ranks measured; {} where their parts, each by a clock of its own, come to
    more than their seconds.

    Linear modules are what is left of forward and backward beside attention: gathers of parameters that are waited for
    are in it. What attention takes beside kernels, repacking and waiting is the interpreter's.
    """
    found: dict[str, list[float]] = {}
    late = seconds_for_ranks([one.named for one in reports])
    for rank, one in enumerate(reports):
        took, phases = one.seconds, one.phases
        waiting = one.exposed_seconds - one.repacking_seconds - phases["reduction"]
        parts = {
            "attention": one.attention_seconds,
            "linear": took - phases["attention"] - phases["reduction"] - phases["optimizer"],
            "optimizer": phases["optimizer"],
            "repacking": one.repacking_seconds,
            "interpreter": phases["attention"] - one.attention_seconds - one.repacking_seconds - waiting,
            **({"waiting_messages": waiting} if late is None else _told_apart(waiting, late[rank])),
            "waiting_gradients": phases["reduction"],
            "end": seconds - took,
        }
        if min(parts.values()) < -_ROUNDING * seconds:
            return {}
        for name, value in parts.items():
            found.setdefault(name, []).append(max(value, 0.0))
    return {name: values for name, values in found.items() if any(values)}


def _told_apart(waiting: float, late: float) -> dict[str, float]:
    """Returns a rank's waiting for messages by what was late. late: seconds in which another rank was."""
    return {"waiting_rank": min(late, waiting), "waiting_link": waiting - min(late, waiting)}


def _parameter_bytes(cost: Cost, parameters: str, num_micro_batches: int) -> int:
    """Returns the bytes that each NIC sends (and receives) for gradients and parameters, if collectives run node by
    node.

    Replicated: one all-reduce of gradients. Sharded: layers are gathered for every forward and every backward,
    the rest for every forward, and gradients are reduced and scattered once. Sums are float32 or wider.
    """
    model = cost.model
    wide = max(4, model.element_bytes) * float(model.total_params)
    if parameters == "replicated":
        return 2 * nic_bytes(cost, wide)
    layers = model.element_bytes * float(model.num_layers * model.layer_params)
    rest = model.element_bytes * float(model.total_params) - layers
    return nic_bytes(cost, wide) + num_micro_batches * nic_bytes(cost, 2 * layers + rest)


def node_nic_bytes(reports: Sequence[ReadsNics], cluster: Cluster) -> tuple[list[int], list[int]]:
    """Returns the bytes (sent, received) of every NIC of every node, as the first rank of each node read them.

    Raises:
        ValueError: a node has another number of NICs than the cluster.
    """
    tx, rx = [], []
    for node, report in enumerate(reports[:: cluster.gpus_per_node]):
        if len(report.nic) != cluster.nics_per_node:
            names = ", ".join(report.nic) or "none"
            raise ValueError(
                f"cluster.nics_per_node is {cluster.nics_per_node}; node {node} has {len(report.nic)}: {names}"
            )
        tx += [sent for sent, _ in report.nic.values()]
        rx += [received for _, received in report.nic.values()]
    return tx, rx


def nic_series(reports: Sequence[ReadsNics], gpus_per_node: int) -> dict[str, Any]:
    """Joins the curves of all nodes' NICs, as zbench.interfaces.result.StepResult has them."""
    told = [report.nic_series for report in reports[::gpus_per_node]]
    if not told[0]:
        return {}
    length = min(len(nic) for one in told for nic in one["tx"])
    ways = {way: [nic[:length] for one in told for nic in one[way]] for way in ("tx", "rx")}
    return {"interval": told[0]["interval"], **ways}


def lateness(paced: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns of paced devices the most that the work of any rank was late, and how late a rank's messages were on
    average. paced: of each rank, () where none is."""
    if not paced:
        return {}
    return {"overrun": max(one["overrun"] for one in paced), "late": fmean(one["late"] for one in paced)}
