"""Planners' estimate over whole steps, nominally and where matmuls have the rate of their shape.

python -m tests.bench.by_shape [KEY=VALUE ...] # a800_4x8, llama_7b, longtail_128k, ten batches; two minutes
"""

import sys

import numpy as np
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate

BATCHES = 10
KEYS = {"cluster": "a800_4x8", "model": "llama_7b", "workload": "longtail_128k", "tracker": "none"}
COLUMNS = [(system, degree) for degree in (1, 4) for system in ("zeppelin", "ulysses", "nodewise")]


def errors(keys: dict[str, str]) -> np.ndarray:
    """Returns the estimate of each batch's step over its seconds, less 1."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"{key}={value}" for key, value in keys.items()])
    parts = Parts.of(config, Settings.of(config))
    system, executor, found = make_system(config, parts.cost), parts.executor, []
    assert isinstance(executor, Simulated)
    for number in range(BATCHES):
        batch = parts.batch(number)
        plans = tuple(system.plan(batch))
        found.append(StepEstimate(parts.cost).seconds(plans) / executor.step(batch, plans).seconds - 1)
    return np.array(found)


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    for system, degree in COLUMNS:
        of = {**KEYS, "system": system, "parallel.tensor_parallel": str(degree), **given}
        told = [errors({**of, "world": world}) for world in ("nominal", "matmul_shapes")]
        means = ", ".join(
            f"{100 * one.mean():+.1f} % (from {100 * one.min():+.1f} to {100 * one.max():+.1f})" for one in told
        )
        print(f"{system}, TP {degree}: {means}")
