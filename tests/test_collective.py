"""What data parallelism adds: bytes conserved, nothing negative, and hidden only behind what there is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import costs

from zbench.collective import GRADIENT_BYTES, finish, gather_seconds, nic_bytes
from zbench.cost import Cost


@given(costs(), st.floats(1, 1e12))
def test_a_gather_moves_what_a_ring_or_tree_must(cost: Cost, size: float) -> None:
    """Every node has to receive what the other nodes hold; its NICs share that evenly."""
    c = cost.cluster
    needed = size * (c.num_nodes - 1) / c.num_nodes
    assert nic_bytes(cost, size) <= needed / c.nics_per_node < nic_bytes(cost, size) + 1
    seconds = gather_seconds(cost, size)
    if c.num_ranks == 1:
        assert seconds == 0
        return
    assert seconds >= needed / c.nics_per_node / c.nic_bandwidth * (1 - 1e-9) - 1 / c.nic_bandwidth
    assert gather_seconds(cost, 2 * size) >= seconds
    assert seconds >= c.nic_latency * (c.num_nodes - 1)


@given(costs(), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.integers(0, 10**12))
def test_a_step_ends_after_its_backward_and_its_optimizer(
    cost: Cost, forward: float, head: float, backward: float, sent: int
) -> None:
    ranks, nics = cost.cluster.num_ranks, cost.cluster.num_nics
    begin = forward + head
    ready = np.full(ranks, begin + backward)
    end, gradient = finish(cost, ready, forward, begin, np.full(nics, sent), np.full(nics, sent))
    assert gradient.exposed >= 0
    assert gradient.seconds >= 0
    assert end == pytest.approx(ready.max() + gradient.exposed + gradient.optimizer)
    assert gradient.optimizer == cost.optimizer_seconds()
    if ranks == 1:
        assert gradient.exposed == 0
        return
    params = float(cost.model.total_params)
    assert gradient.exposed >= gather_seconds(cost, GRADIENT_BYTES * params) / cost.model.num_layers * (1 - 1e-9)
    more = finish(cost, ready, forward, begin, np.full(nics, 2 * sent), np.full(nics, sent))[0]
    assert more >= end * (1 - 1e-12)


@given(costs())
def test_zero3_gathers_once_more(cost: Cost) -> None:
    one, three = (replace(cost, model=replace(cost.model, sharding=name)) for name in ("zero1", "zero3"))
    zero = np.zeros(cost.cluster.num_nics, np.int64)
    ready = np.ones(cost.cluster.num_ranks)
    first, second = (finish(c, ready, 0.3, 0.4, zero, zero)[1] for c in (one, three))
    params = cost.model.element_bytes * float(cost.model.total_params)
    assert (second.nic_bytes - first.nic_bytes == nic_bytes(cost, params)).all()
    assert second.seconds - first.seconds == pytest.approx(gather_seconds(cost, params))
    assert second.exposed >= first.exposed


def test_a_long_backward_hides_all_but_the_last_layer(uneven: Cost) -> None:
    """And a short one hides nothing of what does not fit beside it."""
    nics = np.zeros(uneven.cluster.num_nics, np.int64)
    params = float(uneven.model.total_params)
    reduce = gather_seconds(uneven, GRADIENT_BYTES * params)
    for span, exposed in ((1e6 * reduce, reduce / 2), (0.0, reduce)):
        begin = 1e6 * reduce  # the forward hides the parameters' gather
        _, gradient = finish(uneven, np.full(15, begin + span), begin, begin, nics, nics)
        expected = span / 2 + reduce - span if span == 0 else max(reduce / 2, span / 2 + reduce - span)
        assert gradient.exposed == pytest.approx(max(expected, exposed), rel=1e-6)
