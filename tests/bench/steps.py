"""Whole steps beside planners' estimate of them: seconds of the step, and what each takes to tell.

python -m tests.bench.steps [system ...]       # a800_4x8, llama_7b, three workloads, ZeRO-3 and ZeRO-1; about a minute
                                               # (cluster.num_nodes=32: of another configuration)
python -m tests.bench.steps times [system ...] # what telling a step takes, part by part: five workloads, ZeRO-3
python -m tests.bench.steps 1024               # as many GPUs (4096 too), tensor parallelism 8, ZeRO-3, a 70B model

Both are simulated. `older` is planners' estimate; in brackets: over it. `no links`: with links a thousand times as
fast, over older with the same. `none` (no collectives), `no gathers`, `no reductions`: the step without these
operations, so that what each adds, alone and beside the other and attention, is told. Attention's bytes through every
NIC are asserted to be the plans'.

`times` are means over batches that were not seen before, milliseconds of a core; planners' estimate and its proof of
each batch follow its whole step, so that what else the machine does meanwhile is in both.
"""

import gc
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import process_time
from typing import TypeVar

import numpy as np
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.console.heap import keep_freed_memory
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import LONGEST_WAITING, Cluster
from zbench.plans.plan import Plan
from zbench.proof.verify import verify_step
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulator.attention import playable
from zbench.simulator.estimate.carried import carried_bytes
from zbench.simulator.estimate.step import StepEstimate
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import play_step
from zbench.simulator.steps.program import StepParts
from zbench.step.operations import GATHER, REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

SYSTEMS, WORKLOADS = ("zeppelin", "ring", "flexsp"), ("longtail_128k", "github", "prolong64k")
SAID = [one for one in sys.argv[1:] if "=" not in one]
OVERRIDES = [one for one in sys.argv[1:] if "=" in one]
TIMED, BATCHES = (*WORKLOADS, "byted_2m", "pystdlib"), 6
T = TypeVar("T")


def timed(work: Callable[[], T], again: int = 3) -> tuple[T, float]:
    """The result, and the milliseconds of a core that the quickest run took, after one that compiles."""
    found, best = work(), float("inf")
    for _ in range(again):
        begin = process_time()
        found = work()
        best = min(best, process_time() - begin)
    return found, 1e3 * best


def cases(system: str, workload: str, zero: str, count: int) -> Iterator[tuple[Batch, tuple[Plan, ...], Cost]]:
    overrides = ["cluster=a800_4x8", "model=llama_7b", f"sharding=zero{zero}", f"workload={workload}", *OVERRIDES]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*overrides, f"system={system}", "tracker=none"])
    parts = Parts.of(config, Settings.of(config))
    planner = make_system(config, parts.cost)
    for step in range(count):
        batch = parts.batch(step)
        yield batch, tuple(planner.plan(batch)), parts.cost


def case(system: str, workload: str, zero: str) -> tuple[Batch, tuple[Plan, ...], Cost]:
    return next(cases(system, workload, zero, 1))


def faster(cluster: Cluster) -> Cluster:
    return replace(cluster, nic_bandwidth=1e3 * cluster.nic_bandwidth, nvlink_bandwidth=1e3 * cluster.nvlink_bandwidth)


def without(step: Step, kinds: tuple[int, ...]) -> Step:
    """A step, no more to be proven, without some kinds of operations."""
    templates = []
    for one in step.templates:
        kept = np.flatnonzero(~np.isin(one.operations.kind, kinds))
        templates.append(replace(one, operations=one.operations.take(kept)))
    return replace(step, templates=tuple(templates))


def attention_bytes(plans: tuple[Plan, ...], cost: Cost) -> np.ndarray:
    total = np.zeros(cost.cluster.num_nics, np.int64)
    for plan in plans:
        for part in playable(plan, cost):
            total += carried_bytes(part, cost)[0]
    return total


