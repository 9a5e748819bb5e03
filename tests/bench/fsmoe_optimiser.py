"""FSMoE's published optimiser beside the closed form of docs/experts.md: seconds and numbers of chunks of drawn layers.

python -m tests.bench.fsmoe_optimiser FOLDER   # the tools/ of a clone of github xpan413/FSMoE (4d4cf36), with optim.py

Layers with what starts and grows of its planner and of the paper's testbeds (backwards with gradients on the links of
exchanges), and layers of which each part is drawn by itself. Two minutes of a core.
"""

import importlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.cost.test_fsmoe import TESTBEDS
from zbench.cost.fsmoe import ExpertLayerSeconds, LinearSeconds
from zbench.describe.expert_schedule import DEGREES

DENSE, LAYERS = 1.3, 2  # what else the optimiser is told: milliseconds of the dense part, layers
Case = tuple[list[float], list[float], list[float], float]  # starts, each element, elements; gradients, milliseconds


def of_testbed(name: str) -> Iterator[Case]:
    """Yields 60 layers of a testbed, gradients of up to 5 ms."""
    starts, each, shards = TESTBEDS[name]
    rng = np.random.default_rng(1)
    for _ in range(60):
        tokens = int(rng.choice((1, 2, 4, 8))) * int(rng.choice((256, 512, 1024, 2048)))
        hidden = int(rng.choice((1024, 2048, 4096)))
        columns, kept = hidden * int(rng.choice((1, 2, 3, 4))), float(rng.choice((1.2, 2.4)))
        matmuls = int(rng.choice((2, 3)))
        rows = kept * tokens * hidden
        sizes = [rows / shards, rows, rows * columns / shards * matmuls, rows, 0.0]  # gradients are given as their time
        yield [*starts[:4], 0.0], [*each[:4], 0.0], sizes, float(rng.uniform(0, 5))


def drawn(alike: bool) -> Iterator[Case]:
    """Yields 300 layers without gradients. alike: whether a gather takes as long as a reduction."""
    rng = np.random.default_rng(7)
    for _ in range(300):
        starts, works = rng.uniform(0, 0.1, 5), 10 ** rng.uniform(-1, 1, 5)
        if alike:
            starts[3], works[3] = starts[1], works[1]
        yield starts.tolist(), works.tolist(), [1.0] * 5, 0.0


def compared(optimiser: Any, cases: Iterator[Case]) -> str:
    """Returns a row: layers, those of the same seconds, those whose number of chunks is the best, the most lost."""
    count = same = best = 0
    most = 1.0
    for starts, each, elements, gradients in cases:
        parts = [LinearSeconds(*one) for one in zip(starts, np.multiply(each, elements).tolist(), strict=True)]
        layer = ExpertLayerSeconds(parts[0], parts[2], parts[1], parts[3]).backward()
        degree, told = optimiser(list(starts), list(each), list(elements), LAYERS, DENSE).optimize_degree(gradients)
        degree = int(np.ravel(degree)[0])
        seconds = {one: layer.makespan(one, gradients) for one in DEGREES}
        found, least = layer.makespan(degree, gradients), min(seconds.values())
        count, same, best = count + 1, same + (abs(found - told) < 1e-3), best + (found <= least * (1 + 1e-6))
        most = max(most, found / least)
    return f"{count} | {same} | {best} | {most - 1:.1%}"


def main(folder: str) -> None:
    """Prints the table."""
    sys.path.insert(0, folder)
    warnings.filterwarnings("ignore")  # of the optimiser's
    optimiser = importlib.import_module("optim").Optimizer
    print("| layers of | layers | same seconds | best number of chunks | most lost |\n|---|---|---|---|---|")
    for name in TESTBEDS:
        print(f"| {name} | {compared(optimiser, of_testbed(name))} |", flush=True)
    print(f"| drawn, a gather as long as a reduction | {compared(optimiser, drawn(True))} |", flush=True)
    print(f"| drawn, each part by itself | {compared(optimiser, drawn(False))} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
