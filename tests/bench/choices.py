"""How planners choose, beside whole steps: `python -m tests.bench.choices [nodewise | static_best]` (simulated).

nodewise: the candidates that it plays for each batch, priced by planners' estimate, with its budget of NIC bytes, and
by zbench.simulator.estimate.beside, which it goes by, and played as whole steps. Regret is what the step of the
candidate with the least price takes more than the fastest candidate's; spread the standard deviation of whole step over
price inside a batch. static_best: its first candidates, ranked by planners' estimate, and played as whole steps on the
same batches.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.study import Sample
from zbench.plans.plan import Plan
from zbench.run.chosen import _study
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.target import from_yaml
from zbench.simulated.executor import Simulated
from zbench.simulator.attention import programs
from zbench.simulator.estimate.beside import seconds_beside
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.nodewise.layout import Layout
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.nodewise.trial import Task, Trial
from zbench.systems.static_best.search import ROUNDS, Race, grown, parallel_layouts

WORKLOADS, STEPS = ("longtail_128k", "github", "prolong64k", "byted_2m"), 2
NETWORKS = ((4, 2, 100), (4, 2, 200), (4, 4, 200), (4, 8, 200), (4, 8, 400), (2, 2, 200), (2, 8, 400))
PLAYED = 6  # candidates beside those that come of the fastest
PRICES: dict[str, Callable[[Batch, Plan, Cost], float]] = {
    "planners' estimate": lambda batch, plan, cost: StepEstimate(cost).seconds((plan,)),
    "beside": lambda batch, plan, cost: seconds_beside(plan, programs(plan, cost), cost, 2),
}


class Watched(Nodewise):
    """nodewise without rivals, that notes which plans it plays."""

    seen: list[Plan]

    def _play(self, task: Task, layout: Layout, pairs: bool = False) -> Trial:
        trial = Nodewise._play(self, task, layout, pairs)
        Watched.seen.append(trial.plan)
        return trial


def clusters() -> Iterator[list[str]]:
    for name in ("a800_4x8", "h800_4x8", "h200_4x8"):
        yield [f"cluster={name}"]
    for nodes, nics, gbit in NETWORKS:
        network = [f"cluster.nics_per_node={nics}", f"cluster.nic_bandwidth={gbit} Gbit/s"]
        yield ["cluster=h100_4x8", f"cluster.num_nodes={nodes}", *network]


def parts_of(overrides: Sequence[str]) -> tuple[Parts, Any]:
    config = compose("config", [*overrides, "tracker=none"])
    return Parts.of(config, Settings.of(config)), config


def batch_choice(batch: Batch, cost: Cost) -> dict[str, tuple[float, float]] | None:
    """(regret, spread) of every price; None where a batch is several micro-batches."""
    Watched.seen = []
    system = Watched(cost, adopt_rivals=False, played_placements=PLAYED, max_played_operations=10**7)
    if len(system.plan(batch)) > 1:
        return None
    whole = np.array([Simulated(cost).step(batch, (plan,)).seconds for plan in Watched.seen])
    found = {}
    for name, price in PRICES.items():
        priced = np.array([price(batch, plan, cost) for plan in Watched.seen])
        found[name] = float(whole[priced.argmin()] / whole.min() - 1), float(np.log(whole / priced).std())
    return found


def nodewise() -> None:
    print("| cluster | " + " | ".join(f"{name}: regret, most, spread" for name in PRICES) + " |\n|---|---|---|")
    every: list[dict[str, tuple[float, float]]] = []
    for cluster in clusters():
        here = []
        for workload in WORKLOADS:
            parts, _ = parts_of([*cluster, f"workload={workload}"])
            here += [one for step in range(STEPS) if (one := batch_choice(parts.batch(step), parts.cost))]
        every += here
        print(line(" ".join(cluster), here), flush=True)
    print(line("all", every))


def line(name: str, found: list[dict[str, tuple[float, float]]]) -> str:
    cells = []
    for price in PRICES:
        regret, spread = np.array([one[price] for one in found]).T
        cells.append(f"{regret.mean():.2%}, {regret.max():.2%}, {spread.mean():.2%}")
    return f"| {name} | {' | '.join(cells)} |"


def static_best() -> None:
    few, kept = ROUNDS[0]
    words = "cluster", "workload", "fit", "rank of the best by attention", "best of those that go on, over the best"
    print(f"| {' | '.join(words)} |\n|{'---|' * len(words)}")
    for cluster in ("a800_4x8", "h800_4x8"):
        for workload in WORKLOADS[:3]:
            parts, config = parts_of([f"cluster={cluster}", f"workload={workload}", "system=static_best"])
            study = _study(config, parts, from_yaml, lambda _: None)
            sample = Sample.of(study)
            race = Race(sample.some(few), sample.hard, study.clock)
            timed = [one for model, cost in parallel_layouts(study, ()) for one in grown(model, cost, "balanced", race)]
            timed = sorted((one for one in timed if one[0] < inf and race.fits(one[1])), key=lambda one: one[0])
            whole = np.array([one.seconds(race.few, study.clock) for _, one in timed])
            row = cluster, workload, len(timed), int(whole.argmin()), f"{whole[:kept].min() / whole.min():.3f}"
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    with initialize_config_dir(str(CONF), version_base="1.3"):
        {"nodewise": nodewise, "static_best": static_best}[(sys.argv[1:] or ["nodewise"])[0]]()
