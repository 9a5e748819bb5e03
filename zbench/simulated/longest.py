"""The longest sequence for which a job's GPUs and hosts have room, by the memory accounts of its whole steps."""

from dataclasses import dataclass, field, replace

import numpy as np

from zbench.cost.job import cost_like
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.simulated.executor import Simulated
from zbench.simulated.known_steps import KnownSteps
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.own_plans import plans_of_layouts

ROUND, FIRST = 1024, 16  # tokens a GPU, of which lengths are multiples; how many of them are tried first
_ENDLESS = 1e30  # bytes of a host, so that steps are built that are then found to be too much


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest sequence found. tokens: 0 where not even ROUND tokens a GPU have room; at_host: a host, and not a
    GPU, has no room for more."""

    tokens: int
    at_host: bool


@dataclass(slots=True)
class LongestSequence:
    """One sequence on all GPUs of an executor, and how full it makes the fullest of them and of their hosts.

    executor: of whole steps in one world. system: plans the sequence. found: by tokens, bytes over room of the fullest
    GPU and of the fullest host.
    """

    executor: Simulated
    system: System
    found: dict[int, tuple[float, float]] = field(default_factory=dict)
    _endless: Simulated = field(init=False, repr=False)

    def __post_init__(self) -> None:
        cost = self.executor.cost
        cluster = replace(cost.gpus.cluster, host_memory=_ENDLESS)
        free = cost_like(cost, cluster, cost.gpus.model, cost.pipelines)
        self._endless = replace(self.executor, cost=free, known=KnownSteps())

    def filled(self, tokens: int) -> tuple[float, float]:
        """Returns bytes over room of the fullest GPU and of the fullest host, 0 where hosts have none."""
        if tokens not in self.found:
            self.found[tokens] = self._account(tokens)
        return self.found[tokens]

    def _account(self, tokens: int) -> tuple[float, float]:
        batch, cluster = Batch(np.array([tokens]), 0, 0), self.executor.cost.gpus.cluster
        plans = self.system.plan(batch)
        step = self._endless.built(batch, plans)
        memory = step_memory(StepParts(step, plans_of_layouts(plans), self._endless.cost.gpus))
        gpu, node = memory.peak[: step.num_gpus].max(), memory.of_nodes(cluster).max(initial=0)
        return float(gpu / cluster.device.memory_bytes), float(node / (cluster.host_memory or np.inf))

    def longest(self, first: int = FIRST, share: int = 100) -> Longest:
        """Looks for the longest sequence: lengths that fit and that do not come together along the line between them,
        until they are one ROUND a GPU, or one `share`-th, apart.

        first: in ROUND tokens a GPU, the length that is tried first; near what is found, it spares accounts.
        """
        one = self.executor.cost.gpus.cluster.num_ranks * ROUND
        least, most = 0, max(first, 1)
        while max(self.filled(most * one)) <= 1:
            least, most = most, 2 * most
        while most - least > max(1, least // share):
            below, above = (max(self.filled(max(count, 1) * one)) for count in (least, most))
            line = least + int((most - least) * (1 - below) / (above - below)) if below < 1 else 0
            middle = min(max(line, least + 1), most - 1)
            if max(self.filled(middle * one)) > 1:
                most = middle
                continue
            least = middle
            after = least + max(1, least // share)  # where bytes are a line, nothing is left to find
            if after < most and max(self.filled(after * one)) > 1:
                most = after
        gpu, _ = self.filled(most * one)
        return Longest(least * one, gpu <= 1)
