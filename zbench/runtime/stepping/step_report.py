"""The report of a rank on a step that it has run: seconds by what they went to, bytes by queue, memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from zbench.runtime.handlers.messages import StepMessages
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.job.step_job import Sizes, StepReport
from zbench.runtime.processes.host import measured_peak_bytes
from zbench.runtime.stepping.instruments import NodeMeasurements
from zbench.runtime.transport.transport import Traffic
from zbench.step.operations import QUEUES


@dataclass(frozen=True)
class Ran:
    """When a step began and how long it took. switching: of its seconds, those in which parameters and optimizer state
    moved, 0 where they did not; moved: their bytes, by what for, SWITCH or HANDED_OVER. measured: by a rank's
    instruments."""

    began: float
    seconds: float
    switching: float = 0.0
    moved: Mapping[str, Traffic] = field(default_factory=dict)
    measured: NodeMeasurements = field(default_factory=NodeMeasurements)

    def moved_bytes(self) -> tuple[dict[str, Sizes], dict[str, Sizes]]:
        """Returns the bytes (sent, received) of what moved, inside the node and between nodes."""
        inside = {name: (one.inside_tx, one.inside_rx) for name, one in self.moved.items()}
        across = {name: (one.across_tx, one.across_rx) for name, one in self.moved.items()}
        return _some(inside), _some(across)


def step_report(
    messages: StepMessages,
    device: torch.device,
    capacity_bytes: int,
    ran: Ran,
    compiling: float,
    noted: PreparedStep | None,
) -> StepReport:
    """Returns the report on what was run, without what the step itself came to. noted: the step, where its notes are
    asked for."""
    times, spent = messages.times, messages.times.seconds
    rest = ran.seconds - sum(spent.values())  # of two clocks' readings
    inside, across = ran.moved_bytes()
    return StepReport(
        None,
        ran.seconds,
        spent | {"interpreter": max(0.0, spent.get("interpreter", 0.0) + rest)},
        min(times.under_way, ran.seconds),
        _bytes(messages, "inside") | inside,
        _bytes(messages, "across") | across,
        measured_peak_bytes(device),
        capacity_bytes,
        compiling,
        began=ran.began,
        notes=None if noted is None else times.notes.told(_templates(noted), ran.seconds),
        nic=ran.measured.nic,
        nic_series=ran.measured.nic_series,
        paced=ran.measured.paced,
        switching=ran.switching,
        named=times.named,
    )


def _some(sizes: Mapping[str, Sizes]) -> dict[str, Sizes]:
    return {name: pair for name, pair in sizes.items() if any(pair)}


def _bytes(messages: StepMessages, way: str) -> dict[str, Sizes]:
    """Returns bytes (sent, received) by queue, those "inside" the node or "across" nodes."""
    found: dict[str, Sizes] = {}
    for name, end in zip(QUEUES, messages.ends, strict=True):
        pair = getattr(end.traffic, f"{way}_tx"), getattr(end.traffic, f"{way}_rx")
        found |= {name: pair} if any(pair) else {}
    return found


def _templates(prepared: PreparedStep) -> dict[int, int]:
    """Returns the numbers of a step's templates by the id of what they are as a program; of templates that are one
    program any is the same."""
    return {id(program): number for (number, _), program in prepared.programs.items()}
