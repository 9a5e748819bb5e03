"""Steps to break: every system of conf/system plans small adversarial batches for small clusters. An edge: hydra.

A case is a function of (seed, system, number) alone.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from numpy.random import Generator
from omegaconf import OmegaConf

from zbench import CONF
from zbench.correctness.reference.judge import CorrectStep
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.passes import route
from zbench.passes.reverse import MODES

# Nodes, GPUs and NICs of a node: one NIC for all, some, or one each; ranks that heads do not divide among them.
SHAPES = ((2, 2, 2), (2, 4, 2), (1, 4, 2), (3, 2, 1), (2, 3, 2), (2, 4, 4), (4, 2, 2))
HEADS = ((4, 2), (2, 2), (6, 3), (3, 1), (4, 4), (8, 2))  # query and kv heads
PRIMES = (2, 3, 5, 7, 11, 13, 17, 31, 61)
# Keys of systems' yamls by which they leave a few thousand tokens uncut, and values at which they cut a few dozen.
GRAINS = {
    "block_tokens": 16,
    "pack_tokens": 64,
    "tokens_per_rank": 16,
    "imbalance_tolerance": 0,
    "reshuffle_tolerance": 0,
    "remap_tolerance": 0,
}
# Little compute and quick starts: planners have a reason to cut even a few dozen tokens. And a GPU's proportions.
SHARP = Device("sharp", 1e12, 80e9, 1e12, 1e12, 1e10, 1e9, 1e9, 1e-12, 1e-12)
REAL = Device("real", 1e15, 80e9, 2e12, 3e11, 5e14, 6e14, 5e14, 5e-6, 6e-5)


def case(seed: int, system: str, number: int) -> CorrectStep:
    """Makes the case of that number; settings that a cluster cannot have are drawn again."""
    rng = np.random.default_rng([seed, zlib.crc32(system.encode()), number])
    for _ in range(100):
        cost = _cost(rng)
        batch = Batch(_lengths(rng), seed=seed, step=number)
        try:
            settings = _settings(rng, CONF / "system" / f"{system}.yaml")
            made = instantiate(settings, _partial_=True, _convert_="all")(cost=cost)
            plans = tuple(made.plan(batch))
        except ValueError:
            continue
        if rng.random() < 0.4:
            plans = tuple(plan if plan.pipelines is not None else route(plan, cost) for plan in plans)
        return CorrectStep(system, cost, batch, plans)
    raise ValueError(f"--systems has {system}, which has planned none of 100 small batches")


def _settings(rng: Generator, path: Path) -> Any:
    """Reads the system's yaml and makes it finer, every other time with a switch or the backward mode changed."""
    node: Any = OmegaConf.load(path)
    for name, tokens in GRAINS.items():
        if name in node and rng.random() < 0.7:
            node[name] = tokens
    others = [*_others(node)]
    if others and rng.random() < 0.5:
        name, value = others[rng.integers(len(others))]
        node[name] = value
    return node


def _others(node: Any) -> Iterator[tuple[str, object]]:
    for name, value in node.items():
        if isinstance(value, bool):
            yield name, not value
        elif name == "received_kv":
            yield from ((name, mode) for mode in MODES if mode != value)


def _drawn(rng: Generator, names: tuple[str, str, str]) -> str:
    """Draws one of three names, the last one half of the time."""
    return names[int(np.searchsorted((0.3, 0.5), rng.random(), side="right"))]


def _cost(rng: Generator) -> Cost:
    nodes, gpus, nics = SHAPES[rng.integers(len(SHAPES))]
    heads, kv_heads = HEADS[rng.integers(len(HEADS))]
    device = SHARP if rng.random() < 0.8 else REAL
    slow = 1e9 if rng.random() < 0.5 else 25e9
    cluster = Cluster("small", nodes, gpus, nics, slow, 0.8, 0.0, 2e11, 0.6, 0.0, device)
    recompute = _drawn(rng, ("full", "selective", "none"))
    model = Model("small", 2, 16, heads, kv_heads, 3, 32, 64, recompute=recompute)  # type: ignore[arg-type]
    model = replace(model, sharding=_drawn(rng, ("zero3", "zero2", "zero1")))  # type: ignore[arg-type]
    return Cost(cluster, model, pipelines=bool(rng.random() < 0.7))


def _lengths(rng: Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draws ones, primes, all equal, one giant, a long tail, or anything: up to about a thousand tokens."""
    count = int(rng.integers(1, 8))
    kind = rng.integers(6)
    if kind == 0:
        found = [1] * count
    elif kind == 1:
        found = rng.choice(PRIMES, min(count, 4)).tolist()
    elif kind == 2:
        found = [int(rng.integers(1, 120 // count))] * count
    elif kind == 3:
        found = [int(np.exp(rng.uniform(4, 6.5))), *[1] * (count - 1)]
    elif kind == 4:
        longest = np.exp(rng.uniform(4, 6))
        found = [max(int(longest / (rank + 1) ** 1.5), 1) for rank in range(count)]
    else:
        found = rng.integers(1, 30, count).tolist()
    return np.array(found, np.int64)
