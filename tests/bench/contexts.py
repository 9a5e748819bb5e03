"""The longest sequence that a job has room for: docs/memory.md's table of contexts.

python -m tests.bench.contexts [MODEL [CLUSTER [GPUS ...]]]   # llama3_8b h100_4x8 1 2 4 8 16 32: minutes of a core

One sequence on all GPUs of a ring that carries keys and values on in the backward, ZeRO-3; simulated. Steps are built,
proven and accounted for (zbench.simulator.steps.account) until a length that fits and one that does not are 1,024
tokens a GPU, or a hundredth, apart. In brackets without optimizer state on GPUs: its bytes are taken off, and
nothing is played of where they are.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.describe.batch import Batch
from zbench.run.parts import Parts, Settings
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.systems.ring import Ring

CHOICES = (
    ("none", "none"), ("none", "loss"), ("selective", "loss"), ("full", "none"), ("full", "loss"),
    ("chunked", "chunks"), ("full", "chunks"), ("full", "offload"),
)  # fmt: skip
GPUS = (1, 2, 4, 8, 16, 32)
MUCH = 2**62
ROUND, FIRST = 1024, 16  # tokens a GPU, of which lengths are multiples; how many of them are tried first


def executor_of(model: str, cluster: str, gpus: int, recompute: str, memory: str) -> Simulated:
    """Returns the executor of a choice on so many GPUs."""
    nodes = [f"cluster.num_nodes={max(gpus // 8, 1)}", f"cluster.gpus_per_node={min(gpus, 8)}"]
    nics = [f"cluster.nics_per_node={min(gpus, 8)}"]
    chosen = [f"model={model}", f"cluster={cluster}", f"recompute={recompute}", f"memory={memory}", "system=ring"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*chosen, *nodes, *nics])
    parts = Parts.of(config, Settings.of(config))
    assert isinstance(parts.executor, Simulated)
    return parts.executor


@lru_cache(maxsize=256)
def held(executor: Simulated, tokens: int) -> tuple[int, int]:
    """Returns the bytes of the fullest GPU with one sequence, and those of optimizer state among them; MUCH where host
    memory has no room."""
    batch, cost = Batch(np.array([tokens]), 0, 0), executor.cost
    plans = tuple(Ring(cost).plan(batch))
    try:
        step = executor.built(batch, plans)
    except ValueError as error:
        if not str(error).startswith("cluster.host_memory is "):
            raise
        return MUCH, 0
    memory = step_memory(StepParts(step, plans_of_layouts(plans), cost.gpus))
    at = int(np.argmax(memory.peak[: step.num_gpus]))
    state = sum(int(one[at]) for name, one in memory.held.items() if name.startswith("s"))
    return int(memory.peak[at]), state


def longest(executor: Simulated) -> tuple[int, int]:
    """Returns the tokens of the longest sequence, as it is and without optimizer state on GPUs; 0: not even one."""
    gpus, room = executor.cost.gpus.cluster.num_ranks, int(executor.cost.gpus.cluster.device.memory_bytes)
    _, state = held(executor, gpus * ROUND)
    return fitting(executor, gpus, room), fitting(executor, gpus, room + state)


def fitting(executor: Simulated, gpus: int, room: int) -> int:
    """Returns the most tokens that need no more than `room` bytes, to a hundredth and to ROUND tokens a GPU."""
    least, most = 0, FIRST
    while held(executor, most * gpus * ROUND)[0] <= room:
        least, most = most, 2 * most
    while most - least > max(1, least // 100):
        below, above = (held(executor, max(one, 1) * gpus * ROUND)[0] for one in (least, most))
        line = (
            least + int((most - least) * (room - below) / (above - below))
            if below < room and above < MUCH
            else (least + most) // 2
        )
        middle = min(max(line, least + 1), most - 1)
        if held(executor, middle * gpus * ROUND)[0] > room:
            most = middle
            continue
        least = middle
        after = least + max(1, least // 100)  # where bytes are a line, nothing is left to find
        if after < most and held(executor, after * gpus * ROUND)[0] > room:
            most = after
    return least * gpus * ROUND


def rows(model: str, cluster: str, counts: Sequence[int]) -> Iterator[str]:
    """Yields the rows of all choices."""
    for recompute, memory in CHOICES:
        cells = []
        for gpus in counts:
            with_state, without = longest(executor_of(model, cluster, gpus, recompute, memory))
            cells.append(f"{thousands(with_state)} ({thousands(without)})")
        yield f"| {model} | {cluster} | {recompute} | {memory} | {' | '.join(cells)} |"


def thousands(tokens: int) -> str:
    """Returns tokens in words: 15K are 15 * 1,024."""
    return f"{tokens // 1024:,}K" if tokens else "-"


def main(words: list[str]) -> None:
    """Prints the table."""
    model, cluster = (*words[:2], "llama3_8b", "h100_4x8")[:2] if len(words) != 1 else (words[0], "h100_4x8")
    counts = [int(one) for one in words[2:]] or list(GPUS)
    print(f"| model | cluster | recompute | memory | {' | '.join(f'{one} GPUs' for one in counts)} |")
    print("|---" * (4 + len(counts)) + "|")
    for row in rows(model, cluster, counts):
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
