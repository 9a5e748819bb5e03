"""The conformance suite: what every system in conf/system owes, whatever it does.

A new yaml there is picked up by itself. tests/test_exact.py adds that its outputs and gradients are right.
"""

from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import batches, costs
from variants import SYSTEMS, VARIANTS, Variant

from zbench.batch import Batch
from zbench.collective import GRADIENT_BYTES, nic_bytes
from zbench.correctness.byte_law import Bytes, step_bytes
from zbench.correctness.judge import charged_bytes
from zbench.cost import Cost
from zbench.plan import COLUMNS, TRANSFER, Plan
from zbench.protocols import System
from zbench.simulate import Simulated
from zbench.verify import verify_step

every_system = pytest.mark.parametrize("which", SYSTEMS, ids=str)
every_variant = pytest.mark.parametrize("which", VARIANTS, ids=str)


def drawn(
    data: st.DataObject, which: Variant, most: int = 30_000, nodes: int = 4, gpus: int = 8
) -> tuple[Cost, Batch, System]:
    cost = data.draw(costs(nodes, gpus))
    return cost, data.draw(batches(most, 20)), which.make(cost)


def same(one: Plan, other: Plan) -> bool:
    """Equal in every array."""
    if (one.num_ranks, one.num_heads, one.causal, one.backward_mode, one.attention) != (
        other.num_ranks, other.num_heads, other.causal, other.backward_mode, other.attention
    ):  # fmt: skip
        return False
    if (one.pipelines and one.pipelines.layout) != (other.pipelines and other.pipelines.layout):
        return False
    pairs = [(one.lengths, other.lengths), (one.sequences, other.sequences)]
    for name in ("seq", "start", "stop", "block", "home"):
        pairs.append((getattr(one.blocks, name), getattr(other.blocks, name)))
    for name in ("lists", "lanes"):
        pairs.append((getattr(one, name).offsets, getattr(other, name).offsets))
        pairs.append((getattr(one, name).items, getattr(other, name).items))
    for name in ("forward", "backward"):
        pairs += [(getattr(getattr(one, name), c), getattr(getattr(other, name), c)) for c in COLUMNS]
    return all(np.array_equal(a, b) for a, b in pairs)


@every_variant
@given(st.data())
def test_plans_are_correct_and_own_every_token_once(which: Variant, data: st.DataObject) -> None:
    cost, batch, system = drawn(data, which)
    plans = system.plan(batch)
    assert isinstance(plans, tuple)
    verify_step(batch, plans, cost)
    assert sum(int(plan.tokens_per_rank.sum()) for plan in plans) == batch.num_tokens
    for plan in plans:
        assert plan.num_ranks == cost.cluster.num_ranks
        assert plan.num_heads == cost.model.num_heads


@every_system
@given(st.data())
def test_plans_are_a_pure_function_of_the_batch(which: Variant, data: st.DataObject) -> None:
    """Neither what was planned before, nor the step's number, nor writing to the batch changes a plan."""
    cost, batch, system = drawn(data, which)
    first = system.plan(batch)
    before = batch.lengths.copy()
    other = data.draw(batches(30_000, 20))
    system.plan(other)
    again = system.plan(Batch(batch.lengths, seed=batch.seed + 1, step=batch.step + 1))
    fresh = which.make(cost).plan(batch)
    assert len(first) == len(again) == len(fresh)
    assert all(same(a, b) and same(a, c) for a, b, c in zip(first, again, fresh, strict=True))
    assert np.array_equal(before, batch.lengths)


@every_system
@given(st.data())
def test_a_step_is_sound_and_repeats_itself(which: Variant, data: st.DataObject) -> None:
    cost, batch, system = drawn(data, which)
    plans = system.plan(batch)
    result = Simulated(cost).step(batch, plans)
    assert asdict(result) == asdict(Simulated(cost).step(batch, system.plan(batch)))
    ranks, nics = cost.cluster.num_ranks, cost.cluster.num_nics
    assert 0 < result.bound_seconds <= result.seconds * (1 + 1e-9)
    for name in ("attention_seconds", "linear_seconds", "communication_seconds", "exposed_seconds", "peak_bytes"):
        values = getattr(result, name)
        assert len(values) == ranks
        assert min(values) >= 0
    assert len(result.nic_tx_bytes) == len(result.nic_rx_bytes) == nics
    for busy in zip(result.attention_seconds, result.linear_seconds, strict=True):
        assert sum(busy) <= result.seconds * (1 + 1e-9)
    for moving, exposed in zip(result.communication_seconds, result.exposed_seconds, strict=True):
        assert exposed <= moving * (1 + 1e-9) + 1e-12
    for field in fields(result):  # what a record can hold: no numpy scalars, no infinities
        _plain(getattr(result, field.name))
    assert result.out_of_memory == (max(result.peak_bytes) > result.capacity_bytes)


