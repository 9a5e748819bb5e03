"""What a simulated step really takes of memory, beside zbench.run.checks.price's estimate, which is to be a floor.

python tests/bench/sizes.py        # each system and size in a process of its own; about three minutes
"""

import resource
import subprocess
import sys

from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.proof.verify import verify_step
from zbench.run.checks.price import priced
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulator.estimate.step import StepEstimate

SHORT = ("workload=fixed", "workload.length=128", "tokens_per_gpu=1048576")
ESTIMATE, WHOLE = "estimate", "executor=simulated"  # planners' estimate, which needs nothing beside the plans
JOBS = [
    *(("ring", ESTIMATE, f"cluster.num_nodes={nodes}") for nodes in (16, 32, 64)),
    *(("allgather", ESTIMATE, f"cluster.num_nodes={nodes}") for nodes in (32, 64)),
    *((system, ESTIMATE, f"cluster.num_nodes={nodes}") for system in ("fcp", "local_packing") for nodes in (256, 1024)),
    *((system, ESTIMATE, *SHORT) for system in ("allgather", "ulysses", "zeppelin")),
    *((system, WHOLE, f"cluster.num_nodes={nodes}") for system in ("ring", "allgather") for nodes in (8, 16, 32)),
    ("ring", WHOLE, "cluster.num_nodes=8", "parallel.tensor_parallel=2"),
    ("ring", WHOLE, "cluster.num_nodes=8", "model=llama_7b_pp4"),
]


def taken(system: str, by: str, *overrides: str) -> None:
    """One step planned, proven and played, in this process."""
    estimated = by == ESTIMATE
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"system={system}", "tracker=none", *([] if estimated else [by]), *overrides])
    parts = Parts.of(config, Settings.of(config))
    executor = parts.executor
    made = make_system(config, parts.cost)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    price = priced(made, parts.workload, parts.tokens, parts.cluster.num_ranks, executor)
    batch = parts.batch(0)
    plans = made.plan(batch)
    verify_step(batch, plans)
    if estimated:
        StepEstimate(parts.cost).seconds(plans)
    else:
        executor.step(batch, plans)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(
        f"{system} {by} {' '.join(overrides)}: {len(batch.lengths):,} sequences on {price.ranks:,} ranks; estimated "
        f"{price.memory_bytes / 1e6:,.1f} MB, taken {used / 1e6:,.1f} MB",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        taken(*sys.argv[1:])
    for job in () if sys.argv[1:] else JOBS:
        subprocess.run([sys.executable, __file__, *job], check=True)
