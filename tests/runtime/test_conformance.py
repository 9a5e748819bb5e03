"""Every system of conf/system trains for real and exactly: loss and every gradient against the dense model in float64,
and every byte against the simulator, on lengths that break things, at every small number of ranks."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.examples import chequered
from tests.helpers.variants import FOLDER, SYSTEMS, VARIANTS, Variant
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.mask import CAUSAL, FULL, Mask
from zbench.describe.model import Model
from zbench.interfaces.protocols import System
from zbench.proof.verify import verify_step
from zbench.runtime.attention_executor import TorchAttention
from zbench.workloads.fixed import Fixed

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = Device("cpu", 1e11, 4e9, 1e10, 1e9, 5e10, 5e10, 5e10, 1e-5, 1e-5)
MODEL = Model("mini", 2, 32, 4, 2, 8, 48, 64, element_bytes=8, lse_bytes=8)
LENGTHS = (
    (1,),
    (2, 3, 5, 7),
    (16,) * 8,
    (200, *[2] * 12),
    (*[1, 2, 3, 1] * 15,),
    (40, 9),  # fewer sequences than ranks
)
DEEPSPEED = Variant(FOLDER / "ulysses_deepspeed.yaml")  # sends messages of its own, which the simulator does not charge
OURS = [system for system in SYSTEMS if system != DEEPSPEED]
MANY = tuple([1, 2, 3, 1] * 125)  # on one shape only
# name: nodes, GPUs and NICs a node, and what of the model and the executor is tried there besides
SHAPES = {
    "1": ((1, 1, 1), {"tied_embeddings": True}, {}),
    "1x2": ((1, 2, 1), {"recompute": "full"}, {}),
    "3x1": ((3, 1, 1), {"num_experts": 4, "experts_per_token": 2}, {}),
    "2x2": ((2, 2, 2), {}, {}),
    "1x4": ((1, 4, 2), {}, {"parameters": "sharded"}),
    "2x3": ((2, 3, 3), {"num_heads": 6, "num_kv_heads": 2}, {"kernel": "matmul"}),
}


def cost_of(shape: str, mask: Mask = CAUSAL) -> Cost:
    (nodes, gpus, nics), changes, _ = SHAPES[shape]
    cluster = Cluster("test", nodes, gpus, nics, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE)
    return Cost(
        cluster, replace(MODEL, mask=mask, **changes), pipelines=False
    )  # as zbench.run.parts makes it for this executor


@contextmanager
def running(shape: str, mask: Mask = CAUSAL, **settings: object) -> Iterator[tuple[Cost, TorchAttention]]:
    cost = cost_of(shape, mask)
    workload = Fixed(seed=0, tokens=64, length=64)
    executor = TorchAttention(cost, workload, warmup=0, **{**SHAPES[shape][2], **settings})
    executor.start()
    try:
        yield cost, executor
    finally:
        executor.stop()


def step(executor: TorchAttention, system: System, lengths: tuple[int, ...], number: int) -> float:
    """One checked step; its loss."""
    batch = Batch(np.array(lengths, np.int64), seed=0, step=number)
    plans = system.plan(batch)
    verify_step(batch, plans, executor.cost, memory=False)
    loss = executor.step(batch, plans).loss
    assert loss is not None
    return loss


def able(variants: list[Variant], cost: Cost) -> dict[Variant, System]:
    """The systems whose packages are installed; what else goes wrong, is wrong."""
    made = {}
    for which in variants:
        with suppress(pytest.skip.Exception):
            made[which] = which.make(cost)
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_every_system_is_exact_and_sends_what_the_simulator_charges(shape: str) -> None:
    with running(shape, check=("exact", "bytes")) as (cost, executor):
        systems = able(OURS, cost)
        assert len(systems) >= 5
        turn = list(SHAPES).index(shape)
        for number, (which, lengths) in enumerate(product(systems, (*LENGTHS, MANY))):
            # A cover of pairs: a system has each of the lengths on one shape, and is on every shape; on 2x2 MANY, too.
            if shape != "2x2" if lengths is MANY else (number + turn) % len(SHAPES):
                continue
            try:
                step(executor, systems[which], lengths, number)
            except Exception as error:
                error.add_note(f"{which} on {lengths[:8]}")
                raise


@pytest.mark.parametrize("shape", ["1x2", "3x1", "1x4"])  # recomputed; heads that do not divide; sharded
def test_attention_by_deepspeed_is_exact(shape: str) -> None:
    system = DEEPSPEED.make(cost_of(shape))  # skips where it is not installed
    with running(shape, check=("exact",)) as (_, executor):
        for number, lengths in enumerate(LENGTHS):
            step(executor, system, lengths, number)


@pytest.mark.parametrize(("shape", "mask"), [("2x2", FULL), ("2x2", Mask(window=9)), ("2x3", Mask(window=16))])
def test_every_scheme_is_exact_under_every_mask(shape: str, mask: Mask) -> None:
    """By both kernels of a CPU; nothing is sent that the simulator does not charge."""
    names = ("allgather", "fcp", "nodewise", "ring", "ulysses", "zeppelin")
    with running(shape, mask, check=("exact", "bytes")) as (cost, executor):
        systems = able([Variant(FOLDER / f"{name}.yaml") for name in names], cost)
        for number, (which, lengths) in enumerate(product(systems, ((2, 3, 5, 7), (90, 2, 33)))):
            try:
                step(executor, systems[which], lengths, number)
            except Exception as error:
                error.add_note(f"{which} on {lengths[:8]}")
                raise


def test_every_variant_is_exact_and_sends_what_the_simulator_charges() -> None:
    tried = [variant for (variant,) in chequered([variant for variant in VARIANTS if variant.changes], offset=0)]
    with running("2x2", check=("exact", "bytes")) as (cost, executor):
        systems = able(tried, cost).values()
        for number, system in enumerate(systems):  # as their yamls have them: on all lengths
            step(executor, system, LENGTHS[1::2][number % 3], number)


def test_loss_curves_do_not_depend_on_the_system(tmp_path: Path) -> None:
    """Three steps of training from the same weights: losses after two updates."""
    rng = np.random.default_rng(3)
    batches = [tuple(rng.integers(1, 60, rng.integers(1, 9)).tolist()) for _ in range(3)]
    with running("2x2") as (cost, executor):
        assert executor._fleet is not None
        executor._fleet.call("save", str(tmp_path / "start"), 0)
        curves = {}
        for which, system in able(SYSTEMS, cost).items():
            executor._fleet.call("load", str(tmp_path / "start"))
            curves[str(which)] = [step(executor, system, lengths, at) for at, lengths in enumerate(batches)]
    first = next(iter(curves.values()))
    assert first[-1] != first[0]
    for name, curve in curves.items():
        assert np.allclose(curve, first, rtol=1e-9, atol=0), name
