"""Runs every system's plans for real by several ranks, as whole steps or by the executor of attention's plans: loss and
gradients are compared with the dense model's, losses with the CPU's. Where there are fewer GPUs than ranks, the ranks
share them (zbench.runtime.processes.rendezvous).

The driver's side: imports no torch.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig

from zbench import CONF
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.proof.verify import verify_step
from zbench.run.choices import missing_package
from zbench.run.system import make_system
from zbench.runtime.attention_executor import TorchAttention
from zbench.runtime.driver import CheckFailed, Diverged
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.step_executor import Torch
from zbench.workloads.fixed import Fixed

# Two nodes of two ranks, as far as plans are concerned; grouped heads of 64, fewer kv heads than some plans have ranks.
MODEL = Model(
    "correctness", num_layers=2, hidden=256, num_heads=4, num_kv_heads=2, head_dim=64, ffn_hidden=384, vocab=256
)
SHAPE = {"num_nodes": 2, "gpus_per_node": 2, "nics_per_node": 2}
# One sequence that every system cuts, others around a kernel's tile, some below it; nothing divides by the ranks.
LENGTHS = (701, 257, 130, 129, 127, 64, 33, 17, 5, 1)
# By the name of their yaml: that of whole steps, which is taken where none is asked for, and the other one.
EXECUTORS: Mapping[str, type[Torch] | type[TorchAttention]] = {"torch": Torch, "torch_attention": TorchAttention}
TIMEOUT = 120.0  # seconds without progress: four ranks that share a GPU, each with a reference to wait for


@dataclass(frozen=True, slots=True)
class Precision:
    """A number format that ranks compute in.

    check: against the dense model, of zbench.run.settings.CHECKS. loss: largest relative difference that the loss may
    have to the CPU's in float32.
    """

    name: str
    element_bytes: int
    check: Sequence[str]
    loss: float

    def model(self) -> Model:
        """Returns the small model with elements of this format."""
        return replace(MODEL, element_bytes=self.element_bytes, lse_bytes=max(4, self.element_bytes))


# A loss is a mean over some 1,400 tokens, in which rounding errors cancel; float32's own are 6e-8, bfloat16's 4e-3.
PRECISIONS = (
    Precision("float64", 8, ("exact", "bytes"), 1e-5),
    Precision("float32", 4, ("float32", "bytes"), 1e-5),
    Precision("bfloat16", 2, ("bytes",), 1e-2),
)
REFERENCE = PRECISIONS[1]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of one system's step.

    loss: None where it did not come to one, which `message` tells. worst: relative difference to the dense model, None
    where that was not asked for. about: what the ranks said of themselves. skipped: the system needs a package that is
    not here, or the executor does not run what a package computes.
    """

    loss: float | None
    worst: float | None
    message: str
    about: Any
    skipped: bool = False


def outcomes(
    names: Sequence[str], precision: Precision, device: str, runs: str = "torch"
) -> Iterator[tuple[str, StepOutcome]]:
    """Yields the outcome of one step of each system, on the same batch and the same initial weights; device: of
    zbench.runtime.job.job.DEVICES. runs: the executor, of EXECUTORS.

    A system that fails ends nobody else's step: the others go on with ranks of their own.
    """
    whole_steps = EXECUTORS[runs] is Torch  # of which planners may choose pipelines
    cost = make_cost(_cluster(), precision.model(), pipelines=whole_steps, even_slices=whole_steps)
    batch = Batch(np.array(LENGTHS, np.int64), seed=0, step=0)
    left = deque(names)
    while left:
        with _running(EXECUTORS[runs], cost, precision, device) as (executor, about):
            alive = True
            while left and alive:
                name = left.popleft()
                outcome, alive = _outcome(name, executor, precision, batch, about)
                yield name, outcome


@contextmanager
def _running(
    kind: type[Torch] | type[TorchAttention], cost: Cost, precision: Precision, device: str
) -> Iterator[tuple[Torch | TorchAttention, Any]]:
    """Starts an executor and yields it with what its ranks say. Its learning rate is 0: every step is at the initial
    weights."""
    workload = Fixed(seed=0, tokens=64, length=64)  # only its tokens are taken, made ones
    executor = kind(
        cost,
        workload,
        optimizer={"lr": 0.0},
        timeout=TIMEOUT,
        warmup=0,
        check=precision.check,
        device=device,
    )
    ready = executor.start()
    try:
        yield executor, ready.about["ranks"]
    finally:
        executor.stop()


def _outcome(
    name: str, executor: Torch | TorchAttention, precision: Precision, batch: Batch, about: Any
) -> tuple[StepOutcome, bool]:
    """Takes one step of a system: returns (what came of it, whether the ranks are still there)."""
    if package := missing_package(name):
        return StepOutcome(None, None, f"{package}, of the extra 'peers', is not installed", about, skipped=True), True
    plans = make_system(_config(f"system={name}"), executor.cost).plan(batch)
    verify_step(batch, plans, executor.cost, memory=False)
    packages = sorted({plan.attention for plan in plans} - {""})
    if packages and isinstance(executor, Torch):
        told = f"{packages[0]} computes the attention of {name}, which --executor torch_attention runs"
        return StepOutcome(None, None, told, about, skipped=True), True
    own = not packages  # another package's messages are not the plan's
    executor.check = [check for check in precision.check if own or check != "bytes"]
    try:
        result = executor.step(batch, plans)
    except (CheckFailed, Diverged, ValueError) as error:
        return StepOutcome(None, None, str(error), about), True
    except RankFailed as error:
        return StepOutcome(None, None, str(error), about), False
    worst = next((value for check, value in result.checks.items() if check != "bytes"), None)
    return StepOutcome(result.loss, worst, "", about), True


def _cluster() -> Cluster:
    """Returns a cluster that plans can be made for: its constants decide nothing that is compared."""
    config = _config("cluster=h200_4x8", *(f"cluster.{key}={value}" for key, value in SHAPE.items()))
    cluster = instantiate(config.cluster, _convert_="all")
    assert isinstance(cluster, Cluster)
    return cluster


def _config(*overrides: str) -> DictConfig:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("config", overrides=list(overrides))
