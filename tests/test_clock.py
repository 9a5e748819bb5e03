"""The clock equals the plain event loop of tests/eventloop.py to the last bit, and keeps its own rules."""

from dataclasses import replace

import numpy as np
from eventloop import carrier, data_edges, make_legs, simulate, tied
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases, clusters

from zbench.area import work
from zbench.clock import Program, Timeline, run
from zbench.cluster import Cluster
from zbench.cost import Cost
from zbench.dataflow import Edges, edges
from zbench.legs import LANES, link_ids, proxy
from zbench.plan import ATTEND, TRANSFER, Ops, Plan
from zbench.simulate import prepare


def play(cost: Cost, plan: Plan, ops: Ops, backward: bool, ready: np.ndarray | None = None) -> tuple[Program, Timeline]:
    found = edges(plan, ops, backward)
    assert isinstance(found, Edges)
    of = prepare(plan, ops, found, cost, backward)
    ranks = cost.cluster.num_ranks
    start = np.zeros(ranks) if ready is None else ready
    return of, run(of, start, np.zeros(ranks * LANES), np.zeros(link_ids(cost.cluster)[0]))


@given(cases(nodes=3, gpus=4, most=120), st.booleans(), st.data())
def test_every_leg_starts_when_the_plain_event_loop_starts_it(
    case: tuple[Cost, Plan], backward: bool, data: st.DataObject
) -> None:
    cost, plan = case
    ops = plan.backward if backward else plan.forward
    ranks = cost.cluster.num_ranks
    ready = np.array(data.draw(st.lists(st.sampled_from((0.0, 1e-5, 3e-4)), min_size=ranks, max_size=ranks)))
    of, timeline = play(cost, plan, ops, backward, ready)
    attend, amount = work(plan, ops)
    seconds = np.zeros(len(ops))
    seconds[attend] = cost.attend_seconds(plan, ops, attend, amount, backward)
    legs = make_legs(plan, ops, cost.cluster, seconds.tolist(), cost.message_bytes(plan, ops).tolist())
    assert [leg.op for leg in legs] == of.legs.op.tolist()
    assert [leg.rank for leg in legs] == of.legs.rank.tolist()
    simulate(legs, data_edges(plan, ops, backward), ready.tolist())
    assert [leg.start for leg in legs] == timeline.start.tolist()
    assert [leg.start + leg.busy for leg in legs] == timeline.release.tolist()


@given(cases())
def test_lanes_keep_plan_order_and_links_serve_one_at_a_time(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        of, timeline = play(cost, plan, ops, backward)
        parts = of.legs
        assert (timeline.start >= 0).all()
        assert np.array_equal(timeline.release, timeline.start + of.busy)
        assert np.array_equal(timeline.done, timeline.release + of.latency)
        for lanes in _used(parts.lane_a, parts.lane_b).values():  # ascending leg index is plan order
            assert (timeline.start[lanes[1:]] >= timeline.release[lanes[:-1]]).all()
        for link in _used(parts.link_a, parts.link_b).values():
            order = link[np.argsort(timeline.start[link], kind="stable")]
            assert (timeline.start[order[1:]] >= timeline.release[order[:-1]]).all()


def _used(*columns: np.ndarray) -> dict[int, np.ndarray]:
    """Legs (ascending) by what they use; -1 is nothing."""
    by: dict[int, list[int]] = {}
    for leg, names in enumerate(zip(*columns, strict=True)):
        for name in names:
            if name >= 0:
                by.setdefault(int(name), []).append(leg)
    return {name: np.array(legs) for name, legs in by.items()}


@given(cases())
def test_legs_carry_every_byte_once_between_the_right_ranks(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    cluster = cost.cluster
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        of, _ = play(cost, plan, ops, backward)
        parts, size = of.legs, cost.message_bytes(plan, ops)
        across = cluster.node_of[ops.src] != cluster.node_of[ops.dst]
        nic = parts.link_a >= 2 * cluster.num_ranks
        by_nic = np.bincount(parts.op[nic], weights=parts.bytes[nic], minlength=len(ops))
        assert np.array_equal(by_nic, np.where((ops.kind == TRANSFER) & across, size, 0))
        arrived = np.bincount(parts.op[parts.last], weights=parts.bytes[parts.last], minlength=len(ops))
        assert np.array_equal(arrived, size)
        inside = (parts.link_a >= 0) & ~nic
        node = cluster.node_of[parts.link_a[inside] // 2]
        assert np.array_equal(node, cluster.node_of[parts.link_b[inside] // 2])
        assert (parts.link_b[parts.link_a >= 0] >= 0).all()
        assert ((parts.link_a < 0) == (ops.kind[parts.op] == ATTEND)).all()
        assert (np.diff(parts.first) >= 1).all()


@given(clusters())
def test_a_proxy_is_tied_to_the_nic_it_is_asked_for(cluster: Cluster) -> None:
    for rank in range(cluster.num_ranks):
        for nic in range(cluster.nics_per_node):
            found = proxy(rank, nic, cluster.nic_of, cluster.node_of, cluster.gpus_per_node, cluster.nics_per_node)
            assert found == carrier(cluster, rank, nic)
            assert found in tied(cluster, rank // cluster.gpus_per_node, nic)


def test_proxies_share_the_work() -> None:
    """8 GPUs on 4 NICs: each GPU carries for three others, one on each other NIC."""
    node, nic = np.zeros(8, np.int64), np.arange(8) // 2
    carries = [0] * 8
    for rank in range(8):
        for lane in range(4):
            carries[proxy(rank, lane, nic, node, 8, 4)] += 1
    assert carries == [4] * 8


@given(cases(nodes=2, gpus=4))
def test_everything_at_half_the_speed_takes_twice_the_time(case: tuple[Cost, Plan]) -> None:
    """Exactly, as doubling is exact in binary: nothing in the clock has a scale of its own."""
    cost, plan = case
    of, once = play(cost, plan, plan.forward, False)
    slow = replace(of, busy=2 * of.busy, latency=2 * of.latency)
    ranks = cost.cluster.num_ranks
    twice = run(slow, np.zeros(ranks), np.zeros(ranks * LANES), np.zeros(link_ids(cost.cluster)[0]))
    assert (twice.start == 2 * once.start).all()
    assert (twice.done == 2 * once.done).all()


@given(cases(nodes=2, gpus=4))
def test_the_makespan_is_at_least_every_lane_and_every_chain(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    of, timeline = play(cost, plan, plan.backward, True)
    end = float(timeline.done.max())
    for legs in _used(of.legs.lane_a, of.legs.lane_b).values():
        assert of.busy[legs].sum() <= end * (1 + 1e-12)
    longest = np.zeros(len(of.busy))
    for leg in range(len(of.busy)):  # followers come later in plan order
        longest[leg] += of.busy[leg] + of.latency[leg]
        for follower in of.followers[of.offsets[leg] : of.offsets[leg + 1]]:
            longest[follower] = max(longest[follower], longest[leg])
    assert longest.max() <= end * (1 + 1e-12)
