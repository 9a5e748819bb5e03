"""Whole steps with activations on hosts, of plans that know what they wait for beside those of planners that do not.

python -m tests.bench.priced_hosts [key=value ...]   # two minutes; docs/memory/activations.md has what came of it

Six systems (or systems=a,b with ZeRO-3), four workloads, two clusters, all layers on hosts and as few as fit, one batch
each, simulated: seconds of the plans that are made without what layers wait for, and of those that are taken; the
ratio, micro-batches, most layers on hosts, and how far the estimate that plans were chosen by is from the clock. Keys
replace USUAL's.
"""

import sys
from itertools import product
from statistics import geometric_mean, median

from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.interfaces.dealt import BestPlans
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.offloading import UNPRICED, HostPrices

SYSTEMS = {"hydraulis": "zero1", **dict.fromkeys(("bytescale", "zeppelin", "flexsp", "wlb_llm", "fcp"), "zero3")}
WORKLOADS, CLUSTERS = ("longtail_128k", "github", "prolong64k", "byted_2m"), ("h100_4x8", "a800_4x8")
USUAL = ("model=llama3_8b", "tokens_per_gpu=16384", "memory=loss", "memory.offload=activations", "recompute=none")


def played(words: list[str]) -> tuple[StepResult, StepResult, tuple[Plan, ...], tuple[Plan, ...], float]:
    """Results and plans without and with what layers wait for, and the estimate of these."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", words)
    parts = Parts.of(config, Settings.of(config))
    system, batch = make_system(config, parts.cost), parts.batch(0)
    assert isinstance(system, BestPlans)
    before, after = tuple(system.tried[UNPRICED].plan(batch)), system.plan(batch)
    results = []
    for plans in (before, after):
        parts.executor.start()  # so that no change of pipelines comes before a step
        results.append(parts.executor.step(batch, plans))
    old, new = results
    return old, new, before, after, HostPrices(parts.cost).price(batch, after)


def main(words: list[str]) -> None:
    named = [word.removeprefix("systems=").split(",") for word in words if word.startswith("systems=")]
    systems = dict.fromkeys(named[0], "zero3") if named else SYSTEMS
    words = [word for word in words if not word.startswith("systems=")]
    for layers in ("all", "auto"):
        ratios, misses = list[float](), list[float]()
        for cluster, workload, (system, sharding) in product(CLUSTERS, WORKLOADS, systems.items()):
            own = [f"system={system}", f"sharding={sharding}", f"cluster={cluster}", f"workload={workload}"]
            old, new, before, after, reckoned = played([*USUAL, *own, f"memory.offload_layers={layers}", *words])
            ratios.append(new.seconds / old.seconds)
            misses.append(abs(reckoned / new.seconds - 1))
            most = [max((one.recompute or {}).get("offloaded_layers", [0])) for one in (old, new)]
            print(
                f"{layers:4} {cluster} {workload:13} {system:9} {old.seconds:7.3f} {new.seconds:7.3f} "
                f"{ratios[-1]:5.3f}  {len(before)} {len(after)}  {most[0]:2} {most[1]:2}  {misses[-1]:6.2%}",
                flush=True,
            )
        print(
            f"{layers}: {geometric_mean(ratios):.3f} of the time, {min(ratios):.3f} to {max(ratios):.3f}; estimates "
            f"{median(misses):.1%} off at the median, {max(misses):.1%} at most"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