def _plain(value: object) -> None:
    if isinstance(value, list):
        for item in value:
            _plain(item)
    elif isinstance(value, dict):
        _plain(list(value.values()))
    else:
        assert value is None or type(value) in (int, float, bool)
        assert value is None or np.isfinite(value)


@every_variant
@given(st.data())
def test_bytes_are_those_of_the_plan_s_transfers(which: Variant, data: st.DataObject) -> None:
    """By the law of bytes: of every NIC and NVLink port, in and out; parameters and gradients are NICs' even share."""
    cost, batch, system = drawn(data, which, most=2000)
    model = cost.model
    plans = system.plan(batch)
    law = step_bytes(plans, cost)
    if plans[0].pipelines is not None:  # tests/test_pipelined.py counts what goes between their ranks
        assert not any(getattr(law, name).any() for name in Bytes.__dataclass_fields__)
        return
    result = Simulated(cost).step(batch, plans)
    params = float(model.total_params)
    rounds = len(plans) if model.sharding == "zero3" else 1
    gathers, reductions = {"none": (0, 2), "zero1": (1, 1), "zero3": (2, 1)}[model.sharding]
    shared = gathers * nic_bytes(cost, model.element_bytes * params)
    shared = rounds * (shared + reductions * nic_bytes(cost, GRADIENT_BYTES * params))
    assert result.nic_tx_bytes == (law.nic_tx + shared).tolist()
    assert result.nic_rx_bytes == (law.nic_rx + shared).tolist()
    assert result.nvlink_bytes == law.nvlink_tx.sum() == law.nvlink_rx.sum()
    charged = charged_bytes(plans, cost)
    for name in Bytes.__dataclass_fields__:
        assert getattr(charged, name).tolist() == getattr(law, name).tolist()
    if cost.cluster.num_nodes == 1:
        assert set(result.nic_tx_bytes) == {0}


@every_system
@pytest.mark.parametrize("lengths", [[1], [7919], [3, 5, 7, 11, 13], [60_000, *[1] * 40], [512] * 30], ids=str)
def test_named_batches(which: Variant, lengths: list[int], uneven: Cost) -> None:
    """One token; a prime; shorter than the 15 ranks; one giant; all equal."""
    batch = Batch(np.array(lengths), 0, 0)
    plans = which.make(uneven).plan(batch)
    verify_step(batch, plans, uneven)
    assert Simulated(uneven).step(batch, plans).seconds > 0


@every_system
def test_one_rank_sends_nothing(which: Variant, uneven: Cost) -> None:
    alone = replace(uneven, cluster=replace(uneven.cluster, num_nodes=1, gpus_per_node=1, nics_per_node=1))
    batch = Batch(np.array([100, 7, 31]), 0, 0)
    plans = which.make(alone).plan(batch)
    verify_step(batch, plans, alone)
    for plan in plans:
        assert not (plan.forward.kind == TRANSFER).any()
        assert not (plan.backward.kind == TRANSFER).any()
    result = Simulated(alone).step(batch, plans)
    assert result.communication_seconds == [0.0]
    assert result.nic_tx_bytes == [0]


@every_system
@settings(max_examples=10)
@given(st.data())
def test_a_system_that_gains_a_faster_network_is_no_slower(which: Variant, data: st.DataObject) -> None:
    """The same plans on a cluster whose links have no latency and a hundred times the rate.

    Not exact: an earlier message can take a link from a more urgent one (Graham's anomaly).
    """
    cost, batch, system = drawn(data, which, most=3000, nodes=3, gpus=4)
    plans = system.plan(batch)
    cluster = cost.cluster
    faster = replace(
        cluster, nic_latency=0.0, nvlink_latency=0.0,
        nic_bandwidth=100 * cluster.nic_bandwidth, nvlink_bandwidth=100 * cluster.nvlink_bandwidth,
    )  # fmt: skip
    slow = Simulated(cost).step(batch, plans).seconds
    assert Simulated(replace(cost, cluster=faster)).step(batch, plans).seconds <= 1.02 * slow


def test_the_suite_found_the_systems() -> None:
    assert {"ring", "allgather", "ulysses"} <= {system.path.stem for system in SYSTEMS}
