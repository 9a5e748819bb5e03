"""What telling a step takes in the zbench that is imported: one side of tests.bench.older, which runs it.

python older_teller.py SYSTEM WORKLOAD,WORKLOAD [KEY=VALUE ...]

Prints a line of JSON for each batch: milliseconds of a core to plan it, to verify its plans and to simulate it, as a
run does. The first two batches of each workload are told before that and not counted, as they read compiled functions
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
CASE = "cluster=a800_4x8", "model=llama_7b", "tracker=none"  # with ZeRO-3, as both have it by default


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


class Teller:
    """A system and its batches of one workload."""

    def __init__(self, workload: str, words: list[str]) -> None:
        self.workload = workload
        self.parts, self.planner = parts_and_system([*CASE, f"workload={workload}", *words])
        self.executor, self.build = self.parts.executor, builder()
        self.executor.start()

    def told(self, step: int) -> dict[str, Any]:
        """Tells the batch of a step as a run does, and returns what each part of that took."""
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


def as_commands_do() -> None:
    """Keeps freed memory and looks for garbage as the commands of this zbench do, where they do."""
    if has("zbench.console.heap"):
        named("keep_freed_memory", "zbench.console.heap")()
    if has("zbench.console.garbage"):
        gc.freeze()


if __name__ == "__main__":
    as_commands_do()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        tellers = [Teller(name, [f"system={sys.argv[1]}", *sys.argv[3:]]) for name in sys.argv[2].split(",")]
    for step in range(FIRST + BATCHES):
        for teller in tellers:
            told = teller.told(step)
            if step >= FIRST:
                print(json.dumps(told), flush=True)
