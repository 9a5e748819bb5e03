"""Tells what the seconds of FlexSP's published steps go to, operation by operation: played as whole steps, and by
FlexSP's own constants for the same plans. Pure: no torch.

Published are the seconds of three steps, and no operation's. What is missing of a step can so be looked for in two
places: in the operations that are played, and in those that FlexSP's constants have for the same micro-batches.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from zbench.anchors.anchor import GetCluster, published_rows
from zbench.anchors.flexsp_constants import operations_by_constants
from zbench.anchors.steps import BATCHES, GetWorkload, batch, flexsp_systems, published_cost
from zbench.simulated.executor import Simulated
from zbench.systems.flexsp.planner import PaddedLengths

AHEAD = 1  # layers whose parameters are gathered ahead, as whole steps have it by default
# What parts of zbench.interfaces.result.SECONDS_FOR are called beside FlexSP's constants; others have their own names.
_PARTS = {
    "repacking": "all-to-alls",
    "waiting_link": "all-to-alls",
    "waiting_rank": "other GPUs",
    "end": "other GPUs",
    "waiting_parameters": "collectives",
    "waiting_gradients": "collectives",
}


@dataclass(frozen=True, slots=True)
class StepOperations:
    """The seconds of a step by what they go to, means over GPUs and batches. published: the step's. micro_batches: of
    a batch.

    played, constants: by what for, of the whole step as it is simulated, which sum to its seconds, and by FlexSP's own
    constants. Waiting for a link is counted as all-to-alls, like their copies. Waiting for parameters and gradients is
    collectives as long as the GPU waits that waits least, and beyond that waiting for other GPUs: gathers are where
    fast groups meet slow ones.
    """

    system: str
    published: float
    micro_batches: float
    played: Mapping[str, float]
    constants: Mapping[str, float]

    def as_row(self) -> dict[str, object]:
        """Returns the step as an object of --json."""
        predicted, by_constants = sum(self.played.values()), sum(self.constants.values())
        return asdict(self) | {"predicted": predicted, "predicted_by_constants": by_constants}


def step_operations(
    get_cluster: GetCluster,
    get_workload: GetWorkload,
    window: int | str = AHEAD,
    batches: int = BATCHES,
    as_published: bool = False,
) -> list[StepOperations]:
    """Returns FlexSP's published steps by operation, in the published order. window: layers whose parameters are
    gathered ahead, or a name (zbench.describe.overlap). as_published: as zbench.anchors.steps has it.

    Raises:
        ValueError: window cannot be.
    """
    cost = published_cost(get_cluster)
    executor, systems, wikipedia = (
        Simulated(cost, window),
        flexsp_systems(cost, as_published),
        get_workload("wikipedia"),
    )
    drawn = [batch(wikipedia, step) for step in range(batches)]
    found = []
    for row in published_rows("steps"):
        system, counts = systems[row["system"]], []
        played: dict[str, float] = defaultdict(float)
        constants: dict[str, float] = defaultdict(float)
        for one in drawn:
            lengths = PaddedLengths.of(one, system.padding, cost).lengths
            parts = system.micro_batches(lengths)
            counts.append(len(parts))
            executor.start()
            for name, seconds in played_operations(executor.step(one, system.plan(one)).seconds_for).items():
                played[name] += seconds / batches
            for name, value in operations_by_constants(parts, lengths, system.objective.degree).items():
                constants[name] += value / batches
        told = float(row["seconds"]), float(np.mean(counts)), dict(played), dict(constants)
        found.append(StepOperations(row["system"], *told))
    return found


def played_operations(seconds_for: Mapping[str, Sequence[float]]) -> Mapping[str, float]:
    """Returns a step's seconds by what for, means over GPUs, as StepOperations has them. seconds_for: of
    zbench.interfaces.result.StepResult."""
    found: dict[str, float] = defaultdict(float)
    met = np.zeros(1)
    for name, seconds in seconds_for.items():
        part = _PARTS.get(name, name)
        found[part] += float(np.mean(seconds))
        met = met + seconds if part == "collectives" else met
    found["other GPUs"] += float(met.mean() - met.min())
    found["collectives"] = float(met.min())
    return dict(found)
