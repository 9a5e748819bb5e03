"""Remapping: balanced homes, the least largest volume (against trying everything), and attention as it was."""

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import REAL, costs, forwards
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.links import FIRST_DOMAIN, NVLINK, Domain
from zbench.describe.model import Model
from zbench.passes import remap, reverse
from zbench.passes.remap import flows
from zbench.passes.reverse import MODES
from zbench.plans.area import work
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.plans.plan import ATTEND, Plan, Transfer
from zbench.proof.verify import verify

MODEL = Model("m", 2, 16, 4, 2, 4, 32, 64)


def cost_of(nodes: int, gpus: int, weight: float = 0.25) -> Cost:
    """A cluster where a token inside a node weighs `weight` of one across."""
    return Cost(Cluster("c", nodes, gpus, 1, 1e9, 1.0, 0.0, 1e9 / weight, 1.0, 0.0, REAL), MODEL)


@given(st.data(), costs(), st.sampled_from((0, 1, 7, 128)))
def test_homes_are_even_to_a_token_or_within_the_tolerance(data: st.DataObject, cost: Cost, tolerance: int) -> None:
    plan = data.draw(forwards(cost, 600))
    before = plan.tokens_per_rank
    found = remap(plan, cost, tolerance)
    share, rest = divmod(int(before.sum()), len(before))
    even = share + (np.arange(len(before)) < rest)
    if np.abs(before - even).max() <= tolerance:
        assert found is plan
        return
    assert (found.tokens_per_rank == even).all()
    assert np.ptp(found.tokens_per_rank) <= 1
    for mode in MODES:
        verify(reverse(found, mode))


@given(st.data(), costs())
def test_attention_stays_where_it_was(data: st.DataObject, cost: Cost) -> None:
    """Every rank attends to the same (query, key) pairs; only homes and transfers change."""
    plan = data.draw(forwards(cost))
    found = remap(plan, cost, 0)
    for one in (plan, found):
        assert (one.forward.kind == ATTEND).sum() == (plan.forward.kind == ATTEND).sum()
    areas = []
    for one in (plan, found):
        attend, amount = work(one, one.forward)
        where = [one.forward.src[attend].tolist(), one.forward.head_lo[attend].tolist()]
        areas.append([*where, amount.area.tolist(), amount.tiles.tolist()])
    assert areas[0] == areas[1]


