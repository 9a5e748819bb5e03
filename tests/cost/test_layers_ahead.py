"""Planners' memory of layers whose parameters are gathered ahead, beside live ranges of steps with other windows."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.cost.test_stage_memory import CHUNK, LEVELS, job
from tests.helpers.examples import chequered
from tests.helpers.variants import SYSTEMS, Variant
from zbench.cost.cost import Cost
from zbench.cost.memory.needs import check_layers_ahead, check_memory, memory_of
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.memory.state import WholeBytes
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.interfaces.abilities import Chooses
from zbench.simulated.executor import Simulated
from zbench.systems.local_packing import LocalPacking

LAYERS = 8
WINDOWS = [0, 1, 2, 4, 8]


def ahead(window: int, sharding: str | ShardDegrees = "zero3", vocab: int = 1000, **model: Any) -> Cost:
    """A job of eight layers that planners know the window of."""
    return replace(job(vocab, num_layers=LAYERS, sharding=sharding, **model), layers_ahead=window)


def share_of_reckoned(cost: Cost, length: int, micro_batches: int) -> float:
    """Live ranges over planners' memory, of the fullest GPUs, where every rank has a sequence in each micro-batch; on
    no GPU are they more."""
    batch = Batch(np.full(micro_batches * cost.cluster.num_ranks, length), 0, 0)
    plans = LocalPacking(cost, pack_tokens=length).plan(batch)
    assert len(plans) == micro_batches
    found = np.array(Simulated(cost, window=cost.layers_ahead).step(batch, plans).peak_bytes)
    reckoned = peak_bytes(plans, cost)
    assert (found <= reckoned).all()
    return float(found.max() / reckoned.max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("recompute", "chunk"), LEVELS)
def test_layers_gathered_ahead_are_reckoned(recompute: str, chunk: int | str, window: int) -> None:
    """Never less than live ranges and to 1 %, where the loss is fullest and where a layer is."""
    offset = LEVELS.index((recompute, chunk)) + WINDOWS.index(window)
    for vocab, length in chequered((1000, 128256), (2 * CHUNK, 4096), offset=offset):
        cost = ahead(window, vocab=vocab, recompute=recompute, mlp_chunk_tokens=chunk)
        assert share_of_reckoned(cost, length, 3) >= 0.99


@pytest.mark.parametrize("window", WINDOWS)
def test_layers_of_a_stage_are_gathered_ahead(window: int) -> None:
    """Two stages of four layers, of which no more can be ahead: never less than live ranges and to 2 %."""
    for vocab, length in product((1000, 128256), (2 * CHUNK, 4096)):
        cost = ahead(window, vocab=vocab, pipeline_parallel=2)
        assert share_of_reckoned(cost, length, 5) >= 0.98


@pytest.mark.parametrize("which", SYSTEMS, ids=str)
def test_no_system_needs_more_than_it_reckons_whatever_the_window(which: Variant) -> None:
    lengths = np.array([24000, 9000, 3000, 3000, 1000, 700, 200])
    for (window,) in chequered((0, 2, LAYERS), offset=SYSTEMS.index(which), one_in=3):
        cost = replace(ahead(window, recompute="full"), pipelines=False)
        system = which.make(cost)
        if isinstance(system, Chooses):
            pytest.skip(f"{which} plans with what it chose before a run, as mesh does")
        batch = Batch(lengths, 0, 0)
        plans = system.plan(batch)
        found = np.array(Simulated(cost, window=window).step(batch, plans).peak_bytes)
        assert (found <= peak_bytes(plans, cost)).all()


@pytest.mark.parametrize("degrees", [(4, 4, WORLD, WORLD), (2, 2, 4, WORLD)])
def test_nested_degrees_gather_as_many_layers(degrees: tuple[int, int, int, int]) -> None:
    for window in WINDOWS:
        cost = ahead(window, ShardDegrees(*degrees))
        batch = Batch(np.full(3 * cost.cluster.num_ranks, 512), 0, 0)
        plans = LocalPacking(cost, pack_tokens=512).plan(batch)
        found = np.array(Simulated(cost, window=window).step(batch, plans).peak_bytes)
        assert (found <= peak_bytes(plans, cost)).all()


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2"])
def test_parameters_that_stay_whole_are_there_once(sharding: str) -> None:
    assert WholeBytes.of(ahead(8, sharding), LAYERS) == WholeBytes.of(ahead(0, sharding), LAYERS)


def test_a_window_is_no_more_than_all_layers() -> None:
    assert WholeBytes.of(ahead(8), LAYERS) == WholeBytes.of(ahead(100), LAYERS)


def test_a_window_beyond_memory_is_refused_by_its_name() -> None:
    cost = ahead(4)
    room = memory_of(ahead(2)).bytes(1)
    cost = replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=room)))
    check_memory(replace(cost, layers_ahead=2))
    with pytest.raises(
        ValueError, match=r"^sharding\.window is 4 and .* GiB on every GPU, .* use sharding\.window=2, "
    ):
        check_memory(cost)
    with pytest.raises(ValueError, match="use sharding\\.window=2, "):  # before an executor says what it takes at most
        check_layers_ahead(cost)
    check_layers_ahead(replace(cost, layers_ahead=2))
    check_layers_ahead(replace(cost, layers_ahead=LAYERS + 1))  # more than there are, which is another sentence's
