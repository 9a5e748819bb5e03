"""The price of a change of pipelines beside the change as it is played: `python -m tests.bench.changes` (simulated), of
clusters and with overrides, as `python -m tests.bench.changes h100_4x8 memory=zero_offload`.

Strategies are what hydraulis plans for three batches of three workloads, and plans without pipelines; of their ordered
pairs some are taken at even distances. Milliseconds are of one processor, for a pair that was not priced before.
"""

import sys
from time import process_time

import numpy as np
from hydra import initialize_config_dir

from tests.bench.choices import parts_of
from zbench import CONF
from zbench.plans.pipelines import Layout
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.play import play_step
from zbench.step.elements import elements_held
from zbench.step.passes.parameters.switch import switch_step
from zbench.step.template import Step
from zbench.systems.hydraulis.changes import ChangePrices
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.ulysses import Ulysses

WORKLOADS, BATCHES, PAIRS = ("github", "wikipedia", "longtail_128k"), 3, 16


def strategies(cluster: str, overrides: list[str]) -> tuple[ChangePrices, dict[Layout, tuple[str, Step]]]:
    """Strategies by their layouts, each with its name and a step."""
    found: dict[Layout, tuple[str, Step]] = {}
    for workload in WORKLOADS:
        parts, _ = parts_of([f"cluster={cluster}", f"workload={workload}", *overrides])
        system, clock = Hydraulis(parts.cost, compare_whole_steps=False), Simulated(parts.cost)
        for batch in map(parts.batch, range(BATCHES)):
            plans = system.plan(batch)
            assert plans[0].pipelines is not None
            name = str(plans[0].notes["strategy"])
            found.setdefault(plans[0].pipelines.layout, (name, clock.built(batch, plans)))
            found.setdefault((), ("none", clock.built(batch, Ulysses(parts.cost).plan(batch))))
    return ChangePrices(parts.cost), found


def main(words: list[str]) -> None:
    overrides = [one for one in words if "=" in one]
    clusters = [one for one in words if "=" not in one] or ["a800_4x8", "h800_4x8"]
    columns = "cluster", "from", "to", "played, s", "price, s", "price / played", "ms to price, to play"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for cluster in clusters:
        prices, found = strategies(cluster, overrides)
        pairs, ratios, took = [(one, two) for one in found for two in found if one != two], [], []
        prices.seconds(*pairs[0])  # compiles
        for one, two in pairs[:: len(pairs) // PAIRS]:
            prices.known.clear()
            begun = process_time()
            price = prices.seconds(one, two)
            priced = process_time()
            (before, left), (after, wanted) = found[one], found[two]
            held = elements_held(left, left.ends), elements_held(wanted, wanted.begins)
            step = switch_step(*held, prices.cost.cluster.gpus_per_node)
            assert step is not None
            played, ended = play_step(step, (), prices.cost.gpus).seconds, process_time()
            took.append((1e3 * (priced - begun), 1e3 * (ended - priced)))
            ratios.append(price / played)
            cells = f"{played:.3f} | {price:.3f} | {ratios[-1]:.2f} | {took[-1][0]:.1f}, {took[-1][1]:.0f}"
            print(f"| {cluster} | {before} | {after} | {cells} |", flush=True)
        median = np.median(took, axis=0)
        told = f"{len(ratios)} pairs: {min(ratios):.2f} to {max(ratios):.2f}, median {np.median(ratios):.2f}"
        print(f"{cluster}, {told}; {median[0]:.1f} ms to price and {median[1]:.0f} ms to play, median")


if __name__ == "__main__":
    with initialize_config_dir(str(CONF), version_base="1.3"):
        main(sys.argv[1:])
