"""Plans that know where ranks meet on the way to experts (simulated).

python -m tests.bench.expert_plans [MODEL ...] [batches=1,2]   # the first batch where none is named: two minutes

Nine workloads; of batches that are named the seven that are drawn. 4 nodes of 8 H800, seconds of whole steps by
nodewise: as if all experts were at a token's home (system.play_experts=false), by layers in which ranks meet on the way
to them, the faster of both (system.play_steps=true) over the first, and what is left where all is
shared evenly: the bound, and the way of as many tokens on every GPU to experts and home, all sent at once. The last is
no bound, as shared experts are computed beside messages. Last the seconds of a processor that a run's planning of the
batch took, and those of planning by layers alone.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from math import log

import numpy as np
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.expert_layer import ExpertLayer
from zbench.systems.nodewise.planner import Nodewise

DRAWN = ("longtail_128k", "arxiv", "github", "wikipedia", "prolong64k", "byted_2m", "pystdlib")
WORKLOADS = (*DRAWN, "fixed_128k", "fixed_512")
MODELS = {
    "deepseek_moe_16b": ("sharding=zero2", "parallel.expert_parallel=32"),
    "mixtral_8x7b": ("sharding=zero3", "parallel.expert_parallel=8"),
    "moe_8x550m": ("sharding=zero2", "parallel.expert_parallel=8"),
}
BATCHES = "batches="


def rows(model: str, workloads: Sequence[str], number: int) -> Iterator[tuple[str, *tuple[float, ...]]]:
    for workload in workloads:
        words = [f"model={model}", *MODELS[model], "cluster=h800_4x8", f"workload={workload}", "tracker=none"]
        words += ["system=nodewise", "system.play_steps=true"]
        config = compose("config", words)
        parts = Parts.of(config, Settings.of(config))
        cost, batch, layer = parts.cost, parts.batch(number), ExpertLayer.of(parts.cost)
        assert isinstance(parts.executor, Simulated)
        assert layer is not None
        steps = ComparedSteps(parts.executor)
        systems = Nodewise(cost, play_experts=False), Nodewise(cost), make_system(config, cost)
        before, by_layers, after = (steps.compared_seconds(batch, one.plan(batch)) for one in systems)
        alone, whole = (_planning_seconds(one, batch) for one in systems[1:])
        sent = cost.layers * layer.least_exchange(batch.num_tokens / cost.cluster.num_ranks)
        yield workload, before, by_layers, after, parts.executor.bound_seconds(batch) + sent, whole, alone


def _planning_seconds(system: System, batch: Batch) -> float:
    """Returns the seconds of a processor in which a system plans a batch."""
    begun = time.process_time()
    system.plan(batch)
    return time.process_time() - begun


def main(words: Sequence[str]) -> None:
    models = [one for one in words if not one.startswith(BATCHES)] or ["deepseek_moe_16b", "mixtral_8x7b"]
    numbers = [int(one) for word in words if word.startswith(BATCHES) for one in word.removeprefix(BATCHES).split(",")]
    for model in models:
        print(f"| {model} | at home | by layers | the faster | times as fast | shared evenly | planning | by layers |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        gains = []
        for number in numbers or [0]:
            for workload, *told in rows(model, DRAWN if numbers else WORKLOADS, number):
                before, by_layers, after, even, whole, alone = told
                seconds = f"{before:.3f} | {by_layers:.3f} | {after:.3f} | {before / after:.2f} | {even:.3f}"
                print(f"| {workload} | {seconds} | {whole:.2f} | {alone:.2f} |", flush=True)
                gains.append((log(before / by_layers), log(before / after)))
        layers, faster = np.exp(np.mean(gains, axis=0)).tolist()
        print(f"| geometric mean | | {layers:.3f} times | | {faster:.3f} | | | |", flush=True)


if __name__ == "__main__":
    with initialize_config_dir(version_base=None, config_dir=str(CONF)):
        main(sys.argv[1:])
