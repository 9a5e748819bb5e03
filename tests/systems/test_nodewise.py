"""Nodewise: placements hold every token once, fill evenly and respect memory."""

from dataclasses import fields, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zbench
from tests.helpers.arithmetic import arithmetic
from tests.helpers.oracles import H100, batches, small
from tests.helpers.strategies import lengths as drawn_lengths
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.model import KV, O, Q
from zbench.plans.plan import ATTEND, TRANSFER
from zbench.proof.verify import verify_step
from zbench.run.stale import PACKAGE, Sources, reached
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.grids import busiest
from zbench.systems.nodewise.even import even_out, swap
from zbench.systems.nodewise.inside import node_layout
from zbench.systems.nodewise.placements import Placement, placements
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.nodewise.rates import Rates, attention_seconds
from zbench.systems.nodewise.records import SHARD_WORK, Loads, Nodes, NodeSettings, Rule, Sequences
from zbench.systems.nodewise.rivals import COVERED, covered
from zbench.systems.nodewise.shards import divide, join, joint_bounds, shard_tokens
from zbench.systems.nodewise.trial import Task
from zbench.systems.zeppelin.planner import Zeppelin

own = partial(Nodewise, adopt_rivals=False)  # what nodewise itself plans


def given_to(cost: Cost, sizes: np.ndarray, capacity: int = 10**9) -> tuple[Sequences, Nodes]:
    """Sequences of these sizes and the nodes of a cluster with room for so many tokens each."""
    cluster = cost.cluster
    nodes = Rates.of(cost).nodes(cluster.num_nodes, cluster.gpus_per_node, capacity)
    return Sequences(sizes, attention_seconds(sizes, cost)), nodes


def load_of(one: Placement) -> np.ndarray:
    """Seconds of a GPU of every node."""
    return one.estimate.linear + one.estimate.busy


def pieces_of(shards: np.ndarray) -> list[tuple[int, int]]:
    """Returns the pieces that shards have of a sequence, in its order."""
    first = zip(shards["first_start"].tolist(), shards["first_stop"].tolist(), strict=True)
    second = zip(shards["second_start"].tolist(), shards["second_stop"].tolist(), strict=True)
    return sorted((start, stop) for start, stop in (*first, *second) if stop > start)


RULES = st.builds(
    Rule,
    cut=st.integers(0, 6),
    first=st.booleans(),
    wrap=st.booleans(),
    front=st.sampled_from((0.0, 0.5, 2.0)),
    squeeze=st.sampled_from((0.0, 0.03, 0.4)),
    even=st.booleans(),
    wide=st.sampled_from((1, 2, 4)),
    full=st.sampled_from((1.0, 1.0, 1.5, 4.0)),
)


@pytest.mark.parametrize("name", ["played_placements", "max_played_operations", "sequence_groups"])
@pytest.mark.parametrize("value", [0, -1, True, 2.5, None])
def test_a_number_that_cannot_be_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"system.{name} is .*at least 1"):
        Nodewise(small(2, 2), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [[3], 0, 4, True])
def test_chunks_that_cannot_be_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"system.head_chunks is .*whole number"):
        Nodewise(small(2, 2), head_chunks=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "share_heads",
        "fewest_nodes",
        "fill_with_beginnings",
        "place_cut_first",
        "share_heads_across_nodes",
        "allow_uneven_nodes",
        "play_least_nic_use",
        "homes_where_lacking",
        "play_experts",
        "play_steps",
        "pair_backward_keys",
        "move_cuts",
        "move_sequences",
        "list_schedule",
        "adopt_rivals",
    ],
)
def test_a_switch_takes_true_or_false(name: str) -> None:
    with pytest.raises(ValueError, match=f"system.{name} is 1; it takes true or false"):
        Nodewise(small(2, 2), **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_plans_are_faster_that_know_where_ranks_meet(sharding: str) -> None:
    """Four nodes, each of which holds all experts: what planners that have all experts at home see of a layer is mostly
    gathers that no step has."""
    one = small(4, 4, H100)
    model = replace(one.model, num_layers=8, sharding=sharding, num_experts=16, experts_per_token=2, ffn_hidden=2048)
    cost = make_cost(replace(one.cluster, nics_per_node=4), model, pipelines=False, expert_gpus=4)
    rng, taken = np.random.default_rng(5), {True: 0.0, False: 0.0}
    for step in range(4):
        batch = Batch(np.exp(rng.uniform(np.log(256), np.log(32768), 12)).astype(np.int64), 0, step)
        for kind in taken:
            plans = Nodewise(cost, play_experts=kind).plan(batch)
            verify_step(batch, plans, cost)
            taken[kind] += Simulated(cost, expert_parallel=4).step(batch, plans).seconds
    assert taken[True] < 0.95 * taken[False]


def test_where_tokens_have_their_experts_nothing_changes() -> None:
    """Of dense models, and of experts at home, plans are the same with this switch and without."""
    dense = small(2, 4)
    model = replace(dense.model, num_experts=8, experts_per_token=2)
    for cost in (dense, make_cost(dense.cluster, model, pipelines=False)):
        for batch in batches(2):
            one, other = (Nodewise(cost, play_experts=kind).plan(batch)[0] for kind in (True, False))
            for ours, theirs in ((one.forward, other.forward), (one.backward, other.backward)):
                for field in fields(ours):
                    assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name))


