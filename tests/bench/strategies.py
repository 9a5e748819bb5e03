"""Choices of sharding and recomputation by both clocks: seconds of a step and the fullest GPU's memory.

python -m tests.bench.strategies [tokens_per_gpu ...]   # a800_4x8, llama_7b, longtail_128k; about a minute
python -m tests.bench.strategies bytescale,zero1,none,16384 ... [KEY=VALUE ...]   # rows by themselves, of keys set so

All of it is simulated. Plans are made for each choice, so that a system's micro-batches follow the memory that it has.
`older` is planners' estimate, `step` executor=simulated; in brackets over older. `no links`: with links a
thousand times as fast, over older with the same.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import product

from hydra import compose, initialize_config_dir

from tests.bench.steps import faster
from zbench import CONF
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.ranks_of_gpus import of_gpu
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate

SYSTEMS = ("zeppelin", "ring", "local_packing")
CHOICES = (
    *product(("none", "zero1", "zero2", "zero3"), ("none",)),
    *product(("zero1", "zero3"), ("selective", "full")),
    ("zero2", "selective"),
)
TOKENS = (4096, 16384)


def case(
    system: str, sharding: str, recompute: str, tokens: int, keys: Sequence[str]
) -> tuple[Batch, tuple[Plan, ...], Cost]:
    """Returns a batch, a system's plans of it, and the cost model of a choice. keys: KEY=VALUE of the configuration."""
    chosen = [f"system={system}", f"sharding={sharding}", f"recompute={recompute}", f"tokens_per_gpu={tokens}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["cluster=a800_4x8", "model=llama_7b", "workload=longtail_128k", *chosen, *keys])
    parts = Parts.of(config, Settings.of(config))
    batch = parts.batch(0)
    return batch, tuple(make_system(config, parts.cost).plan(batch)), parts.cost


def row(system: str, sharding: str, recompute: str, tokens: int, keys: Sequence[str] = ()) -> str:
    """Returns a row of the table. keys: of the configuration besides, KEY=VALUE."""
    batch, plans, cost = case(system, sharding, recompute, tokens, keys)
    fast = make_cost(faster(cost.gpus.cluster), cost.gpus.model)
    older, step = StepEstimate(cost).seconds(plans), Simulated(cost).step(batch, plans)
    alone, free = StepEstimate(fast).seconds(plans), Simulated(fast).step(batch, plans).seconds
    by = [(min(one) / 2**30, max(one) / 2**30) for one in (of_gpu(peak_bytes(plans, cost), cost.tp), step.peak_bytes)]
    return (
        f"| {system} | {sharding} | {recompute} | {len(plans)} | {older:.3f} | {step.seconds:.3f} "
        f"({step.seconds / older - 1:+.1%}) | {free / alone - 1:+.2%} | {by[0][0]:.1f} to {by[0][1]:.1f} | "
        f"{by[1][0]:.1f} to {by[1][1]:.1f} ({by[1][1] / by[0][1] - 1:+.1%}) |"
    )


def rows(counts: list[int]) -> Iterator[str]:
    """Yields the rows of all choices, for so many tokens a GPU each."""
    for tokens in counts:
        for system in SYSTEMS:
            for sharding, recompute in CHOICES:
                yield row(system, sharding, recompute, tokens)


def named(words: list[str]) -> Iterator[str]:
    """Yields the rows of words SYSTEM,SHARDING,RECOMPUTE,TOKENS, all with the words KEY=VALUE set."""
    keys = [one for one in words if "=" in one]
    for one in words:
        if one not in keys:
            system, sharding, recompute, tokens = one.split(",")
            yield row(system, sharding, recompute, int(tokens), keys)


if __name__ == "__main__":
    print(
        "| system | sharding | recompute | micro-batches | older, s | step, s | no links | GiB, formula | GiB, step |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    words = sys.argv[1:]
    by_name = any("," in one for one in words)
    for line in named(words) if by_name else rows([int(one) for one in words] or list(TOKENS)):
        print(line, flush=True)
