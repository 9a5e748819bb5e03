"""What verifying and simulating steps takes in the zbench that is imported: a side of tests.bench.older, which runs it.

python older_side.py SYSTEM WORKLOAD,WORKLOAD [KEY=VALUE ...]

Prints a line of JSON for each batch: milliseconds of a core to plan it, to verify its plans and to simulate it, as a
run does. The first two batches of each workload come before that and are not counted, as they read compiled functions
from disk and make what is kept for later batches. It imports only what zbench has had since commit fff37e16
(2026-11-22), the last one before whole steps, or asks what there is.
"""

import gc
import json
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

from hydra import compose, initialize_config_dir

import zbench
from zbench import CONF
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.proof.verify import verify_step
from zbench.run.parts import Parts

ROOT = Path(zbench.__file__).resolve().parents[1]
FIRST, BATCHES = 2, 6  # batches of each workload that are not counted, and those that are
COMMON = "cluster=a800_4x8", "model=llama_7b", "tracker=none"  # with ZeRO-3, as both have it by default


def has(module: str) -> bool:
    """Returns whether this zbench has a module. Its files are asked, as Python may find another zbench's modules, one
    that is installed to be edited."""
    path = ROOT.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def named(name: str, *modules: str) -> Any:
    """Returns what the first of these modules that there is calls so: it has moved since."""
    return getattr(import_module(next(one for one in modules if has(one))), name)


def builder() -> Callable[[Any, Batch, tuple[Plan, ...]], object] | None:
    """Returns what makes whole steps of plans, before they are proven; None where there are none."""
    if not has("zbench.step"):
        return None
    return lambda executor, batch, plans: executor.steps.built(batch, plans)


def parts_and_system(words: list[str]) -> tuple[Any, Any]:
    settings = named("Settings", "zbench.run.settings", "zbench.run.parts")
    make_system = named("make_system", "zbench.run.system", "zbench.run.parts")
    config = compose("config", words)
    parts = Parts.of(config, settings.of(config))
    assert parts.simulated
    return parts, make_system(config, parts.cost)


class Case:
    """A system and its batches of one workload."""

    def __init__(self, workload: str, words: list[str]) -> None:
        self.workload = workload
        self.parts, self.planner = parts_and_system([*COMMON, f"workload={workload}", *words])
        self.executor, self.build = self.parts.executor, builder()
        self.executor.start()

    def measured(self, step: int) -> dict[str, Any]:
        """Plans, verifies and simulates the batch of a step, and returns what each of these took."""
        batch = self.parts.batch(step)
        marks = [process_time()]
        plans = tuple(self.planner.plan(batch))
        marks.append(process_time())
        verify_step(batch, plans, self.parts.cost, memory=False)
        marks.append(process_time())
        result = self.executor.step(batch, plans)
        marks.append(process_time())
        if self.build is not None:
            self.build(self.executor, batch, plans)
            marks.append(process_time())
        spent = (1e3 * (end - begin) for begin, end in pairwise(marks))
        return {
            "of": str(ROOT),
            "workload": self.workload,
            "batch": batch.digest,
            "operations": sum(len(plan.forward) + len(plan.backward) for plan in plans),
            "step_seconds": result.seconds,
            **dict(zip(("plan", "verify", "simulate", "build"), spent, strict=False)),
        }


def main(system: str, workloads: list[str], overrides: list[str]) -> None:
    """Measures the batches, with memory and garbage as the commands of this zbench have them."""
    if has("zbench.console.heap"):
        named("keep_freed_memory", "zbench.console.heap")()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cases = [Case(name, [f"system={system}", *overrides]) for name in workloads]
    if has("zbench.console.garbage"):  # which looks for garbage among what is made from now on alone
        gc.freeze()
    for case in cases:
        for step in range(FIRST):
            case.measured(step)
    for case in cases:
        for step in range(FIRST, FIRST + BATCHES):
            print(json.dumps(case.measured(step)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), sys.argv[3:])
