"""The two executors that train, beside each other: seconds of a step and of cores, step by step in turn.

python -m tests.bench.runtimes [--beside CHECKOUT] [--steps N] [executor=NAME ...] [key=value ...]

Each executor (torch_attention and torch where none is named) is a process of its own with its ranks; so is that of
every executor in another CHECKOUT. All are told to take the same step one after another, so that what else the machine
does meanwhile is in all of them. Core seconds are the kernel's (schedstat), of the driver, which plans, builds and
proves, and of all its ranks. Reported are medians over steps; of the ranks' seconds, summed, what they went to.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from time import perf_counter
from typing import Any

SERVE = "serve"  # the first word of a process that steps when it is told to
HERE = Path(__file__).resolve().parents[2]
EXECUTORS = ("executor=torch_attention", "executor=torch")
ASIDE = 2  # steps that are not counted: caches fill


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def core_seconds(pids: Sequence[int]) -> float:
    every = [one.read_text() for pid in pids for one in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(one.split()[0]) for one in every) / 1e9


def serve(overrides: Sequence[str]) -> None:
    """Takes a step for every line that comes, and prints what it took."""
    from hydra import compose, initialize_config_dir

    from zbench import CONF
    from zbench.run.parts import Parts
    from zbench.run.settings import Settings
    from zbench.run.system import make_system

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*overrides, "tracker=none", "baseline=null"])
    parts = Parts.of(config, Settings.of(config))
    system, executor = make_system(config, parts.cost), parts.executor
    executor.start()
    try:
        for number, _ in enumerate(sys.stdin):
            batch = parts.batch(number)
            plans = tuple(system.plan(batch))
            me, ranks = [os.getpid()], descendants(os.getpid())
            before, began = (core_seconds(me), core_seconds(ranks)), perf_counter()
            result = executor.step(batch, plans)
            called = perf_counter() - began
            cores = core_seconds(me) - before[0], core_seconds(ranks) - before[1]
            parts_of = {name: sum(values) for name, values in result.seconds_for.items()}
            told = {"driver cores": cores[0], "rank cores": cores[1], "call": called, "step": result.seconds}
            print(json.dumps({**told, "parts": parts_of, "loss": result.loss}), flush=True)
    finally:
        executor.stop()


def opened(checkout: Path, overrides: Sequence[str]) -> "Popen[str]":
    words = [sys.executable, "-P", str(Path(__file__).resolve()), SERVE, *overrides]
    return Popen(words, stdin=PIPE, stdout=PIPE, text=True, env={**os.environ, "PYTHONPATH": str(checkout)})


def stepped(one: "Popen[str]") -> dict[str, Any]:
    assert one.stdin is not None, "it is a pipe"
    assert one.stdout is not None, "it is a pipe"
    one.stdin.write("step\n")
    one.stdin.flush()
    found: dict[str, Any] = json.loads(one.stdout.readline())
    return found


def main(words: list[str]) -> None:
    def option(name: str, usual: str) -> str:
        if name not in words:
            return usual
        at = words.index(name)
        value = words[at + 1]
        del words[at : at + 2]
        return value

    beside, steps = option("--beside", ""), int(option("--steps", "8"))
    named = [one for one in words if one.startswith("executor=")] or EXECUTORS
    keys = [one for one in words if not one.startswith("executor=")]
    checkouts = [HERE, *([Path(beside).resolve()] if beside else [])]
    runs = {f"{one} in {where}": opened(where, [one, *keys]) for one in named for where in checkouts}
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(ASIDE + steps):
        for name, run in runs.items():
            told[name].append(stepped(run))
    for name, every in told.items():
        some = every[ASIDE:]
        figures = {key: median(one[key] for one in some) for key in ("rank cores", "driver cores", "step", "call")}
        print(name, "; ".join(f"{key} {value:.4f}" for key, value in figures.items()), f"loss {every[-1]['loss']:.6f}")
        parts = {key: median(one["parts"].get(key, 0.0) for one in some) for key in some[0]["parts"]}
        print("    ranks' seconds:", ", ".join(f"{key} {value:.3f}" for key, value in parts.items()))
    for run in runs.values():
        assert run.stdin is not None, "it is a pipe"
        run.stdin.close()
        run.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(sys.argv[2:])
    else:
        main(sys.argv[1:])
