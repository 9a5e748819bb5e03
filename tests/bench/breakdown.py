"""What a step takes beyond the bound: `python tests/bench/breakdown.py CLUSTER,... STEPS [OVERRIDE ...]` (simulated).

Shares of a step in per cent, means over batches and ranks; they add up to 1 - bound ratio. What a plan computes more
than the bound is counted: whole tiles and rows, kernel starts, joining partial results, copies between layouts. What it
waits for is played: the same plans on a cluster whose NICs take no time, then whose NVLink takes none either; what is
idle then is imbalance. `tail` is gathers and reductions that nothing hides, which the bound leaves out; `ceiling` the
bound ratio that a plan without any other loss would have (zbench.cost.bound); `calls` that of a plan whose only loss
is one attention call a direction on as few GPUs as attention needs, which no plan is without.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir

from tests.helpers.arithmetic import arithmetic, without_collectives
from zbench.cost.bound import bound_seconds, ceiling_seconds, least_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.joins import sum_seconds
from zbench.cost.use import Use
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.plans.area import work
from zbench.plans.plan import Plan
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.run.warm import warm
from zbench.simulator.estimate.step import StepEstimate

CONF = Path(__file__).parents[2] / "conf"
DRAWN = ("longtail_128k", "arxiv", "github", "wikipedia", "prolong64k", "byted_2m", "pystdlib")
WORKLOADS = {
    **{name: [f"workload={name}"] for name in DRAWN},
    "one giant": ["workload=fixed", "workload.length=131072"],
    "all short": ["workload=fixed", "workload.length=512"],
}
COLUMNS = ("tiles", "starts", "joins", "copies", "imbalance", "NVLink", "NIC", "tail")


def attending(plan: Plan, cost: Cost) -> Floats:
    """Seconds of all layers, mean over ranks: tiles and rows, kernel starts, joins, copies."""
    out = np.zeros(4)
    group = cost.model.num_heads // cost.model.num_kv_heads
    row = cost.model.head_dim * cost.model.element_bytes
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        attend, amount = work(plan, ops)
        kv_heads = -(-ops.head_hi[attend] // group) - ops.head_lo[attend] // group
        use = Use.of(plan, ops, attend, amount, kv_heads)
        stream = cost.stream_seconds(amount, use.heads, use.kv_heads, backward)
        kernel = cost.kernel_seconds(amount, use.heads, use.kv_heads, backward)
        joins = sum_seconds(cost.cluster.device, row, amount, use, backward, wrapped=False)
        whole = cost.attend_seconds(plan, ops, attend, amount, backward)
        out += [part.sum() for part in (stream, kernel - stream, joins, whole - kernel - joins)]
    return out * cost.model.num_layers / plan.num_ranks


def with_calls(batch: Batch, cost: Cost) -> float:
    """Seconds of a step without recomputation that no plan beats, even if the rest is hidden and even: the bound with
    one forward and one backward call a layer on every GPU that attends at all.

    A step of T seconds on P GPUs, k of which attend, has P T >= all work + k calls and k T >= attention + k calls.
    """
    ranks, layers = cost.cluster.num_ranks, cost.layers
    attention = layers * sum(float(least_seconds(batch.lengths, cost, back).sum()) for back in (False, True))
    optimizer = cost.optimizer_seconds()
    work = ranks * (bound_seconds(batch, cost) - optimizer)
    starts = layers * 9 * cost.cluster.device.kernel_seconds  # a kernel in the forward, eight in the backward
    attending = np.arange(1, ranks + 1)
    least = np.maximum((work + attending * starts) / ranks, attention / attending + starts)
    return float(least.min()) + optimizer


def parts_of(batch: Batch, plans: tuple[Plan, ...], cost: Cost) -> tuple[float, float, float, Floats]:
    """(bound ratio, bound over ceiling, bound over `with_calls`, shares of the step as in COLUMNS) of one step without
    recomputation."""
    cluster, bound = cost.cluster, bound_seconds(batch, cost)
    no_nic = replace(cluster, nic_bandwidth=1e30, nic_latency=0.0)
    nothing = replace(no_nic, nvlink_bandwidth=1e30, nvlink_latency=0.0)
    seconds = StepEstimate(cost).seconds(plans)
    with without_collectives():
        ends = [StepEstimate(replace(cost, cluster=where)).seconds(plans) for where in (cluster, no_nic, nothing)]
    counted = np.sum([attending(plan, cost) for plan in plans], axis=0)
    least = sum(float(least_seconds(batch.lengths, cost, back).sum()) for back in (False, True))
    counted[0] -= least * cost.model.num_layers / cluster.num_ranks
    busy = float(np.mean(np.add(*arithmetic(plans, cost)))) + cost.optimizer_seconds()
    waits = [ends[2] - busy, ends[1] - ends[2], ends[0] - ends[1], seconds - ends[0]]
    shares = np.array([*counted, *waits]) / seconds
    ceiling = ceiling_seconds(batch, cost, Collectives.of(cost))
    return bound / seconds, bound / ceiling, bound / with_calls(batch, cost), shares


def main() -> None:
    clusters, steps, overrides = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3:]
    for cluster in clusters:
        print(f"\n| {cluster} | ratio | ceiling | calls |", " | ".join(COLUMNS), "|")
        print("|---" * (4 + len(COLUMNS)) + "|")
        for name, workload in WORKLOADS.items():
            config = compose("config", ["system=nodewise", "tracker=none", f"cluster={cluster}", *workload, *overrides])
            made = Parts.of(config, Settings.of(config))
            system = make_system(config, made.cost)
            warm(system)
            rows = []
            for step in range(steps):
                batch = made.workload.batch(step)
                ratio, most, calls, shares = parts_of(batch, system.plan(batch), made.cost)
                rows.append([ratio, most, calls, *(100 * shares)])
            ratio, most, calls, *shares = np.mean(rows, axis=0)
            print(
                f"| {name} | {ratio:.3f} | {most:.3f} | {calls:.3f} |",
                " | ".join(f"{share:.1f}" for share in shares),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    with initialize_config_dir(str(CONF), version_base="1.3"):
        main()
