"""Whole steps with stages on their own clock beside planners' estimate: seconds of both, and memory by stage.

python -m tests.bench.stages     # a800_4x8, llama_7b, ZeRO-1, longtail_128k in 16 micro-batches; about a minute
python -m tests.bench.stages all # four of its micro-batches: all layers as one program, and with layers left out

Four stages of a node with several systems, and one pipeline of tensor parallelism 8 in four stages
(zbench.simulator.estimate.pipelined), its micro-batches' sequences one after another. `no
links`, `none`, `no gathers`, `no reductions`: as in tests/bench/steps.py.
"""

import sys
from dataclasses import replace
from time import process_time

import numpy as np
from hydra import compose, initialize_config_dir

from tests.bench.steps import case, faster, without
from zbench import CONF
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.ranks_of_gpus import of_gpu
from zbench.describe.batch import Batch
from zbench.passes.reverse import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import Plan
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulator.estimate.step import StepEstimate
from zbench.simulator.steps.play import play_some_layers, play_step
from zbench.step.operations import GATHER, REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

Played = tuple[Batch, tuple[Plan, ...], Cost, Step, tuple[Plan, ...]]  # attention's, and the step with its plans


def planned(system: str) -> tuple[Batch, tuple[Plan, ...], Cost]:
    overrides = ["cluster=a800_4x8", "model=llama_7b_pp4", "workload=longtail_128k", f"system={system}", "tracker=none"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides)
    parts = Parts.of(config, Settings.of(config))
    batch = parts.batch(0)
    return batch, tuple(make_system(config, parts.cost).plan(batch)), parts.cost


def staged(system: str) -> Played:
    batch, plans, cost = planned(system)
    return batch, plans, cost, whole_step(cost.gpus.model, plans, 1, "1", stages=cost.pp), plans


def sliced() -> Played:
    """One pipeline, tensor parallelism 8 in four stages, with the micro-batches of the others."""
    batch, given, cost = planned("zeppelin")
    alone = make_cost(cost.gpus.cluster, replace(cost.gpus.model, pipeline_parallel=1))
    one = Pipelines(*(np.array([value], np.int64) for value in (0, 8, 4)))
    attention, own = [], []
    for plan in given:
        for found, ranks, heads in ((attention, 32, 32), (own, 1, 4)):
            builder = Builder(plan.lengths, ranks, heads, sequences=plan.sequences)
            local(builder, np.arange(len(plan.lengths)), np.zeros(len(plan.lengths), np.int64))
            found.append(reverse(builder.build(), "keep"))
    step = whole_step(alone.model, own, 8, "1", stages=4)
    return batch, tuple(plan.with_(pipelines=one) for plan in attention), alone, step, tuple(own)


def gibs(peak: np.ndarray, stages: int) -> str:
    return ", ".join(f"{value:.1f}" for value in peak.reshape(stages, -1).max(axis=1) / 2**30)


def row(name: str, of: Played) -> None:
    _, plans, cost, step, own = of
    prove_step(step)
    older, begin = StepEstimate(cost).seconds(plans), process_time()
    played = play_step(step, own, cost.gpus)
    clocked = process_time() - begin
    fast = make_cost(faster(cost.gpus.cluster), cost.gpus.model)
    alone, quick = StepEstimate(fast).seconds(plans), play_step(step, own, fast.gpus).seconds
    kinds = (GATHER, REDUCE), (GATHER,), (REDUCE,)
    left = [play_step(without(step, one), own, cost.gpus).seconds for one in kinds]
    print(
        f"| {name} | {older:.3f} | {played.seconds:.3f} ({played.seconds / older - 1:+.1%}) | "
        f"{quick / alone - 1:+.2%} | {left[0]:.3f} | {left[1]:.3f} | {left[2]:.3f} | "
        f"{gibs(of_gpu(peak_bytes(plans, cost), cost.tp), 4)} | {gibs(played.memory.peak, 4)} | {1e3 * clocked:.0f} |",
        flush=True,
    )


def all_layers() -> None:
    """Prints what steps played with 12 layers of each stage, or with as many as settle, lack against all of them."""
    alone = (("zeppelin", "longtail_128k", "3"), ("zeppelin", "prolong64k", "3"), ("flexsp", "github", "3"))
    for system, workload, zero in (*alone, ("ring", "github", "1")):
        _, plans, cost = case(system, workload, zero)
        compared(f"{system}, {workload}, ZeRO-{zero}", whole_step(cost.model, plans, 1, zero), plans, cost)
    for system in ("zeppelin", "ring"):
        _, plans, cost = planned(system)
        for stages, zero, layers in ((2, "1", 32), (2, "3", 32), (4, "1", 80)):
            model, some = replace(cost.gpus.model, num_layers=layers), plans[1:5]
            cluster = replace(cost.gpus.cluster, num_nodes=stages)
            name = f"{system}, longtail_128k, ZeRO-{zero}"
            compared(name, whole_step(model, some, 1, zero, stages=stages), some, Cost(cluster, model))


def compared(name: str, step: Step, plans: tuple[Plan, ...], cost: Cost) -> None:
    twelve, every = (play_some_layers(step, plans, cost, kept).seconds for kept in (12, step.num_layers))
    words = [f"{found / every - 1:+.2%}" for found in (twelve, play_step(step, plans, cost).seconds)]
    print(f"| {name} | {step.num_layers} | {len(step.stages)} | {every:.3f} | {words[0]} | {words[1]} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["all"]:
        words = ["plans", "layers", "stages", "all layers, s", "12 of each stage", "12, 24 or all"]
        print(f"| {' | '.join(words)} |\n|{'---|' * len(words)}")
        all_layers()
    else:
        words = ["plans", "older, s", "step", "no links", "none", "no gathers", "no reductions"]
        words += ["GiB by stage, formula", "GiB by stage, step", "CPU ms of the clock"]
        print(f"| {' | '.join(words)} |\n|{'---|' * len(words)}")
        for name in ("zeppelin", "ring", "local_packing"):
            row(f"{name}, a node a stage", staged(name))
        row("tensor parallelism 8", sliced())
