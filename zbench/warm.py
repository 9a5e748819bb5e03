"""Compiles the numerical kernels once, so that no run or measurement pays for it.

`python -m zbench.warm` after installing; a run does the same before its first step, which takes
milliseconds when the compiled kernels are on disk (numba's cache, beside the sources or in the
user's cache folder) and some seconds when they are not.
"""

import sys

from zbench.command import Parser, loading, ran

with loading(__name__):
    import dataclasses
    from dataclasses import replace

    import numpy as np

    from zbench import CONF
    from zbench.batch import Batch
    from zbench.contract import plans_of
    from zbench.correctness.choices import choices
    from zbench.cost import Cost
    from zbench.plan import Plan
    from zbench.protocols import System
    from zbench.runtime.compiler import Compiler
    from zbench.runtime.phases import batched
    from zbench.verify import verify_step

NODES = 4  # of the small cluster: as few as can share heads in groups of nodes
SMALL = Batch(np.array([1, 7, 300, 2000, 40_000, 60_000], np.int64), seed=0, step=0)


def warm(system: System, trains: bool = False) -> None:
    """Has `system` plan a small batch for a small cluster of its kind, verifies the plan and forgets it.

    trains: compiles what ranks use of plans, too, so that they do not all compile the same at once.
    Only for systems that are dataclasses with a `cost`, as all of zbench's are; others have nothing of
    zbench's to compile before their first plan.
    """
    if not dataclasses.is_dataclass(system) or not isinstance(getattr(system, "cost", None), Cost):
        return
    cost: Cost = system.cost
    few = min(cost.cluster.num_nodes, NODES)
    try:
        small = dataclasses.replace(system, cost=replace(cost, cluster=replace(cost.cluster, num_nodes=few)))
        plans = plans_of(small, SMALL, small.cost)
    except ValueError:  # a setting that the small cluster cannot have, too little memory on it, or the run tells it
        return
    verify_step(SMALL, plans, small.cost, memory=False)
    if trains:
        for plan in plans:
            _compile(plan, small.cost)


def _compile(plan: Plan, cost: Cost) -> None:
    """One rank's programs, as zbench.runtime.trainer makes them, for no kernel and no memory."""
    pair = Compiler(plan, 0, cost, index=lambda rows: rows, cut=lambda *_: None).compile()
    batched(plan, cost, pair)


def main() -> int:
    return ran(_main, "what was compiled is kept")


def _main() -> int:
    """Warms every system of the project on the default cluster and model."""
    Parser(prog="python -m zbench.warm", description="Compiles the numerical kernels once.").parse_args()
    from hydra import compose, initialize_config_dir  # an edge, like the command line

    from zbench.parts import Parts, Settings, make_system

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["tracker=none"])
        parts = Parts.of(config, Settings.of(config))
        for name in choices("system"):
            print(f"compiling kernels for {name}", file=sys.stderr)
            system = make_system(compose("config", [f"system={name}"]), parts.cost)
            warm(system, trains=True)
            parts.executor.step(SMALL, system.plan(SMALL))
    return 0


if __name__ == "__main__":
    sys.exit(main())
