"""Compiles the numerical kernels once, so that no run or measurement pays for it.

`python -m zbench.warm` after installing; a run does the same before its first step, which takes
milliseconds when the compiled kernels are on disk (numba's cache, beside the sources or in the
user's cache folder) and some seconds when they are not.
"""

import dataclasses
from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.dealt import undealt
from zbench.interfaces.protocols import System
from zbench.plans.plan import Plan
from zbench.proof.verify import verify_step
from zbench.run.checks.contract import plans_of
from zbench.runtime.program.compiler import Compiler
from zbench.runtime.program.phases import with_message_batches

NODES = 4  # of the small cluster: as few as can share heads in groups of nodes
SMALL = Batch(np.array([1, 7, 300, 2000, 40_000, 60_000], np.int64), seed=0, step=0)


def warm(system: System, trains: bool = False) -> None:
    """Has `system` plan a small batch for a small cluster of its kind, verifies the plan and forgets it.

    trains: compiles what ranks use of plans, too, so that they do not all compile the same at once.
    Only for systems that are dataclasses with a `cost`, as all of zbench's are; others have nothing of
    zbench's to compile before their first plan.
    """
    system = undealt(system)
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
    """Compiles one rank's programs, as zbench.runtime.training.trainer makes them, for no kernel and no memory."""
    pair = Compiler(plan, 0, cost, index=lambda rows: rows, cut=lambda *_: None).compile()
    with_message_batches(plan, cost, pair)
