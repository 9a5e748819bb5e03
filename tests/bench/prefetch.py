"""What bringing parameters from hosts earlier can gain: steps with wider windows beside what no order of copies beats.

python -m tests.bench.prefetch [key=value ...]   # two to three minutes; docs/memory/optimizer.md has what came of it

llama_7b on 1, 4 and 8 GPUs of a node whose parameters all rest on hosts, with and without optimizer state there, two
links, three numbers of tokens, one batch each, simulated: seconds with windows of 0, 1 and the best of 2 to 4 layers;
with parameters on GPUs; what the ceiling leaves, which has the link's copies; and what the wider window gains where
parameters are on GPUs, as it gathers earlier, too. Keys replace USUAL's. GPUs have as much memory as it takes.
"""

import sys
from itertools import product

from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system

USUAL = (
    "cluster=h100_4x8", "cluster.num_nodes=1", "model=llama_7b", "sharding=zero3", "recompute=full", "workload=github",
    "system=zeppelin", "cluster.device.memory_bytes=640GiB",
)  # fmt: skip
WIDER = (2, 3, 4)


def played(words: list[str]) -> tuple[float, float]:
    """Seconds of a step, and of its ceiling."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", words)
    parts = Parts.of(config, Settings.of(config))
    batch = parts.batch(0)
    result = parts.executor.step(batch, make_system(config, parts.cost).plan(batch))
    assert result.ceiling_seconds is not None
    return result.seconds, result.ceiling_seconds


def main(words: list[str]) -> None:
    print("GPUs  on hosts                 link     tokens  window 0       1  2 to 4    gain  on GPUs    gain  ceiling")
    gains = list[float]()
    for gpus, offload, link, tokens in product((1, 4, 8), ("none", "optimizer"), (64, 32), (1024, 4096, 16384)):
        case = [
            *USUAL, f"cluster.gpus_per_node={gpus}", f"cluster.nics_per_node={gpus}", f"tokens_per_gpu={tokens}",
            f"cluster.host_bandwidth='{link} GB/s'", "memory=loss", f"memory.offload={offload}", *words,
        ]  # fmt: skip

        def on(layers: str, window: int, case: list[str] = case) -> tuple[float, float]:
            return played([*case, f"memory.parameter_layers={layers}", f"sharding.window={window}"])

        (none, _), (one, ceiling) = (on("all", window) for window in (0, 1))
        wider = min(on("all", window)[0] for window in WIDER)
        here, wider_here = on("none", 1)[0], min(on("none", window)[0] for window in WIDER)
        gains.append(1 - wider / one)
        print(
            f"{gpus:4}  {f'parameters, {offload}':23} {link} GB/s {tokens:7} {none:9.4f} {one:7.4f} {wider:7.4f} "
            f"{gains[-1]:7.1%} {here:8.4f} {1 - wider_here / here:7.1%} {ceiling / one:8.3f}",
            flush=True,
        )
    print(f"windows of 2 to 4 gain {sorted(gains)[len(gains) // 2]:.1%} at the median, {max(gains):.1%} at most")


if __name__ == "__main__":
    main(sys.argv[1:])
