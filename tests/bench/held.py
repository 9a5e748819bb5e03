"""Bytes that processes have at their fullest beside those of a step's account, with host memory and any system's plans.

python -m tests.bench.held [SYSTEM ...]   # docs/memory/measured.md's table, on four gloo processes here: a minute

Four GPUs on two nodes, five layers with feed-forwards of 256 columns, float64; sequences of very different lengths, so
that systems cut some and keep others whole. Measured after every operation, and with logits, which are inside
operations (tests/runtime/handlers/test_held_on_hosts.py holds the same cases to 3 %).
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tests.helpers.oracles import small
from zbench.api.parts import system_named
from zbench.correctness.steps.cases import ProcessOptions, StepCase
from zbench.correctness.steps.choices import MODEL
from zbench.correctness.steps.command import RANK
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.runtime.processes.launch import LocalFleet
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import with_host_memory
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.proof.prove import prove_step

SYSTEMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # by the table's words: a system and its keys
    "ring": ("ring", {}),
    "allgather": ("allgather", {}),
    "ulysses": ("ulysses", {}),
    "ulysses, received_kv=regather": ("ulysses", {"received_kv": "regather"}),
    "hybrid_dp": ("hybrid_dp", {}),
    "flexsp": ("flexsp", {}),
    "zeppelin": ("zeppelin", {}),
    "magi_dispatch": ("magi_dispatch", {}),
}
LENGTHS = (257, 40, 100, 33, 60, 9)
LAYERS = 5
LINK = {"host_bandwidth": 1e10, "host_efficiency": 1.0, "host_latency": 1e-5, "host_adam_bandwidth": 1e11}


@dataclass(frozen=True, slots=True)
class Choice:
    """What is made again, by chunks of how many tokens, and what is on hosts; sharding: "1" or "3", of ZeRO."""

    recompute: str
    chunk: int | str
    offload: str
    sharding: str = "1"


CHOICES = {
    "inputs": Choice("full", "whole", "inputs"),
    "activations, none": Choice("none", "whole", "activations"),
    "activations, selective": Choice("selective", "whole", "activations"),
    "activations, chunked": Choice("chunked", 8, "activations"),
    "alst, ZeRO-3": Choice("full", 8, "inputs_and_optimizer", "3"),
}


@dataclass(frozen=True, slots=True)
class HeldCase:
    """A step on processes, and the bytes of each GPU at its fullest by the step's account."""

    case: StepCase
    accounted: Sequence[int]


@cache
def plans_of(system: str) -> tuple[Plan, ...]:
    """Returns a system's plans for the batch, whatever is kept where: of GPUs with all the memory they ask for."""
    one = small(2, 2, memory=1e12)
    model = replace(MODEL, num_layers=LAYERS, num_kv_heads=4, ffn_hidden=256, recompute="full")
    name, keys = SYSTEMS.get(system, (system, {}))
    found, _ = system_named(name, make_cost(one.cluster, model), keys)
    return tuple(found.plan(Batch(np.array(LENGTHS), 0, 0)))


def held_case(system: str, choice: Choice) -> HeldCase:
    """Returns the case of a system and a choice; its step is proven."""
    plans = list(plans_of(system))
    chunks = {"mlp_chunk_tokens": choice.chunk, "loss_chunk_tokens": choice.chunk}
    model = replace(MODEL, num_layers=LAYERS, num_kv_heads=4, ffn_hidden=256, offload=choice.offload, **chunks)
    step = whole_step(model, plans, 1, choice.sharding, recompute=choice.recompute)
    step = with_host_memory(step, model, 2, [LAYERS] * len(plans))
    prove_step(step)
    cost = replace(small(2, 2), model=model, cluster=replace(small(2, 2).cluster, **LINK))
    memory = step_memory(StepParts(step, plans_of_layouts(tuple(plans)), cost))
    accounted = memory.peak[: step.num_gpus].tolist()
    return HeldCase(replace(StepCase.of(step, model, plans, 1), weighed=True), accounted)


def main(names: Sequence[str]) -> None:
    """Prints the table: of the fullest process what is accounted, what is measured and the difference, and the most and
    the least that any process has over what is accounted for it."""
    print(f"| system | {' | '.join(CHOICES)} |\n" + "|---" * (1 + len(CHOICES)) + "|")
    over = list[float]()
    with LocalFleet(4, RANK, ProcessOptions(), timeout=60) as ranks:
        for system in names or SYSTEMS:
            cells = []
            for one in CHOICES.values():
                of = held_case(system, one)
                held = [process.held for process in ranks.call("run", of.case)]
                said, found = max(of.accounted), max(held)
                cells.append(f"{said:,}, {found:,}, {100 * (found / said - 1):+.1f} %")
                over += [have / said for have, said in zip(held, of.accounted, strict=True)]
            print(f"| {system} | {' | '.join(cells)} |", flush=True)
    print(f"\nof any process: {100 * (min(over) - 1):+.2f} to {100 * (max(over) - 1):+.2f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
