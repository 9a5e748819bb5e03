"""Planners' estimate of a system's steps beside the same plans as whole steps: mean seconds of three batches.

python -m tests.bench.estimates system=ring system.wait=published cluster=a800_4x8,h100_4x8 workload=github

Words are settings of a run; of `cluster` and `workload` there may be several, with commas. All of it is simulated. A
step for which GPUs have no room is played all the same, and told with the GiB of the fullest.
"""

import sys
from itertools import product

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from zbench import CONF
from zbench.interfaces.published import VARIANT, published_keys
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.run.target import keys_and_published
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate

BATCHES = 3


def row(keys: list[str]) -> str:
    """Returns the seconds of both as cells of a row, and how full GPUs are that have no room. keys: KEY=VALUE."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*keys, "tracker=none"])
    given = {one.partition("=")[0].removeprefix("system.") for one in keys}
    own, published = keys_and_published(config["system"])
    OmegaConf.set_struct(config, False)
    config["system"].update(published_keys(own, published, given if config.get(VARIANT) else None))
    parts = Parts.of(config, Settings.of(config))
    system, estimate, clock = make_system(config, parts.cost), StepEstimate(parts.cost), Simulated(parts.cost)
    found, fullest = [], 0
    for batch in map(parts.batch, range(BATCHES)):
        plans = tuple(system.plan(batch))
        step = clock.step(batch, plans)
        found.append((estimate.seconds(plans), step.seconds))
        fullest = max(fullest, *step.peak_bytes)
    of_gpu = parts.cost.gpus.cluster.device.memory_bytes
    full = f" ({fullest / 2**30:.0f} of {of_gpu / 2**30:.0f} GiB)" if fullest > of_gpu else ""
    mean = np.mean(found, axis=0)
    return f"{mean[0]:.3f} | {mean[1]:.3f}{full}"


def main(words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    several = [given.pop(key, "").split(",") for key in ("cluster", "workload")]
    print("| cluster | workload | estimate, s | whole step, s |\n|---|---|---|---|")
    for cluster, workload in product(*several):
        keys = [f"{key}={value}" for key, value in given.items()]
        keys += [f"cluster={cluster}"] * bool(cluster) + [f"workload={workload}"] * bool(workload)
        print(f"| {cluster} | {workload} | {row(keys)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
