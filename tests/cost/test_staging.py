"""What the benchmark's wrapper adds to attends, of either backend."""

from dataclasses import replace

import numpy as np
import pytest

from zbench.cost import staging
from zbench.cost.cost import Cost
from zbench.cost.staging import FLASH, FUSED, Backend
from zbench.cost.use import Use
from zbench.passes import reverse
from zbench.plans.area import work
from zbench.plans.build import Builder
from zbench.plans.patterns import ring, ulysses_ring
from zbench.plans.plan import Plan


def seconds(cost: Cost, plan: Plan, backward: bool, backend: Backend) -> np.ndarray:
    ops = plan.backward if backward else plan.forward
    attend, amount = work(plan, ops)
    return replace(cost, wrapper=backend).attend_seconds(plan, ops, attend, amount, backward)


def ring_of(num_ranks: int) -> Plan:
    builder = Builder(np.array([3000]), num_ranks, 6)
    ring(builder, np.array([0]), np.array([0]), np.arange(num_ranks)[None])
    return reverse(builder.build(), "carry")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("backend", [FLASH, FUSED])
def test_staging_costs_more(uneven: Cost, backend: Backend, backward: bool) -> None:
    plan = ring_of(15)
    assert (seconds(uneven, plan, backward, backend) > seconds(uneven, plan, backward, "")).all()


def test_only_ulysses_keeps_its_kv_heads() -> None:
    """One attend a rank, over some of the heads: all others have k and v repeated."""
    builder = Builder(np.array([3000]), 2, 6)
    one = np.zeros(1, np.int64)
    ulysses_ring(builder, one, one, np.arange(2).reshape(1, 1, 2))
    for plan, expected in ((builder.build(), False), (ring_of(2), True)):
        attend, amount = work(plan, plan.forward)
        heads = (plan.forward.head_hi - plan.forward.head_lo)[attend]
        use = Use.of(plan, plan.forward, attend, amount, heads)
        assert (staging.repeated(use) == expected).all()


def test_scattering_takes_a_ring_longer_than_zeroing(uneven: Cost) -> None:
    """With elements moved one a thread far below the copies' rate, as on GPUs, and kernels' starts aside."""
    device = replace(
        uneven.cluster.device, strided_rate=uneven.cluster.device.copy_bandwidth / 10, kernel_seconds=1e-12
    )
    cost = replace(uneven, cluster=replace(uneven.cluster, device=device))
    plan = ring_of(15)
    assert (seconds(cost, plan, False, FLASH) > seconds(cost, plan, False, FUSED)).all()
