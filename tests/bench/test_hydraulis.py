"""Hydraulis: planning time at 64 and 1,024 ranks, its gap to a linear programme, and steps against static strategies.

Not collected by default: `make bench`, or `python -m pytest tests/bench/test_hydraulis.py --benchmark-only -p benchmark
-o addopts= -s`. Lengths are drawn from the histograms in conf/workload, documents over a limit (192K) left out.
"""

from collections.abc import Callable
from time import process_time

import numpy as np
import pytest
from scipy.optimize import linprog
from test_flexsp import drawn

from zbench.anchors.presets import cluster
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.proof.verify import verify_step
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.hydraulis.batching import SchemeSequences
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.hydraulis.strategies import strategies

RANKS = {8: (64, 512), 128: (1024, 8192)}  # by nodes: ranks, sequences


def llama(nodes: int) -> Cost:
    return Cost(
        cluster("a100_8x8", num_nodes=nodes), Model("7b", 32, 4096, 32, 32, 128, 11008, 32000, sharding="zero3")
    )


@pytest.mark.parametrize("nodes", RANKS)
@pytest.mark.parametrize("name", ["wikipedia", "github"])
def test_planning(benchmark: Callable, name: str, nodes: int) -> None:
    """A batch at a time, each different; the first, which may compile, is not counted where there are others."""
    ranks, count = RANKS[nodes]
    system, steps = Hydraulis(llama(nodes)), iter(range(100))
    taken: list[float] = []

    def plan(batch: Batch) -> tuple:
        begin = process_time()
        found = system.plan(batch)
        taken.append(process_time() - begin)
        return found

    plans = benchmark.pedantic(
        plan, setup=lambda: ((drawn(name, next(steps), count),), {}), rounds=20 if nodes == 8 else 5, warmup_rounds=1
    )
    lengths = np.sort(drawn(name, 0, count).lengths)
    of = system.objective
    begin = process_time()
    strategies(lengths, of.seconds(lengths), of, ranks, max(ranks // 64, 1))
    counted = taken[1:] or taken
    benchmark.extra_info |= {"processor_median": float(np.median(counted)), "processor_worst": max(counted)}
    benchmark.extra_info |= {"proposal": process_time() - begin, "micro_batches": len(plans)}
    print(benchmark.extra_info)
    assert sum(len(plan.lengths) for plan in plans) == count


def relaxed(system: Hydraulis, lengths: np.ndarray, copies: np.ndarray) -> float:
    """No dispatch of `lengths` to this strategy is done sooner: sequences may be cut, bubbles and micro-batches are
    free. At least what the longest takes."""
    of = system.objective
    used = np.flatnonzero(copies)
    seconds, fits = of.seconds(lengths)[used], lengths <= of.capacity[used][:, None]
    kinds, count = seconds.shape
    rows = np.zeros((kinds, count * kinds + 1))
    for k in range(kinds):
        rows[k, k * count : (k + 1) * count], rows[k, -1] = seconds[k], -copies[used][k]
    once = np.concatenate([np.tile(np.eye(count), kinds), np.zeros((count, 1))], axis=1)
    bounds = [(0.0, 1.0 if able else 0.0) for able in fits.ravel()] + [(0.0, None)]
    goal = np.append(np.zeros(count * kinds), 1.0)
    least = linprog(goal, A_ub=rows, b_ub=np.zeros(kinds), A_eq=once, b_eq=np.ones(count), bounds=bounds)
    longest = np.where(fits, seconds, np.inf).min(axis=0).max()
    return float(max(least.fun, longest))


@pytest.mark.parametrize("name", ["wikipedia", "github"])
def test_gap(benchmark: Callable, name: str) -> None:
    """Dispatch and packing of 20 batches of 512 sequences, 64 ranks, for the strategy that each got."""
    system = Hydraulis(llama(8))

    def gaps() -> list[float]:
        found = []
        for step in range(20):
            batch = drawn(name, step, 512)
            given = SchemeSequences.of(batch.lengths, system.objective)
            proposed = strategies(given.lengths, given.seconds, system.objective, 64, 1)
            best = system.best_strategy(proposed, given)
            found.append(best.seconds / relaxed(system, given.lengths, best.copies) - 1)
        return found

    found = np.array(benchmark.pedantic(gaps, rounds=1))
    print(f"{name}: median {np.median(found):.3f}, 95 % {np.quantile(found, 0.95):.3f}, worst {found.max():.3f}")
    assert found.min() > -1e-9
    assert np.median(found) < 0.1


@pytest.mark.parametrize("limit", [32_768, 131_072])
@pytest.mark.parametrize("tokens", [200_000, 500_000])
@pytest.mark.parametrize("name", ["wikipedia", "github"])
def test_against_static_strategies(benchmark: Callable, name: str, tokens: int, limit: int) -> None:
    """64 A100, llama_7b, `tokens` a step (200K: Hydraulis' scripts) within `limit`, 10 steps in a row, by planners'
    estimate and the price of changes.

    Since a change of pipelines moves optimizer state, too, it takes 0.3 s. Steps of a second lose more by that than
    strategies by step gain; those of all others gain more.
    """
    cost = llama(8)
    every = Hydraulis(cost)
    of = every.objective
    able = [(int(tp), int(pp)) for tp, pp, most in zip(of.tp, of.pp, of.capacity, strict=True) if most >= limit]
    static = {f"tp {tp}, pp {pp}": Hydraulis(cost, [[tp, pp]]) for tp, pp in able if pp == 1}
    systems = {"hydraulis": every, "pipelines only": Hydraulis(cost, compare_whole_steps=False), **static}

    def seconds() -> dict[str, tuple[float, float]]:
        out = {}
        for label, system in systems.items():
            before, total, switch = None, 0.0, 0.0
            for step in range(10):
                drawn_ = drawn(name, step, 1024).lengths
                drawn_ = drawn_[drawn_ <= limit]
                batch = Batch(drawn_[: max(int(np.searchsorted(np.cumsum(drawn_), tokens)), 1)], 0, step)
                plans = system.plan(batch)
                verify_step(batch, plans, cost)
                assert plans[0].pipelines is not None
                layout = plans[0].pipelines.layout
                change = every.prices.seconds(layout if before is None else before, layout)
                before, switch = layout, switch + change
                total += StepEstimate(cost).seconds(plans) + change
            out[label] = (total / 10, switch / 10)
        return out

    found = benchmark.pedantic(seconds, rounds=1)
    own, free = found.pop("hydraulis"), found.pop("pipelines only")
    best = min(found, key=lambda one: found[one][0])
    told = f"{name}, {tokens} tokens, within {limit}: best static {best} {found[best][0]:.2f} s"
    for label, (mean, switching) in (("by step", own), ("by pipelines", free)):
        told += f"; {label} {mean:.2f} s ({switching:.2f} switching), {found[best][0] / mean:.2f} x"
    print(told)
    assert own[0] - own[1] < found[best][0]
    if (tokens, limit) != (200_000, 32_768):
        assert own[0] < 1.1 * found[best][0]