def volumes(tokens: np.ndarray, cost: Cost) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Per rank: tokens sent inside and across, received inside and across."""
    ranks, node = len(tokens), cost.cluster.node_of
    out = np.zeros((4, ranks), np.int64)
    for source, target, amount in zip(*flows(tokens, cost, 0), strict=True):
        assert amount > 0
        assert source != target
        across = int(node[source] != node[target])
        out[across, source] += amount
        out[2 + across, target] += amount
    return tuple(out)


AMOUNTS = st.lists(st.integers(0, 9), min_size=4, max_size=4)


@given(AMOUNTS, st.sampled_from(((1, 4), (2, 2), (4, 1))), st.sampled_from((0.02, 0.25, 0.9)))
def test_the_largest_weighted_volume_is_least(amounts: list[int], shape: tuple[int, int], weight: float) -> None:
    """Against every way to choose what crosses, up to the rounding of a token a rank."""
    cost, tokens = cost_of(*shape, weight), np.array(amounts)
    found = volumes(tokens, cost)
    share, rest = divmod(int(tokens.sum()), 4)
    excess = tokens - share - (np.arange(4) < rest)
    for inside, across, more in ((*found[:2], excess), (*found[2:], -excess)):  # what is sent, what is received
        amount = np.maximum(more, 0)
        assert (inside + across == amount).all()
        net = np.maximum(more.reshape(shape[0], -1).sum(axis=1), 0)  # has to cross, whatever is done inside
        assert across.reshape(shape[0], -1).sum(axis=1).tolist() == net.tolist()
        best = min(
            max(weight * (a - x) + x for a, x in zip(amount, chosen, strict=True))
            for chosen in product(*(range(a + 1) for a in amount))
            if np.array(chosen).reshape(shape[0], -1).sum(axis=1).tolist() == net.tolist()
        )
        got = float((weight * inside + across).max())
        assert got <= best + (1 - weight) * shape[1] + 1e-9
        assert got >= best - 1e-9


@given(st.lists(st.integers(0, 5000), min_size=6, max_size=6))
def test_flows_settle_inside_the_node_first(amounts: list[int]) -> None:
    cost, tokens = cost_of(2, 3), np.array(amounts)
    inside, across, _, _ = volumes(tokens, cost)
    share, rest = divmod(int(tokens.sum()), 6)
    excess = tokens - share - (np.arange(6) < rest)
    assert across.sum() == abs(int(excess[:3].sum()))
    assert len(flows(tokens, cost, 0)[0]) <= 2 * 6
    assert inside.sum() + across.sum() == np.maximum(excess, 0).sum()


@given(st.lists(st.integers(0, 5000), min_size=8, max_size=8))
def test_flows_settle_inside_domains_before_they_leave_them(amounts: list[int]) -> None:
    cost, tokens = cost_of(1, 8), np.array(amounts)
    cards = (Domain("card", 2, 8e9, 1.0, 0.0), Domain("half", 4, 4e9, 1.0, 0.0))
    cost = replace(cost, cluster=replace(cost.cluster, domains=cards, nvlink_bandwidth=2e9))
    share, rest = divmod(int(tokens.sum()), 8)
    excess = tokens - share - (np.arange(8) < rest)
    source, target, amount = flows(tokens, cost, 0)
    left = excess - np.bincount(source, amount, 8) + np.bincount(target, amount, 8)
    assert (left == 0).all()
    link = cost.cluster.link_of(source, target)
    halves, of_cards = (excess.reshape(-1, width).sum(axis=1) for width in (4, 2))
    leaving = np.maximum(of_cards, 0).sum()
    assert amount[link == NVLINK].sum() == abs(int(halves[0]))
    assert amount[link == FIRST_DOMAIN].sum() == np.maximum(excess, 0).sum() - leaving


def local_plan(tokens: list[int], ranks: int) -> Plan:
    builder = Builder(np.array(tokens), ranks, 4)
    local(builder, np.arange(len(tokens)), np.arange(len(tokens)) % ranks)
    return builder.build()


def test_q_and_kv_go_to_the_attending_rank_and_o_comes_back() -> None:
    plan = remap(local_plan([10, 2], 2), cost_of(1, 2), 0)
    views = [view for view in plan.views(plan.forward) if isinstance(view, Transfer)]
    assert [(v.tensor, v.src, v.dst) for v in views] == [("kv", 1, 0), ("q", 1, 0), ("o", 0, 1)]
    assert all(int(plan.blocks.tokens[list(view.blocks)].sum()) == 4 for view in views)
    moved = views[0].blocks
    pieces = np.concatenate([plan.blocks.pieces[block] for block in moved])
    assert (plan.blocks.start[pieces], plan.blocks.stop[pieces]) == ([6], [10])  # the end of what rank 0 had


def test_a_ring_does_not_send_a_block_to_the_rank_that_is_now_its_home() -> None:
    """Rank 0 has half a ring of two and a sequence of its own; what moves to rank 1 is not sent there again."""
    builder = Builder(np.array([12, 9]), 2, 4)
    local(builder, np.array([1]), np.array([0]))
    ring(builder, np.array([0]), np.array([0]), np.array([[0, 1]]))
    found = remap(builder.build(), cost_of(1, 2), 0)
    verify(reverse(found, "carry"))
    homes = found.blocks.home
    for view in found.views(found.forward):
        if isinstance(view, Transfer) and view.tensor != "o":
            assert (homes[list(view.blocks)] != view.dst).all()


def test_the_tolerance_is_of_tokens_from_the_mean() -> None:
    plan, cost = local_plan([300, 44], 2), cost_of(1, 2)
    assert remap(plan, cost, 128) is plan
    assert remap(plan, cost, 127).tokens_per_rank.tolist() == [172, 172]
    assert remap(plan, cost).tokens_per_rank.tolist() == [300, 44]
