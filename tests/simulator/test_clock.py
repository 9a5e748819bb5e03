"""The clock equals the plain event loop of tests/helpers/eventloop.py to the last bit, and keeps its own rules."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.eventloop import carrier, data_edges, make_hops, simulate, tied
from tests.helpers.strategies import REAL, cases, clusters
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.links import NIC, Domain
from zbench.describe.model import KV, Model
from zbench.plans.area import work
from zbench.plans.dataflow import Edges, edges
from zbench.plans.plan import ATTEND, TRANSFER, Blocks, Lists, Ops, Plan
from zbench.simulator.attention import prepare
from zbench.simulator.clock import Free, Timeline, run_hops
from zbench.simulator.estimate.layers import finished
from zbench.simulator.hop_graph import HopGraph, hop_graph
from zbench.simulator.hops import copies, hops, proxy

NONE = np.zeros(0, np.int64)
EMPTY = Ops.concatenate([])
MODEL = Model("m", 2, 16, 4, 2, 4, 32, 64)


def play(
    cost: Cost, plan: Plan, ops: Ops, backward: bool, ready: np.ndarray | None = None
) -> tuple[HopGraph, Timeline]:
    found = edges(plan, ops, backward)
    assert isinstance(found, Edges)
    of = prepare(plan, ops, found, cost, backward)
    ranks = cost.cluster.num_ranks
    start = np.zeros(ranks) if ready is None else ready
    return of, run_hops(of, start, Free.zero(cost.cluster))


@given(cases(nodes=3, gpus=4, most=120), st.booleans(), st.data())
def test_every_hop_starts_when_the_plain_event_loop_starts_it(
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
    plain = make_hops(plan, ops, cost.cluster, seconds.tolist(), cost.message_bytes(plan, ops).tolist())
    assert [hop.op for hop in plain] == of.hops.op.tolist()
    assert [hop.rank for hop in plain] == of.hops.rank.tolist()
    simulate(plain, data_edges(plan, ops, backward), ready.tolist())
    assert [hop.start for hop in plain] == timeline.start.tolist()
    assert [hop.start + hop.busy for hop in plain] == timeline.release.tolist()


@given(cases())
def test_queues_keep_plan_order_and_channels_are_enough(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        of, timeline = play(cost, plan, ops, backward)
        parts = of.hops
        assert (timeline.start >= 0).all()
        assert np.array_equal(timeline.release, timeline.start + of.busy)
        assert np.array_equal(timeline.done, timeline.release + of.latency)
        width = np.where(parts.whole, parts.channels, 1)
        for queue in _used(parts.queue_a, parts.queue_b).values():  # ascending hop index is plan order
            assert (np.diff(timeline.start[queue]) >= 0).all()
        for place in (*_used(parts.queue_a, parts.queue_b).values(), *_used(parts.link_a, parts.link_b).values()):
            begin, end = timeline.start[place], timeline.release[place]
            under_way = (begin[:, None] >= begin) & (begin[:, None] < end)  # at the start of each, which others
            assert (under_way @ width[place] <= parts.channels[place]).all()
        pairs: dict[tuple[int, int], float] = {}
        for hop in np.flatnonzero(parts.link_a >= 0).tolist():
            queues = (int(parts.queue_a[hop]), int(parts.queue_b[hop]))
            assert timeline.start[hop] >= pairs.get(queues, 0.0)
            pairs[queues] = float(timeline.release[hop])


def test_one_message_has_a_channel_and_a_collective_the_link() -> None:
    """Two nodes of two GPUs on a NIC of 2 channels; by hand, in units of the time a message has the NIC alone."""
    cluster = Cluster("two NICs", 2, 2, 1, 1e9, 1.0, 0.0, 1e11, 1.0, 0.0, REAL, nic_channels=2)
    plan = Plan(NONE, NONE, 4, 2, Blocks(NONE, NONE, NONE, NONE, NONE), Lists.of([]), EMPTY, EMPTY, Lists.of([]))
    times = {}
    for collective in (False, True):
        ops = Ops.transfers(KV, np.array([0, 0, 1]), np.array([2, 2, 3]), (0, 2), np.array([0, 0, 1]), collective)
        parts = hops(plan, ops, np.full(3, 1000), cluster)
        busy = np.where(parts.whole, 1e-6, 2e-6)  # 1,000 bytes at 1 GB/s, or half of it
        of = hop_graph(parts, busy, np.zeros(3), Edges(NONE, NONE))
        times[collective] = 1e6 * run_hops(of, np.zeros(4), Free.zero(cluster)).release
    assert times[False] == pytest.approx([2, 4, 2])  # 0 -> 2 twice, one after the other; 1 -> 3 beside the first
    assert times[True] == pytest.approx([1, 2, 3])


@given(st.data(), st.integers(1, 3))
def test_copies_to_and_from_the_host_share_a_link_a_direction(data: st.DataObject, queues: int) -> None:
    """Against one GPU and direction after another: a copy begins when a queue is free, and no sooner than the last."""
    cluster = Cluster(
        "one",
        1,
        2,
        1,
        1e9,
        1.0,
        0.0,
        1e11,
        1.0,
        0.0,
        REAL,
        host_bandwidth=2e9,
        host_efficiency=0.5,
        host_latency=1e-5,
        host_queues=queues,
    )
    count = data.draw(st.integers(1, 12))
    draw = st.lists(st.integers(0, 1), min_size=count, max_size=count)
    rank, sends = np.array(data.draw(draw)), np.array(data.draw(draw)) == 1
    size = np.array(data.draw(st.lists(st.sampled_from((0, 1000, 3000)), min_size=count, max_size=count)))
    parts = copies(rank, size, sends, cluster)
    cost = Cost(cluster, MODEL)
    busy = cost.message_seconds(size, parts.link_class)
    assert busy == pytest.approx(queues * size / 1e9)
    of = hop_graph(parts, busy, cost.latency_seconds(parts.link_class), Edges(NONE, NONE))
    timeline = run_hops(of, np.zeros(2), Free.zero(cluster))
    free: dict[tuple[int, bool], list[float]] = {}
    begun: dict[tuple[int, bool], float] = {}
    for copy, key in enumerate(zip(rank.tolist(), sends.tolist(), strict=True)):
        ends = free.setdefault(key, [0.0] * queues)
        begin = max(min(ends), begun.get(key, 0.0))
        ends[ends.index(min(ends))] = begin + busy[copy]
        begun[key] = begin
        assert (timeline.start[copy], timeline.done[copy]) == (begin, begin + busy[copy] + 1e-5)


def test_copies_leave_attention_s_links_alone_and_finish_with_their_rank() -> None:
    host = {"host_bandwidth": 1e9, "host_efficiency": 1.0, "host_latency": 0.0}
    cluster = Cluster("one", 1, 2, 1, 1e9, 1.0, 0.0, 1e9, 1.0, 0.0, REAL, **host)
    parts = copies(np.array([0, 1, 1]), np.array([1000, 500, 2000]), np.array([True, False, True]), cluster)
    of = hop_graph(parts, parts.bytes / 1e9, np.zeros(3), Edges(NONE, NONE))
    free = Free.zero(cluster)
    timeline = run_hops(of, np.zeros(2), free)
    assert (timeline.start == 0).all()  # each has its own GPU or direction
    assert 1e6 * finished(of, timeline, np.zeros(2)) == pytest.approx([1, 2])
    assert sorted(1e6 * free.links[free.links > 0]) == pytest.approx([0.5, 1, 2])
    with pytest.raises(ValueError, match=r"^cluster\.host_bandwidth is not given; copies to and from the host need"):
        copies(NONE, NONE, NONE > 0, replace(cluster, **dict.fromkeys(host)))


def test_a_message_inside_a_card_leaves_the_node_s_links_free() -> None:
    """Two GPUs of a card and a third: 0 sends 1 over the card's links while it sends 2 over the node's."""
    card = (Domain("card", 2, 2e9, 1.0, 0.0),)
    cluster = Cluster("cards", 1, 4, 1, 1e9, 1.0, 0.0, 1e9, 1.0, 0.0, REAL, domains=card)
    plan = Plan(NONE, NONE, 4, 2, Blocks(NONE, NONE, NONE, NONE, NONE), Lists.of([]), EMPTY, EMPTY, Lists.of([]))
    ops = Ops.transfers(KV, np.array([0, 0, 3]), np.array([1, 2, 2]), (0, 2), np.array([0, 0, 0]))
    parts = hops(plan, ops, np.full(3, 1000), cluster)
    assert [cluster.links[link].name for link in parts.link_class] == ["card", "node", "card"]
    of = hop_graph(
        parts, Cost(cluster, MODEL).message_seconds(parts.bytes, parts.link_class), np.zeros(3), Edges(NONE, NONE)
    )
    timeline = run_hops(of, np.zeros(4), Free.zero(cluster))
    assert 1e6 * timeline.release == pytest.approx([0.5, 1.0, 0.5])


def _used(*columns: np.ndarray) -> dict[int, np.ndarray]:
    """Hops (ascending) by what they use; -1 is nothing."""
    by: dict[int, list[int]] = {}
    for hop, names in enumerate(zip(*columns, strict=True)):
        for name in names:
            if name >= 0:
                by.setdefault(int(name), []).append(hop)
    return {name: np.array(hops) for name, hops in by.items()}


@given(cases())
def test_hops_carry_every_byte_once_between_the_right_ranks(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    cluster = cost.cluster
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        of, _ = play(cost, plan, ops, backward)
        parts, size = of.hops, cost.message_bytes(plan, ops)
        across = cluster.node_of[ops.src] != cluster.node_of[ops.dst]
        nic = parts.link_class == NIC
        by_nic = np.bincount(parts.op[nic], weights=parts.bytes[nic], minlength=len(ops))
        assert np.array_equal(by_nic, np.where((ops.kind == TRANSFER) & across, size, 0))
        arrived = np.bincount(parts.op[parts.last], weights=parts.bytes[parts.last], minlength=len(ops))
        assert np.array_equal(arrived, size)
        inside = (parts.link_a >= 0) & ~nic
        sender, receiver = parts.queue_a[inside] // parts.queues, parts.receiver[inside]
        assert np.array_equal(cluster.node_of[sender], cluster.node_of[receiver])
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
    twice = run_hops(slow, np.zeros(ranks), Free.zero(cost.cluster))
    assert (twice.start == 2 * once.start).all()
    assert (twice.done == 2 * once.done).all()


@given(cases(nodes=2, gpus=4))
def test_the_makespan_is_at_least_every_queue_and_every_chain(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    of, timeline = play(cost, plan, plan.backward, True)
    end = float(timeline.done.max())
    alone = of.busy / np.where(of.hops.whole, 1, of.hops.channels)
    for queue in _used(of.hops.queue_a, of.hops.queue_b).values():
        assert alone[queue].sum() <= end * (1 + 1e-12)
    longest = np.zeros(len(of.busy))
    for hop in range(len(of.busy)):  # followers come later in plan order
        longest[hop] += of.busy[hop] + of.latency[hop]
        for follower in of.followers[of.offsets[hop] : of.offsets[hop + 1]]:
            longest[follower] = max(longest[follower], longest[hop])
    assert longest.max() <= end * (1 + 1e-12)


def slowed_cost(cost: Cost, slowdown: float) -> Cost:
    device = replace(cost.cluster.device, compute_slowdown=slowdown)
    return replace(cost, cluster=replace(cost.cluster, device=device))


@given(cases(nodes=3, gpus=4, most=120), st.booleans(), st.sampled_from((1.1256, 2.0, 7.5)))
def test_a_compute_takes_longer_for_as_long_as_messages_are_at_its_gpu(
    case: tuple[Cost, Plan], backward: bool, slowdown: float
) -> None:
    """What it does is what it has to do: seconds beside messages count 1 / slowdown; all other rules are kept."""
    cost, plan = slowed_cost(case[0], slowdown), case[1]
    of, timeline = play(cost, plan, plan.backward if backward else plan.forward, backward)
    parts = of.hops
    sides = [(queue // parts.queues).tolist() for queue in (parts.queue_a, parts.queue_b)]
    for hop in range(len(of.busy)):
        begin, end = timeline.start[hop], timeline.release[hop]
        if parts.link_a[hop] >= 0:
            assert end == begin + of.busy[hop]
            continue
        here = sides[0][hop]
        at = [one for one in np.flatnonzero(parts.link_a >= 0) if here in (sides[0][one], sides[1][one])]
        times = sorted(
            {begin, end, *np.clip(timeline.start[at], begin, end), *np.clip(timeline.release[at], begin, end)}
        )
        done = 0.0
        for left, right in pairwise(times):
            beside = any(timeline.start[one] <= left and right <= timeline.release[one] for one in at)
            done += (right - left) / (slowdown if beside else 1.0)
        assert done == pytest.approx(of.busy[hop], rel=1e-9, abs=1e-15)
    assert (timeline.done >= timeline.release).all()
    for queue in _used(parts.queue_a, parts.queue_b).values():
        assert (np.diff(timeline.start[queue]) >= 0).all()
    for queue in _used(parts.queue_a[parts.link_a < 0], np.full((parts.link_a < 0).sum(), -1)).values():
        mine = np.flatnonzero(parts.link_a < 0)[queue]
        assert (timeline.start[mine[1:]] >= timeline.release[mine[:-1]]).all()
    for hop in range(len(of.busy)):
        for follower in of.followers[of.offsets[hop] : of.offsets[hop + 1]]:
            assert timeline.start[follower] >= timeline.done[hop]


@given(cases())
def test_where_nothing_is_slowed_hops_take_what_they_take_alone(case: tuple[Cost, Plan]) -> None:
    cost, plan = case
    of, timeline = play(cost, plan, plan.forward, False)
    assert timeline.seconds(of.busy).tolist() == of.busy.tolist()


def test_messages_of_before_slow_what_begins_beside_them() -> None:
    """A compute of 2 s on a GPU whose link is busy for 1 s more, twice as slow beside messages, ends after 2.5 s."""
    cluster = Cluster("one", 1, 2, 1, 1e9, 1.0, 0.0, 1e11, 1.0, 0.0, replace(REAL, compute_slowdown=2.0))
    plan = Plan(NONE, NONE, 2, 2, Blocks(NONE, NONE, NONE, NONE, NONE), Lists.of([]), EMPTY, EMPTY, Lists.of([]))
    ops = Ops.transfers(KV, np.array([0]), np.array([1]), (0, 2), np.array([0]), False)
    parts = hops(plan, ops, np.array([8]), cluster)
    compute = replace(
        parts,
        queue_a=np.array([0]),
        queue_b=np.array([-1]),
        link_a=np.array([-1]),
        link_b=np.array([-1]),
        link_class=np.array([-1]),
    )
    free = Free.zero(cluster)
    free.queues[parts.queue_a[0], 0] = 1.0
    of = hop_graph(compute, np.array([2.0]), np.zeros(1), Edges(NONE, NONE))
    assert run_hops(of, np.zeros(2), free).release.tolist() == [2.5]
