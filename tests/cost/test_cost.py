"""Seconds and bytes of single operations: what holds whatever the constants are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import REAL, cases, costs
from zbench.calibrate.subject import AttentionCall
from zbench.cost.cost import Cost
from zbench.cost.kernel import BACKWARD_FLOPS, FORWARD_FLOPS
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.plans.area import Work, work
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.plans.plan import ATTEND, Plan

NUMBERS = ("q", "kv", "o", "do", "dq", "dkv")


@given(cases(nodes=2, gpus=5))
def test_message_bytes_are_tokens_times_heads(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    for ops in (plan.forward, plan.backward):
        size = cost.message_bytes(plan, ops)
        assert size.dtype == np.int64
        for view, found in zip(plan.views(ops), size.tolist(), strict=True):
            if hasattr(view, "tensor"):
                tokens = int(plan.blocks.tokens[list(view.blocks)].sum())
                assert found == tokens * cost.model.message_bytes_per_token(NUMBERS.index(view.tensor), *view.heads)
            else:
                assert found == 0


@given(cases(nodes=2, gpus=5))
def test_attend_seconds_are_at_least_the_kernel_s(case: tuple[Cost, Plan]) -> None:
    """At the kernel's rate for the visible pairs, and no less than one call."""
    cost, plan = case
    device, model = cost.cluster.device, cost.model
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        attend, amount = work(plan, ops)
        seconds = cost.attend_seconds(plan, ops, attend, amount, backward)
        assert seconds.shape == attend.shape
        heads = (ops.head_hi - ops.head_lo)[attend]
        flops = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * amount.area * heads * model.head_dim
        rate = device.attention_backward_flops if backward else device.attention_forward_flops
        assert (seconds >= flops / rate * (1 - 1e-12)).all()
        assert (seconds >= device.call_seconds).all()
        again = cost.attend_seconds(plan, ops, attend, amount, backward)
        assert (seconds == again).all()


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 64), st.booleans())
def test_a_kernel_with_more_to_do_takes_no_less(tiles: int, rows: int, heads: int, backward: bool) -> None:
    cost = Cost(Cluster("c", 1, 1, 1, 1e9, 1, 0, 1e9, 1, 0, REAL), Model("m", 1, 64, 64, 64, 64, 64, 64))

    def seconds(tiles: int, rows: int, heads: int) -> float:
        one = np.ones(1, np.int64)
        amount = Work(one, tiles * one, rows * one, rows * one, one, one, one, one, 0 * one, 0 * one)
        return float(cost.kernel_seconds(amount, heads * one, heads * one, backward)[0])

    base = seconds(tiles, rows, heads)
    assert seconds(2 * tiles, rows, heads) >= base
    assert seconds(tiles, 2 * rows, heads) >= base
    assert seconds(tiles, rows, heads + 1) >= base
    assert seconds(tiles, rows, heads) <= 2 * seconds(tiles, rows, -(-heads // 2)) + 1e-12


@given(costs(), st.integers(1, 10**9))
def test_transfers_take_bytes_over_what_links_reach(cost: Cost, size: int) -> None:
    c = cost.cluster
    both = cost.transfer_seconds(np.array([size, size]), np.array([False, True]))
    assert both[0] == pytest.approx(size / (c.nvlink_bandwidth * c.nvlink_efficiency))
    assert both[1] == pytest.approx(size / (c.nic_bandwidth * c.nic_efficiency))
    assert both[1] == cost.nic_transfer_seconds(size) == cost.transfer_seconds(np.array([float(size)]), 1)[0]
    assert cost.latency_seconds(np.array([False, True])).tolist() == [c.nvlink_latency, c.nic_latency]


@given(costs(), st.integers(1, 10**9), st.integers(1, 40), st.booleans())
def test_who_sends_to_as_many_as_a_link_has_channels_has_all_of_it(
    cost: Cost, size: int, peers: int, across: bool
) -> None:
    channels, where = cost.cluster.nic_channels if across else cost.cluster.nvlink_channels, np.array([across])
    whole, one = (seconds(np.array([size]), where)[0] for seconds in (cost.transfer_seconds, cost.message_seconds))
    assert one == pytest.approx(channels * whole)
    spread = cost.spread_seconds(np.array([size]), where, peers)[0]
    assert spread == pytest.approx(whole * max(1.0, channels / peers))
    if channels == 1:
        assert spread == one == whole


@given(costs(), st.integers(1, 10**6), st.integers(1, 10**6))
def test_linear_modules(cost: Cost, one: int, other: int) -> None:
    """No tokens, no time; more tokens, more time; two calls cost no less than one."""
    zero, a, b, both = cost.linear_seconds(np.array([0, one, other, one + other]))
    assert zero == 0
    assert both >= max(a, b)
    assert a + b >= both * (1 - 1e-12)
    device, model = cost.cluster.device, cost.model
    assert a >= 2 * model.layer_matmul_params * one / device.peak_flops
    assert cost.head_seconds(np.array([0]))[0] == 0
    assert cost.head_seconds(np.array([one]))[0] >= 6 * model.head_params * one / device.peak_flops


@given(costs())
def test_the_optimizer_s_share_shrinks_with_the_ranks(cost: Cost) -> None:
    """Unless every rank has all of the optimizer's state."""
    double = replace(cost, cluster=replace(cost.cluster, num_nodes=2 * cost.cluster.num_nodes))
    times = 1 if cost.model.sharding == "none" else 2
    assert cost.optimizer_seconds() == pytest.approx(times * double.optimizer_seconds())


def test_short_pieces_are_slow() -> None:
    """The reason to keep short sequences whole: a ring of 16 over 4K tokens takes many times one rank's kernel time."""
    cluster = Cluster("c", 2, 8, 4, 25e9, 0.8, 0, 2e11, 0.6, 0, REAL)
    cost = Cost(cluster, Model("m", 1, 4096, 32, 32, 128, 11008, 32000))
    whole, cut = (Builder(np.array([4096]), 16, 32) for _ in range(2))
    local(whole, np.array([0]), np.array([0]))
    ring(cut, np.array([0]), np.array([0]), np.arange(16)[None])
    totals = []
    for plan in (whole.build(), cut.build()):
        attend, amount = work(plan, plan.forward)
        assert (plan.forward.kind[attend] == ATTEND).all()
        totals.append(cost.attend_seconds(plan, plan.forward, attend, amount, False).sum())
    assert totals[1] > 8 * totals[0]


@given(costs(), st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.integers(1, 8))
def test_a_backward_pays_for_blocks_that_find_nothing_to_do(cost: Cost, lengths: list[int], heads: int) -> None:
    """As many blocks a sequence and head as the longest has; none in the forward, and none if all are equally long."""
    paid = replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, empty_block_seconds=1.0)))
    whole = Work.whole(np.array(lengths))
    call = Work(*(np.array([getattr(whole, name).sum()]) for name in Work.__dataclass_fields__))
    call = replace(call, longest=np.array([whole.longest.max()]))
    of = np.array([heads])
    blocks = [-(-length // 128) for length in lengths]
    extra = [
        float((paid.kernel_seconds(call, of, of, back) - cost.kernel_seconds(call, of, of, back))[0])
        for back in (False, True)
    ]
    empty = heads * (len(blocks) * max(blocks) - sum(blocks))
    assert extra[0] == 0
    # What exists is taken from the keys of all sequences together: less by up to one block of each.
    assert empty - 1e-6 <= extra[1] + cost.cluster.device.call_seconds
    assert extra[1] <= heads * (len(blocks) * max(blocks) - -(-sum(lengths) // 128)) + 1e-6


@given(st.integers(1, 600), st.integers(1, 600), st.sampled_from([1, 2, 4, 8, 16]))
def test_parts_of_tiles_without_a_query_are_left_out(queries: int, keys: int, group: int) -> None:
    """With 8 query heads a kv head a forward tile has 16 queries of each, with one 128; a backward's has 64."""
    rows, columns = -(-queries // 128), -(-keys // 128)
    amount = AttentionCall(queries, keys, causal=False).work
    kernel = replace(REAL, packed_rows=True, backward_rows=64)
    cost = Cost(Cluster("c", 1, 1, 1, 1e9, 1, 0, 1e9, 1, 0, kernel), Model("m", 1, 64, 64, 64, 64, 64, 64))
    heads, kv_heads = np.array([group]), np.array([1])

    def flops(cost: Cost, backward: bool) -> float:
        device = replace(cost.cluster.device, copy_bandwidth=1e30)
        found = replace(cost, cluster=replace(cost.cluster, device=device))
        rate = device.attention_backward_flops if backward else device.attention_forward_flops
        return float(found.stream_seconds(amount, heads, kv_heads, backward)[0]) * rate / group / 64

    plain = replace(cost, cluster=replace(cost.cluster, device=REAL))
    whole = rows * columns * 128**2
    assert flops(plain, False) == pytest.approx(FORWARD_FLOPS * whole)
    assert flops(plain, True) == pytest.approx(BACKWARD_FLOPS * whole)
    assert flops(cost, True) == pytest.approx(BACKWARD_FLOPS * 64 * -(-queries // 64) * 128 * columns)
    if group >= 8:
        assert flops(cost, False) == pytest.approx(FORWARD_FLOPS * 16 * -(-queries // 16) * 128 * columns)
    assert FORWARD_FLOPS * queries * keys <= flops(cost, False) * (1 + 1e-12)
    assert flops(cost, False) <= flops(plain, False) * (1 + 1e-12)
    if group == 1:
        assert flops(cost, False) == flops(plain, False)
