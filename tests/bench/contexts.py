"""The longest sequence that a job has room for: docs/memory/contexts.md's table of contexts.

python -m tests.bench.contexts [MODEL [CLUSTER [GPUS ...]]] [system=NAME]   # llama3_8b h100_4x8 1 2 4 8 16 32: minutes

One sequence on all GPUs, ZeRO-3, by default of a ring that carries keys and values on in the backward; simulated.
Steps are built, proven and accounted for (zbench.simulated.longest) until a length that fits and one that does not are
1,024 tokens a GPU, or a hundredth, apart.
"""

import sys
from collections.abc import Iterator, Sequence

from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.describe.units import with_noun
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.executor import Simulated
from zbench.simulated.longest import Longest, LongestSequence

OPTIMIZER = "chunks memory.offload=optimizer"
CHOICES = (
    ("none", "none"), ("none", "loss"), ("selective", "loss"), ("full", "none"), ("full", "loss"),
    ("chunked", "chunks"), ("full", "chunks"), ("full", "offload"),
    ("none", "zero_offload"), ("full", "zero_offload"), ("full", OPTIMIZER), ("full", "alst"),
    ("full", "alst memory.parameter_layers=all"),
)  # fmt: skip
GPUS, SYSTEM = (1, 2, 4, 8, 16, 32), "system=ring"


def longest(words: str, gpus: int) -> Longest:
    """Returns the longest sequence of a configuration's words on so many GPUs, 8 a node."""
    nodes = [f"cluster.num_nodes={max(gpus // 8, 1)}", f"cluster.gpus_per_node={min(gpus, 8)}"]
    nics = [f"cluster.nics_per_node={min(gpus, 8)}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*words.split(), *nodes, *nics])
    parts = Parts.of(config, Settings.of(config))
    assert isinstance(parts.executor, Simulated)
    return LongestSequence(parts.executor, make_system(config, parts.cost)).longest()


def rows(job: str, counts: Sequence[int]) -> Iterator[str]:
    """Yields the rows of all choices."""
    for recompute, memory in CHOICES:
        words = f"{job} recompute={recompute} memory={memory}"
        found = [longest(words, gpus) for gpus in counts]
        yield f"| {recompute} | {memory} | {' | '.join(map(thousands, found))} |"


def thousands(found: Longest) -> str:
    """Returns tokens in words: 15K are 15 * 1,024; with "host" where host memory has no room for more."""
    return f"{found.tokens // 1024:,}K{' host' if found.at_host else ''}" if found.tokens else "-"


def main(words: list[str]) -> None:
    """Prints the table."""
    system = next((one for one in words if one.startswith("system=")), SYSTEM)
    names = [one for one in words if not one.startswith("system=")]
    model, cluster = [*names[:2], *("llama3_8b", "h100_4x8")[len(names) :]]
    counts = [int(one) for one in names[2:]] or list(GPUS)
    gpus = " | ".join(with_noun(one, "GPU") for one in counts)
    print(f"{model} on {cluster}, {system}:\n\n| recompute | memory | {gpus} |")
    print("|---" * (2 + len(counts)) + "|")
    for row in rows(f"model={model} cluster={cluster} {system}", counts):
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
