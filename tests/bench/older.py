"""What verifying and simulating steps takes, beside an older checkout of zbench: the same cases in both, in turn.

python -m tests.bench.older --beside CHECKOUT [--rounds N] [KEY=VALUE ...] [system ...]         # single steps, by case
python -m tests.bench.older --beside CHECKOUT [--rounds N] tables [KEY=VALUE ...] [system ...]  # a table of systems

Steps: llama_7b on a800_4x8 with ZeRO-3, five workloads, six batches each that were not seen before. A step's batch is
planned (a column by itself), and then goes through what a run does: its plans are verified, and its executor simulates
it, with all that a record has of a step. Building the whole step is a part of that, which is timed once more by itself.
Each checkout has its own planners, so plans of one batch may differ; their operations are counted. Each side is a
process of its own, which imports the checkout and nothing of this one; which goes first changes from round to round.
Milliseconds of a core (not of a clock, as other programs use the machine), of each batch the quickest of all rounds,
means of six batches.

Tables: `experiment=all_systems` with words as given, whole processes, seconds of a core. Both have the systems of the
other checkout; what is chosen before a run (static_best) is chosen anew in the first round and kept in the others.

The checkout has to be one that this Python can run, with its functions compiled (`python -m zbench.warm` in it).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

HERE = Path(__file__).resolve().parents[2]
SIDE = Path(__file__).with_name("older_side.py")
SYSTEMS = "zeppelin", "flexsp", "nodewise", "ring"
WORKLOADS = "longtail_128k", "github", "prolong64k", "byted_2m", "pystdlib"
Measured = Mapping[str, float | str]  # of a batch, as older_side prints it
Sides = Mapping[str, Path]


def run_in(checkout: Path, words: Sequence[str], cache: str) -> str:
    """Runs Python in a checkout and returns what it prints. cache: the folder of what it chooses before a run."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": cache}
    return subprocess.run(
        [sys.executable, "-P", *words], cwd=checkout, env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def in_turn(sides: Sides, rounds: int) -> Iterator[tuple[str, Path]]:
    """Returns the sides of every round, the first one last in every other round."""
    for number in range(rounds):
        yield from list(sides.items())[:: 1 if number % 2 == 0 else -1]


def measured_steps(checkout: Path, system: str, overrides: Sequence[str]) -> dict[tuple[str, str], Measured]:
    """Returns what the batches of all workloads took in a new process, by their workload and digest."""
    with tempfile.TemporaryDirectory() as cache:
        lines = run_in(checkout, [str(SIDE), system, ",".join(WORKLOADS), *overrides], cache).splitlines()
    found = [json.loads(line) for line in lines]
    assert {one["of"] for one in found} == {str(checkout)}, "each side is of its own checkout"
    return {(one["workload"], one["batch"]): one for one in found}


def quickest(rounds: Sequence[Mapping[tuple[str, str], Measured]], workload: str) -> dict[str, float]:
    """Returns the means over a workload's batches of the least that each took in all rounds."""
    batches = [key for key in rounds[0] if key[0] == workload]
    names = [name for name, value in rounds[0][batches[0]].items() if not isinstance(value, str)]
    return {
        name: float(np.mean([min(float(one[batch][name]) for one in rounds) for batch in batches])) for name in names
    }


def compare_steps(sides: Sides, systems: Sequence[str], rounds: int, overrides: Sequence[str]) -> None:
    """Prints a row for each system and workload."""
    words = ["system", "workload", "operations of plans, before", "now", "plan, before", "now"]
    words += ["verify and simulate, before", "now", "now over before", "of which building", "without it over before"]
    print(f"| {' | '.join(words)} |\n|{'---|' * len(words)}", flush=True)
    for system in systems:
        found: dict[str, list[dict[tuple[str, str], Measured]]] = {name: [] for name in sides}
        for name, checkout in in_turn(sides, rounds):
            found[name].append(measured_steps(checkout, system, overrides))
        assert found["before"][0].keys() == found["now"][0].keys(), "both have the same batches"
        for workload in WORKLOADS:
            before, now = (quickest(found[name], workload) for name in ("before", "now"))
            took = [one["verify"] + one["simulate"] for one in (before, now)]
            without = (took[1] - now["build"]) / took[0]
            print(
                f"| {system} | {workload} | {before['operations']:,.0f} | {now['operations']:,.0f} | "
                f"{before['plan']:.1f} | {now['plan']:.1f} | {took[0]:.1f} | {took[1]:.1f} | "
                f"{took[1] / took[0]:.2f} | {now['build']:.1f} | {without:.2f} |",
                flush=True,
            )


def compare_tables(sides: Sides, systems: Sequence[str], rounds: int, overrides: Sequence[str]) -> None:
    """Prints the seconds of a core that a table of all systems took, with what is chosen before a run chosen anew (the
    first round) and kept (the quickest of the others)."""
    experiment = OmegaConf.load(sides["before"] / "conf/experiment/all_systems.yaml").hydra.sweeper.params.system
    job = ["-m", "zbench", "experiment=all_systems", f"system={','.join(systems) or experiment}", *overrides]
    took: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        for name, checkout in in_turn(sides, rounds):
            record = Path(folder, f"{name}_{len(took[name])}.jsonl")
            began = resource.getrusage(resource.RUSAGE_CHILDREN)
            run_in(checkout, [*job, f"out={record}"], f"{folder}/{name}")
            end = resource.getrusage(resource.RUSAGE_CHILDREN)
            took[name].append(end.ru_utime + end.ru_stime - began.ru_utime - began.ru_stime)
            lines = [json.loads(line) for line in record.read_text().splitlines()]
            runs, steps = (sum(one["kind"] == kind for one in lines) for kind in ("end", "step"))
            print(f"{name}: {took[name][-1]:.1f} s of a core for {steps} steps of {runs} runs", flush=True)
    for words, of in (("chosen anew", slice(0, 1)), ("kept", slice(1, None))):
        if took["now"][of]:
            before, now = min(took["before"][of]), min(took["now"][of])
            print(f"{words}: {before:.1f} s before and {now:.1f} s now, {now / before:.2f} times as much")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.older", description=__doc__.split("\n")[0])
    parser.add_argument("--beside", required=True, type=Path, help="another checkout of zbench, the one before")
    parser.add_argument("--rounds", type=int, default=3, help="of both sides each")
    parser.add_argument("words", nargs="*", help="tables, KEY=VALUE for both, systems")
    given = parser.parse_args()
    if not (given.beside / "zbench" / "__init__.py").is_file():
        parser.error(f"--beside is {given.beside}; it takes the folder of a checkout of zbench")
    if given.rounds < 1:
        parser.error(f"--rounds is {given.rounds}; it takes a whole number of at least 1")
    sides = {"before": given.beside.resolve(), "now": HERE}
    overrides = [one for one in given.words if "=" in one]
    systems = [one for one in given.words if "=" not in one]
    if systems[:1] == ["tables"]:
        compare_tables(sides, systems[1:], given.rounds, overrides)
    else:
        compare_steps(sides, systems or SYSTEMS, given.rounds, overrides)


if __name__ == "__main__":
    main()
