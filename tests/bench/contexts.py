"""The longest sequence that a job has room for: docs/memory.md's table of contexts.

python -m tests.bench.contexts [MODEL [CLUSTER [GPUS ...]]] [system=NAME]   # llama3_8b h100_4x8 1 2 4 8 16 32: minutes

One sequence on all GPUs, ZeRO-3, by default of a ring that carries keys and values on in the backward; simulated.
Steps are built, proven and accounted for (zbench.simulator.steps.account) until a length that fits and one that does
not are 1,024 tokens a GPU, or a hundredth, apart.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.own_plans import plans_of_layouts

OPTIMIZER = "chunks memory.offload=optimizer"
CHOICES = (
    ("none", "none"), ("none", "loss"), ("selective", "loss"), ("full", "none"), ("full", "loss"),
    ("chunked", "chunks"), ("full", "chunks"), ("full", "offload"),
    ("none", "zero_offload"), ("full", "zero_offload"), ("full", OPTIMIZER), ("full", "alst"),
)  # fmt: skip
GPUS, SYSTEM = (1, 2, 4, 8, 16, 32), "system=ring"
MUCH = 2**62
ROUND, FIRST = 1024, 16  # tokens a GPU, of which lengths are multiples; how many of them are tried first


@dataclass(slots=True)
class Contexts:
    """One sequence on all GPUs of an executor, and what the fullest GPU has with it."""

    executor: Simulated
    system: System
    found: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(words: str, gpus: int) -> "Contexts":
        """Returns those of a configuration's words on so many GPUs."""
        nodes = [f"cluster.num_nodes={max(gpus // 8, 1)}", f"cluster.gpus_per_node={min(gpus, 8)}"]
        nics = [f"cluster.nics_per_node={min(gpus, 8)}"]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", [*words.split(), *nodes, *nics])
        parts = Parts.of(config, Settings.of(config))
        assert isinstance(parts.executor, Simulated)
        return Contexts(parts.executor, make_system(config, parts.cost))

    def held(self, tokens: int) -> int:
        """Returns the bytes of the fullest GPU with one sequence; MUCH where host memory has no room."""
        if tokens not in self.found:
            self.found[tokens] = self._account(tokens)
        return self.found[tokens]

    def _account(self, tokens: int) -> int:
        batch, cost = Batch(np.array([tokens]), 0, 0), self.executor.cost
        plans = self.system.plan(batch)
        try:
            step = self.executor.built(batch, plans)
        except ValueError as error:
            if not str(error).startswith("cluster.host_memory is "):
                raise
            return MUCH
        memory = step_memory(StepParts(step, plans_of_layouts(plans), cost.gpus))
        return int(memory.peak[: step.num_gpus].max())

    def longest(self) -> tuple[int, bool]:
        """Returns the most tokens for which there is room, to a hundredth and to ROUND tokens a GPU, 0 if not even
        those, and whether it is host memory that has no room for more."""
        cluster = self.executor.cost.gpus.cluster
        one, room = cluster.num_ranks * ROUND, int(cluster.device.memory_bytes)
        least, most = 0, FIRST
        while self.held(most * one) <= room:
            least, most = most, 2 * most
        while most - least > max(1, least // 100):
            below, above = (self.held(max(count, 1) * one) for count in (least, most))
            line = (
                least + int((most - least) * (room - below) / (above - below))
                if below < room and above < MUCH
                else (least + most) // 2
            )
            middle = min(max(line, least + 1), most - 1)
            if self.held(middle * one) > room:
                most = middle
                continue
            least = middle
            after = least + max(1, least // 100)  # where bytes are a line, nothing is left to find
            if after < most and self.held(after * one) > room:
                most = after
        return least * one, self.held(most * one) == MUCH


def rows(job: str, counts: Sequence[int]) -> Iterator[str]:
    """Yields the rows of all choices."""
    for recompute, memory in CHOICES:
        words = f"{job} recompute={recompute} memory={memory}"
        found = [Contexts.of(words, gpus).longest() for gpus in counts]
        yield f"| {recompute} | {memory} | {' | '.join(map(thousands, found))} |"


def thousands(found: tuple[int, bool]) -> str:
    """Returns tokens in words: 15K are 15 * 1,024; with "host" where host memory has no room for more."""
    tokens, host = found
    return f"{tokens // 1024:,}K{' host' if host else ''}" if tokens else "-"


def main(words: list[str]) -> None:
    """Prints the table."""
    system = next((one for one in words if one.startswith("system=")), SYSTEM)
    names = [one for one in words if not one.startswith("system=")]
    model, cluster = [*names[:2], *("llama3_8b", "h100_4x8")[len(names) :]]
    counts = [int(one) for one in names[2:]] or list(GPUS)
    print(f"{model} on {cluster}, {system}:\n\n| recompute | memory | {' | '.join(f'{one} GPUs' for one in counts)} |")
    print("|---" * (2 + len(counts)) + "|")
    for row in rows(f"model={model} cluster={cluster} {system}", counts):
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
