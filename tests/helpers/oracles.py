"""What tests of planners' quality share: small clusters and models of real proportions, and batches to enumerate."""

from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model

# An A100's and an H100's proportions (conf/cluster/device), 7B layers with all kv heads or a quarter of them.
A100 = Device("a100", 312e12, 40e9, 1.24e12, 2e11, 230e12, 217e12, 196e12, 5e-6, 6e-5)
H100 = Device("h100", 989e12, 80e9, 2.68e12, 3.1e11, 570e12, 705e12, 620e12, 5e-6, 6e-5)
MODELS = {
    "mha": Model("mha", 4, 4096, 32, 32, 128, 11008, 32000, sharding="zero3"),
    "gqa": Model("gqa", 4, 4096, 32, 8, 128, 14336, 128256, sharding="zero3"),
}


def small(nodes: int, gpus: int, device: Device = A100, model: str = "mha", memory: float | None = None) -> Cost:
    """nodes x gpus, a NIC a node; memory: bytes of a GPU, where not the device's."""
    device = device if memory is None else replace(device, memory_bytes=memory)
    cluster = Cluster("small", nodes, gpus, 1, 5e10, 0.8, 1.5e-5, 3e11, 0.6, 1e-5, device)
    return Cost(cluster, MODELS[model])


def batches(count: int, most: int = 8, seed: int = 0) -> list[Batch]:
    """Up to `most` sequences each, log-uniform from 64 to 32K tokens: often one that dwarfs the others."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, most + 1, count)
    return [
        Batch(np.exp(rng.uniform(np.log(64), np.log(32768), n)).astype(np.int64), 0, step)
        for step, n in enumerate(sizes)
    ]


def assignments(items: int, ranks: int) -> np.ndarray:
    """int64 [ranks^(items - 1), items]: every way to give items to ranks that are alike (the first item is fixed)."""
    grid = np.indices((ranks,) * (items - 1)).reshape(items - 1, -1).T if items > 1 else np.zeros((1, 0), np.int64)
    return np.concatenate([np.zeros((len(grid), 1), np.int64), grid], axis=1)
