"""How much better than flexsp's search the paper's programme gets in a minute, batch by batch.

python tests/bench/flexsp_solver.py [--batches 100] [--seconds 60] [--workers 2] [--out results/flexsp_solver.jsonl]

Batches of 512 documents within 192K for 64 A100, wikipedia and github in turn. Each micro-batch whose gap to the bound
is above 1 % goes to HiGHS, with a bucket for every length and the search's groups as its upper limit; the others are
certain. A line for each batch; what OUT has is not run again. A solver uses one core; `cpu` has the processor seconds
that each solve got.
"""

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from test_flexsp import drawn

from zbench.anchors.flexsp import GPT_7B
from zbench.anchors.presets import cluster
from zbench.cost.cost import Cost
from zbench.systems.flexsp.milp import Limits, solve
from zbench.systems.flexsp.planner import FlexSP
from zbench.systems.flexsp.search import search_groups

NAMES = ("wikipedia", "github")
CERTAIN = 0.01


def compared(number: int, seconds: float) -> dict[str, object]:
    """One batch. search, solver: the objective's seconds, all micro-batches; asked: how many the solver was given."""
    name, step = NAMES[number % 2], number // 2
    system = FlexSP(Cost(cluster("a100_8x8"), GPT_7B))
    batch = drawn(name, step, 512)
    ours, best, ended, cpu = 0.0, 0.0, [], []
    for plan in system.plan(batch):
        own = float(plan.notes["objective_seconds"])
        least = own
        if float(plan.notes["gap"]) > CERTAIN:
            lengths = np.sort(batch.lengths[plan.sequences])[::-1].copy()
            found = search_groups(lengths, system.objective)
            assert found is not None
            begun = time.process_time()
            solved = solve(lengths, system.objective, found.packed, Limits(10**9, seconds, 10**6))
            cpu.append(round(time.process_time() - begun, 1))
            ended.append(solved.ended)
            least = min(own, solved.packed.seconds if solved.packed else np.inf)
        ours, best = ours + own, best + least
    seen = {"search": ours, "solver": best, "ended": ended, "cpu": cpu}
    return {"workload": name, "step": step, "limit": seconds, **seen}


def known(out: Path) -> Iterator[dict[str, object]]:
    if out.exists():
        yield from map(json.loads, out.read_text().splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/flexsp_solver.jsonl"))
    asked = parser.parse_args()
    done = {(line["workload"], line["step"]) for line in known(asked.out) if line["limit"] == asked.seconds}
    left = [n for n in range(asked.batches) if (NAMES[n % 2], n // 2) not in done]
    with ProcessPoolExecutor(asked.workers) as pool, asked.out.open("a") as file:
        for line in pool.map(partial(compared, seconds=asked.seconds), left):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(line, flush=True)
    lines = [line for line in known(asked.out) if line["limit"] == asked.seconds]
    better = np.array([line["search"] / line["solver"] - 1 for line in lines])  # type: ignore[operator]
    given = sum(bool(line["ended"]) for line in lines)
    print(
        f"{len(lines)} batches, {given} of them given to the solver: it is better by more than 1 % on "
        f"{int((better > 0.01).sum())}, by {better.max():.2%} at most"
    )


if __name__ == "__main__":
    main()
