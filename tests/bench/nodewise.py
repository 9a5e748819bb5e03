"""Numbers of docs/planner.md: `python tests/bench/nodewise.py ablation | constants | sizes` (simulated; minutes each).

ablation: nodewise with one part switched off at a time. constants: nodewise and its rivals judged under other constants
of the cluster, planned with the nominal ones and with the true ones. sizes: bound ratio and planning time by size.
Ratios are geometric means over workloads and batches; planning is in milliseconds of processor time.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir

from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.run.warm import warm
from zbench.simulator.estimate.step import StepEstimate

CONF = Path(__file__).parents[2] / "conf"
WORKLOADS = ("longtail_128k", "arxiv", "github", "prolong64k", "byted_2m", "pystdlib")
STEPS = 2
PARTS = (
    "",
    "homes_where_lacking=false",
    "adopt_rivals=false",
    "share_heads=false",
    "share_heads=false adopt_rivals=false",
    "fewest_nodes=false",
    "place_cut_first=false",
    "fill_with_beginnings=false",
    "share_heads_across_nodes=false",
    "pair_backward_keys=false",
    "move_cuts=false",
    "move_sequences=false",
    "list_schedule=true",
    "sequence_groups=1",
    "head_chunks=1",
    "head_chunks=2",
    "played_placements=1",
    "played_placements=1 pair_backward_keys=false move_cuts=false",
    "played_placements=30 max_played_operations=10000000",
)
RIVALS = ("nodewise", "zeppelin", "flexsp", "usp")


def figures(overrides: Sequence[str], judge: str = "nominal", told: bool = False) -> tuple[list[float], list[float]]:
    """(bound ratio of every batch, milliseconds of planning)."""
    ratios, spent = [], []
    for workload in WORKLOADS:
        config = compose("config", [f"workload={workload}", "tracker=none", *overrides])
        parts = Parts.of(config, Settings.of(config))
        true = replace(parts.cost, cluster=constants(parts.cluster)[judge])
        system = make_system(config, true if told else parts.cost)
        warm(system)
        for step in range(STEPS):
            batch = parts.workload.batch(step)
            begin = time.process_time()
            plans = system.plan(batch)
            spent.append(1e3 * (time.process_time() - begin))
            estimate = StepEstimate(Cost(true.cluster, true.model))
            ratios.append(estimate.least_seconds(batch) / estimate.compared_seconds(batch, plans))
    return ratios, spent


def constants(of: Cluster) -> dict[str, Cluster]:
    device = of.device
    slow = replace(
        device,
        kernel_seconds=2 * device.kernel_seconds,
        call_seconds=2 * device.call_seconds,
        attention_forward_flops=device.attention_forward_flops / 2,
        attention_backward_flops=device.attention_backward_flops / 2,
    )
    return {
        "nominal": of,
        "NIC x 1.5": replace(of, nic_bandwidth=1.5 * of.nic_bandwidth),
        "NIC x 0.5": replace(of, nic_bandwidth=0.5 * of.nic_bandwidth),
        "NVLink x 0.5": replace(of, nvlink_bandwidth=0.5 * of.nvlink_bandwidth),
        "latency x 3": replace(of, nic_latency=3 * of.nic_latency, nvlink_latency=3 * of.nvlink_latency),
        "attention x 2": replace(of, device=slow),
    }


def mean(ratios: list[float]) -> str:
    return f"{np.exp(np.mean(np.log(ratios))) if min(ratios) > 0 else 0:.3f}"


def ablation() -> None:
    for part in PARTS:
        switches = [f"system.{switch}" for switch in part.split()]
        row = [mean(figures(["system=nodewise", *switches, f"cluster={c}"])[0]) for c in ("a800_4x8", "h800_4x8")]
        large = ("cluster=a800_4x8", "cluster=h800_4x8")
        row += [mean(figures(["system=nodewise", *switches, c, "cluster.num_nodes=16"])[0]) for c in large]
        print("|", part or "everything", "|", " | ".join(row), "|", flush=True)


def other_constants() -> None:
    for name in ("nominal", "NIC x 1.5", "NIC x 0.5", "NVLink x 0.5", "latency x 3", "attention x 2"):
        for told in (False, True):
            row = [mean(figures([f"system={system}", "cluster=a800_4x8"], name, told)[0]) for system in RIVALS]
            print("|", name, "|", "told" if told else "not told", "|", " | ".join(row), "|", flush=True)


def sizes() -> None:
    for nodes in (2, 4, 8, 16, 128):
        for system, *keys in (("nodewise",), ("nodewise", "system.adopt_rivals=false"), ("zeppelin",)):
            ratios, spent = figures([f"system={system}", *keys, "cluster=a800_4x8", f"cluster.num_nodes={nodes}"])
            print(
                "|",
                8 * nodes,
                "|",
                " ".join([system, *keys]),
                "|",
                mean(ratios),
                f"| {np.median(spent):.0f} | {max(spent):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    with initialize_config_dir(str(CONF), version_base="1.3"):
        {"ablation": ablation, "constants": other_constants, "sizes": sizes}[sys.argv[1]]()
