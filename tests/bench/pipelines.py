"""Pipelines side by side, as Hydraulis plans them, estimated and played: seconds, fullest GPU, and where they go.

python -m tests.bench.pipelines [KEY=VALUE ...] # a800_4x8, llama_7b, longtail_128k, ZeRO-1; half a minute
python -m tests.bench.pipelines all             # and each step with all of its layers as one program

With system.tp_pp_pairs=... it is these pipelines alone.
"""

import sys
from time import process_time

import numpy as np
from hydra import compose, initialize_config_dir

from tests.bench.stages import CONF
from zbench.cost.memory.peak import peak_bytes
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.simulator.steps.play import play_some_layers, play_step
from zbench.step.passes.own_plans import plans_of_layouts

PAIRS_KEY = "system.tp_pp_pairs"
PAIRS = ("null", "[[8,1]]", "[[8,1],[2,1]]", "[[4,2]]", "[[8,2],[4,1]]", "[[2,4],[1,8]]")


KEYS = {
    "cluster": "a800_4x8",
    "model": "llama_7b",
    "workload": "longtail_128k",
    "system": "hydraulis",
    "tracker": "none",
    "executor": "simulated",
    "sharding": "zero1",
}


def row(keys: dict[str, str], every: bool) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"{key}={value}" for key, value in keys.items()])
    parts = Parts.of(config, Settings.of(config))
    batch, executor = parts.batch(0), parts.executor
    assert isinstance(executor, Simulated)
    plans = tuple(make_system(config, parts.cost).plan(batch))
    other, fullest = StepEstimate(parts.cost).seconds(plans), int(peak_bytes(plans, parts.cost).max())
    begin = process_time()
    step = executor.built(batch, plans)
    built = process_time() - begin
    played = play_step(step, plans_of_layouts(plans), parts.cost.gpus)
    print(f"{plans[0].notes['strategy']}: {len(plans_of_layouts(plans))} micro-batches, {len(step.order)} instances")
    print(f"  estimate    {other:.4f} s, {fullest / 2**30:.2f} GiB")
    print(f"  whole step  {played.seconds:.4f} s, {played.memory.peak.max() / 2**30:.2f} GiB, settled {played.settled}")
    most = int(np.argmax(played.busy["compute"] + played.busy["attend"]))
    spent = {name: round(float(seconds[most]), 4) for name, seconds in played.spent.items() if seconds[most] > 1e-3}
    print(f"  its seconds: {spent}; processor seconds {built:.1f} + {process_time() - begin - built:.1f}")
    if every:
        whole = play_some_layers(step, plans_of_layouts(plans), parts.cost.gpus, step.num_layers)
        print(f"  all layers as one program: {whole.seconds:.4f} s")


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    for pairs in PAIRS if PAIRS_KEY not in given else (given[PAIRS_KEY],):
        try:
            row({**KEYS, **given, PAIRS_KEY: pairs}, "all" in sys.argv)
        except ValueError as error:
            print(f"{pairs}: {error}")