@settings(max_examples=300)
@given(drawn_lengths(most=40_000, sequences=9), RULES, st.integers(2, 9))
def test_a_placement_holds_every_token_once(sizes: np.ndarray, rule: Rule, count: int) -> None:
    sequences, nodes = given_to(small(-(-count // rule.wide) * rule.wide, 2), sizes)
    (one,) = placements(sequences, nodes, [rule._replace(cut=min(rule.cut, len(sizes)))])
    for seq, size in enumerate(sizes.tolist()):
        shards = one.shards[one.shards["seq"] == seq]
        if one.node_of[seq] >= 0:
            assert len(shards) == 0
            continue
        assert len(set(shards["node"].tolist())) == len(shards) > 1
        pieces = pieces_of(shards)
        assert pieces[0][0] == 0
        assert pieces[-1][1] == size
        assert all(left[1] == right[0] for left, right in pairwise(pieces))
    bounds = joint_bounds(one.shards, rule.wide)
    assert (bounds[0], bounds[-1]) == (0, len(one.shards))
    assert (np.diff(bounds) > 0).all()


@given(drawn_lengths(most=40_000, sequences=9), st.sampled_from((2, 4)), st.integers(0, 3), st.booleans())
def test_nodes_of_a_group_share_what_is_cut_over_groups(sizes: np.ndarray, wide: int, cut: int, first: bool) -> None:
    """A joint shard's shards are on the nodes of one group, in their order, and together they are all of it."""
    sequences, nodes = given_to(small(2 * wide, 2), sizes)
    (one,) = placements(sequences, nodes, [Rule(min(cut, len(sizes)), first=first, wide=wide)])
    bounds = joint_bounds(one.shards, wide)
    joints = join(one.shards, bounds)
    for joint, (begin, stop) in zip(joints, pairwise(bounds.tolist()), strict=True):
        shards = one.shards[begin:stop]
        if len(shards) > 1:
            assert shards["node"].tolist() == [joint["node"] * wide + i for i in range(wide)]
            assert shard_tokens(joint) == shard_tokens(shards).sum()
            again = divide(joint, shard_tokens(shards).astype(np.float64))
            assert all(np.abs(again[name] - shards[name]).max() <= 1 for name in shards.dtype.names)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.integers(2, 6), st.integers(1, 20_000))
def test_moved_sequences_make_the_slowest_node_faster(sizes: list[int], nodes: int, spare: int) -> None:
    """Nothing is lost, memory is respected, and no node gets more than the one with most had."""
    tokens = np.array(sizes, np.int64)
    where = np.arange(len(tokens), dtype=np.int64) % nodes
    where[::3] = 0
    work = 1.0 * tokens**2
    load, held = np.bincount(where, work, nodes), np.bincount(where, tokens, nodes)
    most, squares, capacity = load.max(), (load**2).sum(), held.max() + spare
    changed = swap(tokens, work, where, Loads(load, held, capacity))
    assert np.allclose(load, np.bincount(where, work, nodes))
    assert np.allclose(held, np.bincount(where, tokens, nodes))
    assert held.max() <= capacity
    assert load.max() <= most * (1 + 1e-12)
    assert changed == ((load**2).sum() < squares)


def test_two_of_unlike_work_change_places() -> None:
    tokens, where = np.array([8, 7, 5, 2]), np.array([0, 0, 1, 1])
    load, held = np.array([15.0, 7.0]), np.array([15.0, 7.0])
    assert swap(tokens, 1.0 * tokens, where, Loads(load, held, 10**9))
    assert sorted(load.tolist()) == [10.0, 12.0]


def test_a_sequence_is_cut_over_just_enough_nodes() -> None:
    """Work of one and a half nodes goes to two of four, and all four end up with as much."""
    cost = small(4, 4)
    rates = Rates.of(cost)
    short = np.full(400, 256)
    each = float((attention_seconds(short, cost) + rates.token.linear * short).sum())
    size = next(n for n in range(1024, 10**6, 1024) if rates.prefix(n) + rates.token.linear * n > 0.6 * each)
    sizes = np.array([size, *short])
    sequences, nodes = Sequences(sizes, attention_seconds(sizes, cost)), rates.nodes(4, 4, 10**9, heads=False)
    (one,) = placements(sequences, nodes, [Rule(1, first=True)])
    assert len(one.shards) == 2
    load = load_of(one)
    assert load.max() < 1.02 * load.mean()


def test_homes_of_shared_sequences_even_out_tokens() -> None:
    cost, batch = small(1, 4), Batch(np.array([40_000, *[4_000, 3_900, 3_100, 2_500, 2_400] * 3, 1_000]), 0, 0)
    (plan,) = own(cost).plan(batch)
    assert np.ptp(plan.tokens_per_rank) <= 4
    (uneven,) = own(cost, homes_where_lacking=False).plan(batch)
    assert np.ptp(uneven.tokens_per_rank) > 500


def test_short_sequences_stay_local() -> None:
    (plan,) = own(small(2, 4)).plan(Batch(np.full(256, 512), 0, 0))
    assert not (plan.forward.kind == TRANSFER).any()


def test_without_heads_no_query_moves() -> None:
    batch = Batch(np.array([30_000, 9_000, 500, 400]), 0, 0)
    for heads in (True, False):
        (plan,) = own(small(2, 4), share_heads=heads).plan(batch)
        moved = plan.forward.tensor[plan.forward.kind == TRANSFER]
        assert np.isin([Q, O], moved).all() == heads


def test_many_nodes_share_heads_in_groups() -> None:
    """One sequence over eight nodes: with wide groups an attend has fewer heads than a node's GPUs would give it."""
    batch = Batch(np.array([100_000]), 0, 0)
    cost = small(8, 4)
    widest = {}
    for wide in (True, False):
        (plan,) = own(cost, share_heads_across_nodes=wide, head_chunks=1).plan(batch)
        verify_step(batch, (plan,), cost)
        attends = plan.forward.kind == ATTEND
        widest[wide] = int((plan.forward.head_hi - plan.forward.head_lo)[attends].max())
    assert widest[False] == 8
    assert widest[True] < 8


@pytest.mark.parametrize(("nodes", "wide"), [(2, 1), (4, 1), (4, 2), (6, 2)])
@pytest.mark.parametrize("channels", [1, 2, 3, 8])
def test_keys_take_what_the_busiest_nic_or_the_busiest_pair_of_gpus_takes(nodes: int, wide: int, channels: int) -> None:
    """The estimate is that of the messages that are laid; q and o, which a group of nodes exchanges, are apart."""
    cost, sizes = small(nodes, 4), np.array([4096 * nodes, 1024])
    cost = replace(cost, cluster=replace(cost.cluster, nic_channels=channels))
    task = own(cost)._task(sizes, np.arange(2), Rates.of(cost), 10**9)
    (placed,) = placements(task.sequences, task.nodes, [Rule(1, even=True, wide=wide)])
    ops = task.plan(task.layout(placed), cost).forward
    keys = ops.take((ops.kind == TRANSFER) & (ops.tensor == KV))
    node = cost.cluster.node_of
    keys = keys.take(node[keys.src] // wide != node[keys.dst] // wide)
    assert len(keys) > 0
    plan = task.plan(task.layout(placed), cost)
    laid = busiest(keys.src, keys.dst, cost.message_bytes(plan, keys).astype(np.float64), cost)
    if wide == 1:
        assert placed.estimate.keys.max() == pytest.approx(laid, rel=1e-3)
    else:
        assert placed.estimate.keys.max() >= laid * (1 - 1e-3)


def test_groups_of_nodes_take_as_long_as_each_other() -> None:
    """Two sequences of two nodes' work and more, on four nodes that share heads in pairs, and short ones that fill."""
    cost, sizes = small(4, 4), np.array([70_000, 60_000, *[3_000] * 30])
    sequences, nodes = given_to(cost, sizes)
    (one,) = placements(sequences, nodes, [Rule(2, wide=2)])
    load = load_of(one)
    assert load.max() < 1.03 * load.mean()
    assert np.diff(joint_bounds(one.shards, 2)).max() == 2
    slow = load_of(one) * [1.2, 1.2, 1.0, 1.0]
    new = even_out(one, sequences, nodes, slow, False, True)
    assert new is not None
    assert np.ptp(load_of(new) * [1.2, 1.2, 1.0, 1.0]) < 0.7 * np.ptp(slow)


def test_keys_of_two_others_are_one_call_of_the_backward() -> None:
    """One call of the backward for two others has as many heads, keys and bytes as a call each."""
    cost, sizes = small(4, 2), np.array([60_000, 1_000])
    found = {}
    for pairs in (False, True):
        task = own(cost)._task(sizes, np.arange(2), Rates.of(cost), 10**9)
        (placed,) = placements(task.sequences, task.nodes, [Rule(1, even=True)])
        plan = task.plan(task.layout(placed), cost, pairs)
        verify_step(Batch(sizes, 0, 0), (plan,), cost)
        calls = [int((ops.kind == ATTEND).sum()) for ops in (plan.forward, plan.backward)]
        found[pairs] = calls, int(cost.message_bytes(plan, plan.backward).sum())
    assert found[True][0][0] == found[False][0][0]
    assert found[True][0][1] < found[False][0][1]
    assert found[True][1] == found[False][1]


@pytest.mark.parametrize("memory", [14e9, 20e9, 40e9])
def test_memory_is_respected(memory: float) -> None:
    """A batch has as many micro-batches as memory takes; GPUs that hold everything have one."""
    cost = small(2, 4, memory=memory)
    batch = Batch(np.array([40_000, 30_000, *[2_000] * 60]), 0, 0)
    plans = own(cost).plan(batch)
    verify_step(batch, plans, cost)
    assert StepEstimate(cost).fits(batch, plans)
    assert (len(plans) > 1) == (memory < 40e9)


def test_the_budget_bounds_what_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one plan only the first layout is built and played, which is the best estimate's."""
    cost, batch, played = small(2, 4), Batch(np.array([30_000, 9_000, 6_000, 500, 400]), 0, 0), []
    play = Task.play
    monkeypatch.setattr(Task, "play", lambda *given: played.append(given) or play(*given))
    own(cost).plan(batch)
    assert len(played) > 1
    played.clear()
    (one,) = own(cost, max_played_operations=1).plan(batch)
    assert len(played) == 1
    (other,) = own(cost, played_placements=1, pair_backward_keys=False, move_cuts=False).plan(batch)
    assert np.array_equal(one.blocks.home, other.blocks.home)
    assert np.array_equal(one.forward.src, other.forward.src)


def test_inside_shares_what_is_too_long_for_a_gpu() -> None:
    cost = small(1, 4)
    sizes = np.array([40_000, 3_000, 3_000, 3_000, 3_000])
    settings = NodeSettings(num_ranks=4, num_heads=32, capacity=10**9, chunks=3, groups=3, homes=True)
    sequences = Sequences(sizes, attention_seconds(sizes, cost))
    one = node_layout(sequences, np.zeros(2, SHARD_WORK), Rates.of(cost), settings)
    assert one.rank[0] == -1
    assert sorted(one.rank[1:].tolist()) == [0, 1, 2, 3]
    assert one.heads.tolist() == [[0, 8, 16, 24, 32]]
    assert np.allclose(one.share, 0.25)


def test_groups_even_out_what_whole_heads_leave() -> None:
    """Long sequences and one that is short: with a split of heads each, GPUs differ by less."""
    cost = small(1, 4)
    sizes = np.array([24_000, 20_000, 16_000, 9_000, 3_000])
    spread = {}
    for most in (1, 3):
        (plan,) = own(cost, sequence_groups=most).plan(Batch(sizes, 0, 0))
        verify_step(Batch(sizes, 0, 0), (plan,), cost)
        spread[most] = np.ptp(np.add(*arithmetic((plan,), cost)))
    assert spread[3] < 0.5 * spread[1]


def test_forward_and_backward_are_cut_in_chunks_of_their_own() -> None:
    """A call starts more kernels in the backward, so there are no more of them; every head is attended to in both."""
    batch, cost = Batch(np.array([60_000, 9_000, 7_000, 500]), 0, 0), small(2, 4)
    (plan,) = own(cost).plan(batch)
    verify_step(batch, (plan,), cost)
    calls = [int((ops.kind == ATTEND).sum()) for ops in (plan.forward, plan.backward)]
    assert calls[0] > calls[1] > 0


@pytest.mark.parametrize("alike", [False, True])
def test_evened_nodes_get_the_seconds_that_they_lack(alike: bool) -> None:
    """Node 0 has half as much to do as was thought: it gets more of both, and every token stays in one shard."""
    cost, sizes = small(2, 4), np.array([60_000, 40_000])
    sequences, nodes = given_to(cost, sizes)
    (one,) = placements(sequences, nodes, [Rule(2, even=True)])
    busy = load_of(one)
    new = even_out(one, sequences, nodes, busy * [0.5, 1.0], alike, False)
    assert new is not None
    load = load_of(new) * [0.5, 1.0]
    assert np.ptp(load) < 0.5 * np.ptp(busy * [0.5, 1.0])
    for seq, size in enumerate(sizes.tolist()):
        pieces = pieces_of(new.shards[new.shards["seq"] == seq])
        assert pieces[0][0] == 0
        assert pieces[-1][1] == size
        assert all(left[1] == right[0] for left, right in pairwise(pieces))


def test_evened_again_and_again_no_token_is_lost() -> None:
    """Shards whose pieces are at either end of what is left, in any order, whatever nodes were found to take."""
    cost, sizes, moved = small(4, 4), np.array([90_000, 70_000, 30_000]), 0
    sequences, nodes = given_to(cost, sizes)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        (one,) = placements(sequences, nodes, [Rule(3, first=True, front=float(rng.choice([0.0, 0.9])))])
        for alike in (False, True, False, True):
            busy = load_of(one) * rng.uniform(0.7, 1.3, 4)
            new = even_out(one, sequences, nodes, busy, alike, bool(seed % 2))
            one, moved = (one, moved) if new is None else (new, moved + 1)
            for seq in np.unique(one.shards["seq"]):
                pieces = pieces_of(one.shards[one.shards["seq"] == seq])
                assert (pieces[0][0], pieces[-1][1]) == (0, sizes[seq])
                assert all(left[1] == right[0] for left, right in pairwise(pieces))
    assert moved > 20


def test_nodes_that_take_as_long_stay_as_they_are() -> None:
    cost, sizes = small(2, 4), np.array([2**16])
    sequences, nodes = given_to(cost, sizes)
    (one,) = placements(sequences, nodes, [Rule(1, even=True)])
    assert even_out(one, sequences, nodes, np.ones(2), False, True) is None


def test_compiled_code_is_compiled_anew_where_a_record_changes() -> None:
    """numba keeps what it compiled by the types of a record's fields, and does not see that two changed places."""
    known = Sources(PACKAGE)
    folder = (PACKAGE / "systems" / "nodewise").resolve()
    compiled = [path for path in folder.glob("*.py") if "@nb.njit" in path.read_text()]
    assert len(compiled) > 5
    assert all(folder / "records.py" in reached(path, known) for path in compiled)


def test_ahead_of_zeppelin() -> None:
    """On batches with sequences of very different lengths; by how much on real workloads is docs/planner.md's. Those
    with so few tokens that the network is one of pipelines are left out: there it keeps to these."""
    cost = small(4, 4)
    ratios = []
    for batch in batches(16, most=24):
        if covered(batch.num_tokens, cost) < COVERED:
            continue
        seconds = [StepEstimate(cost).seconds(make.plan(batch)) for make in (Zeppelin(cost), Nodewise(cost))]
        ratios.append(seconds[0] / seconds[1])
    assert len(ratios) > 10
    assert min(ratios) > 1
    assert np.exp(np.mean(np.log(ratios))) > 1.1


# -- nodes that stay uneven -------------------------------------------------------------------------
def test_fuller_nodes_are_fewer_and_share_a_sequence_evenly() -> None:
    """One long sequence and short ones on eight nodes: it is on all of them, on four, on two, on one."""
    sequences, nodes = given_to(small(8, 2), np.array([65_536, *[64] * 8]))
    spans = []
    for full in (1.0, 2.0, 4.0, 8.0):
        (one,) = placements(sequences, nodes, [Rule(1, full=full)])
        tokens = shard_tokens(one.shards)
        spans.append(max(len(tokens), 1))
        if full > 1 and len(tokens):
            assert tokens.max() < 1.02 * tokens.min()
    assert spans == [8, 4, 2, 1]


def test_nodes_are_not_filled_beyond_their_memory() -> None:
    for capacity, fits in ((30_000, True), (15_000, False)):
        sequences, nodes = given_to(small(4, 2), np.array([40_000, *[64] * 8]), capacity)
        assert len(placements(sequences, nodes, [Rule(1, full=2.0)])) == fits


def test_an_estimate_knows_what_parameters_take_of_nics() -> None:
    """Where they take nothing it is that of the layers; where they take all, that and keys, in either direction."""
    sequences, nodes = given_to(small(4, 2), np.array([40_000, *[64] * 8]))
    found = []
    for taken in (np.zeros(2), np.array([1.0, 3.0])):
        (one,) = placements(sequences, nodes._replace(taken=taken), [Rule(1)])
        found.append(one)
    assert found[0].seconds == found[0].estimate.layer == found[1].estimate.layer
    late = 4.0 + 2 * found[1].estimate.keys.max() - 1.1 * found[1].estimate.passes.sum()
    assert found[1].seconds == pytest.approx(found[1].estimate.layer + late)


def test_of_equal_estimates_the_one_that_needs_nics_least_is_played_too() -> None:
    """Two channels of a NIC, of which one peer has one: with half the NICs estimates are no longer equal."""
    cost = small(4, 4)
    cost = replace(cost, cluster=replace(cost.cluster, nic_channels=2, nics_per_node=4, nic_bandwidth=5e9))
    batch = Batch(np.minimum(np.random.default_rng(5).lognormal(8, 1.5, 40).astype(np.int64) + 1, 65_536), 0, 0)
    with_it, without = (
        StepEstimate(cost).seconds(own(cost, play_least_nic_use=kind).plan(batch)) for kind in (True, False)
    )
    assert with_it <= without


def test_a_second_piece_too_short_for_the_first_node_of_a_group() -> None:
    """Of such a joint shard only the last node's queries see the shards between; the library proves what it plans."""
    step = zbench.plan([2959] * 11, cluster="b200_4x8", model="llama_30b_tp4", system="nodewise")
    assert step.plans[0].blocks.home.max() == 7


@settings(deadline=None, max_examples=25)
@given(
    drawn_lengths(most=60_000), st.sampled_from([(8, 2), (12, 3), (16, 2)]), st.sampled_from([(1, 4), (2, 2), (2, 4)])
)
def test_keys_that_several_chunks_read_are_sent_once(
    drawn: np.ndarray, heads: tuple[int, int], shape: tuple[int, int]
) -> None:
    """Heads that share a kv head may be in several chunks. A step's proof refuses a copy that is made twice, a plan's a
    gradient that goes home in part."""
    one = small(*shape)
    cost = make_cost(one.cluster, replace(one.model, num_heads=heads[0], num_kv_heads=heads[1]), pipelines=False)
    batch = Batch(drawn, seed=0, step=0)
    plans = own(cost).plan(batch)
    verify_step(batch, plans, cost, memory=False)
    Simulated(cost).built(batch, plans)
