"""Zeppelin's plans on H800 (docs/systems/zeppelin.md): `python tests/bench/proxies.py`, simulated ms of a layer.

The first prolong64k batch on h800_4x8: every partition that zeppelin compares, by its estimate and played over all NICs
of a node, over fewer, directly, with received kv kept, and with links that take no time.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hydra import compose, initialize_config_dir

from zbench.cost.cost import Cost
from zbench.passes.route import narrowed, unrouted
from zbench.plans.plan import Plan
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.simulator.estimate.step import layer_seconds
from zbench.systems.zeppelin.partition import partitions
from zbench.systems.zeppelin.planner import Zeppelin
from zbench.systems.zeppelin.timed import LAYERS

CONF = Path(__file__).parents[2] / "conf"


def main() -> None:
    config = compose("config", ["system=zeppelin", "tracker=none", "cluster=h800_4x8", "workload=prolong64k"])
    parts = Parts.of(config, Settings.of(config))
    cost, batch = parts.cost, parts.workload.batch(0)
    free = replace(cost.cluster, nic_bandwidth=1e30, nic_latency=0.0, nvlink_bandwidth=1e30, nvlink_latency=0.0)
    ways: dict[str, Callable[[Plan], tuple[Plan, Cost]]] = {
        "8 NICs": lambda plan: (plan, cost),
        "4 NICs": lambda plan: (narrowed(plan, cost, 4), cost),
        "2 NICs": lambda plan: (narrowed(plan, cost, 2), cost),
        "direct": lambda plan: (unrouted(plan), cost),
        "links that take no time": lambda plan: (plan, replace(cost, cluster=free)),
    }
    for one in partitions(batch.lengths, cost, 3, cost.cluster.nics_per_node, True):
        print(
            f"longest over {one.size[batch.lengths.argmax()]} GPUs, remap {one.remap}, estimate {1e3 * one.seconds:.1f}"
        )
        for backward in ("carry", "keep"):
            plan = Zeppelin(cost, received_kv=backward).partition_plan(batch, one)
            times = [f"{name} {1e3 * layer_seconds(*way(plan), LAYERS):.1f}" for name, way in ways.items()]
            print(f"  {backward}:", ", ".join(times))


if __name__ == "__main__":
    with initialize_config_dir(str(CONF), version_base="1.3"):
        main()