def row(system: str, workload: str, zero: str) -> None:
    batch, plans, cost = case(system, workload, zero)
    _, verified = timed(lambda: verify_step(batch, plans))
    older, simulated = timed(lambda: StepEstimate(cost).seconds(plans))
    step, built = timed(lambda: whole_step(cost.model, plans, 1, zero), 1)
    _, proven = timed(lambda: prove_step(step))
    played, clocked = timed(lambda: play_step(step, plans, cost))
    assert (played.nic_tx["attention"] == attention_bytes(plans, cost)).all()
    waiting = make_cost(replace(cost.cluster, port_order=LONGEST_WAITING), cost.model)
    fast = make_cost(faster(cost.cluster), cost.model)
    others = [play_step(step, plans, one).seconds for one in (waiting, fast)]
    left = [play_step(without(step, kinds), plans, cost).seconds for kinds in ((GATHER, REDUCE), (GATHER,), (REDUCE,))]
    alone = StepEstimate(fast).seconds(plans)
    print(
        f"| {system} | {workload} | {zero} | {len(plans)} | {older:.3f} | {played.seconds:.3f} "
        f"({played.seconds / older - 1:+.1%}) | {others[0]:.3f} ({others[0] / older - 1:+.1%}) | "
        f"{others[1] / alone - 1:+.2%} | {left[0]:.3f} | {left[1]:.3f} | {left[2]:.3f} | "
        f"{verified:.0f} + {simulated:.0f} | {built:.0f} + {proven:.0f} + "
        f"{clocked:.0f} |",
        flush=True,
    )


def times(system: str, workload: str) -> None:
    """Prints the milliseconds of a core that a batch takes on the mean, the first one left out, which compiles."""
    spent = []
    for batch, plans, cost in cases(system, workload, "3", 1 + BATCHES):
        marks = [process_time()]
        step = whole_step(cost.model, plans, 1, "3")
        marks.append(process_time())
        prove_step(step)
        marks.append(process_time())
        play_step(step, plans, cost)
        marks.append(process_time())
        verify_step(batch, plans)
        StepEstimate(cost).seconds(plans)
        marks.append(process_time())
        parts = StepParts(step, plans, cost)
        assert parts.of_step  # all variants are lowered
        marks.append(process_time())
        step_memory(parts)
        marks.append(process_time())
        spent.append(np.diff(marks))
    build, proof, play, older, lowering, account = 1e3 * np.mean(spent[1:], axis=0)
    whole = build + proof + play
    told = [older, build, proof, lowering, play - lowering - account, account, whole]
    over = f"{whole / older:.1f} | {(whole - build) / older:.1f}"
    print(f"| {system} | {workload} | {' | '.join(f'{one:.1f}' for one in told)} | {over} |", flush=True)


def large(gpus: int) -> None:
    from tests.bench.test_step import case as of_gpus

    model, plans, degree = of_gpus(gpus)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["cluster=h100_4x8", f"cluster.num_nodes={gpus // 8}", "tracker=none"])
    cost = make_cost(Parts.of(config, Settings.of(config)).cluster, model)
    for name in ("with compiling or its cache", "again"):
        begin = process_time()
        step = whole_step(model, plans, degree, "3")
        built = process_time()
        prove_step(step)
        proven = process_time()
        played = play_step(step, plans, cost)
        end = process_time()
        print(
            f"{name}: build {built - begin:.2f} s, proof {proven - built:.2f} s, play {end - proven:.2f} s; step of "
            f"{played.seconds:.3f} s (simulated), {'settled' if played.settled else 'not settled'}; peak of the "
            f"process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
        )


if __name__ == "__main__":
    keep_freed_memory()  # this and the next line as every command does
    gc.freeze()
    if SAID and SAID[0].isdigit():
        large(int(SAID[0]))
    elif SAID[:1] == ["times"]:
        words = [
            "system",
            "workload",
            "older",
            "build",
            "proof",
            "lowering",
            "clock",
            "account",
            "whole step",
            "whole over older",
            "verify and simulate over older",
        ]
        print(f"| {' | '.join(words)} |\n|{'---|' * len(words)}")
        for system in SAID[1:] or SYSTEMS:
            for workload in TIMED:
                times(system, workload)
    else:
        words = ["system", "workload", "ZeRO", "batches", "older, s", "step", "longest waiting", "no links", "none"]
        words += ["no gathers", "no reductions", "older, ms", "step, ms"]
        print(f"| {' | '.join(words)} |\n|{'---|' * len(words)}")
        for system in SAID or SYSTEMS:
            for workload in WORKLOADS:
                for zero in ("3", "1"):
                    row(system, workload, zero)
