"""ByteScale: any number of ranks, ranks with different numbers of micro-batches, and how near the balance is."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.arithmetic import without_collectives
from tests.helpers.oracles import A100, H100, batches, small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.ranks_of_gpus import stacked
from zbench.cost.recompute import kept_activation_bytes
from zbench.describe.batch import Batch
from zbench.plans.plan import ATTEND, TRANSFER, Ints
from zbench.proof.verify import verify_step
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate, layer_seconds
from zbench.systems.bytescale.balance import NEAR, RingAssignment, balanced, cuts, nic_seconds, share_seconds
from zbench.systems.bytescale.offload import hidden_layers, hidden_parts, tokens_with_hosts
from zbench.systems.bytescale.planner import ByteScale
from zbench.systems.bytescale.slots import alike, even, even_parts, split_by_room, staged_seconds
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.local_packing import LocalPacking
from zbench.systems.zeppelin.zones import capacity_tokens


def with_nodes(cost: Cost, nodes: int, nics: int = 1) -> Cost:
    return replace(cost, cluster=replace(cost.cluster, num_nodes=nodes, nics_per_node=nics))


def test_a_sequence_takes_any_number_of_ranks() -> None:
    """Three of eight, which a power of two cannot be."""
    cost = small(1, 8)
    (plan,) = ByteScale(cost, tokens_per_rank=7000).plan(Batch(np.array([20_000, *[6000] * 5]), 0, 0))
    cut = plan.blocks.home[plan.blocks.block[plan.blocks.seq == 0]]
    assert len(np.unique(cut)) == 3
    assert plan.notes["tokens_per_rank"] == 7000
    assert plan.notes["busiest_seconds"] >= plan.notes["mean_seconds"] > 0


def test_ranks_have_different_numbers_of_micro_batches() -> None:
    """Two ranks are busy with a long sequence; the others run on through more packs, and nobody waits for them."""
    cost = small(1, 4, memory=20e9)
    cost = replace(cost, model=replace(cost.model, sharding="zero1"))
    room = capacity_tokens(cost)
    lengths = np.array([int(1.9 * room), *[room // 6] * 15])
    plans = ByteScale(cost, tokens_per_rank=room).plan(Batch(lengths, 0, 0))
    verify_step(Batch(lengths, 0, 0), plans, cost)
    runs = np.array([[plan.tokens_per_rank[rank] > 0 for plan in plans] for rank in range(4)]).sum(axis=1)
    assert sorted(runs.tolist()) == [1, 1, 2, 2]


def test_a_rank_with_nothing_to_do_goes_on_at_once() -> None:
    """What plans over all ranks rest on: ranks 2 and 3 are idle in the first one, ranks 0 and 1 in the second."""
    cost = small(1, 4, memory=1e15)
    cost = replace(cost, model=replace(cost.model, sharding="zero1"))  # with ZeRO-3 ranks meet
    system, first, second = ByteScale(cost, tokens_per_rank=5000), np.array([9000]), np.array([3000])
    layout = system.layout(first, 5000)
    assert layout.degree.tolist() == [2]
    lengths = np.concatenate([first, second])
    one = system.layout_plan(lengths, np.array([0]), [np.array([0, 1])], layout)
    other = system.layout_plan(lengths, np.array([1]), [np.array([2, 3])], layout)
    together = system.layout_plan(lengths, np.array([0, 1]), [np.array([0, 1]), np.array([2, 3])], layout)
    with without_collectives():  # which hide behind the last plan alone
        seconds = [StepEstimate(cost).seconds(plans) for plans in ((one, other), (together,))]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 5))
def test_a_layout_is_one(tokens: list[int], nodes: int, gpus: int) -> None:
    """Ranks of a sequence are distinct, rings keep to as few nodes as can be, loads are what they are called."""
    cost, lengths = small(nodes, gpus), np.array(tokens)
    layout = balanced(lengths, cuts(lengths, nodes * gpus, 10_000), cost, "carry")
    assert layout.degree.tolist() == np.minimum(-(-lengths // layout.cut), nodes * gpus).tolist()
    total = np.zeros(nodes * gpus)
    load = share_seconds(lengths, layout.degree, cost, "carry")
    for seq, ranks in enumerate(layout.sets):
        assert len(set(ranks.tolist())) == layout.degree[seq]
        assert len(np.unique(ranks // gpus)) <= -(-layout.degree[seq] // gpus)
        total[ranks] += load[seq]
    network = nic_seconds(lengths, layout.degree, layout.ranks, cost, "carry")
    assert layout.busiest == pytest.approx(max(total.max(), network))
    assert layout.mean == pytest.approx(total.mean())


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=20), st.integers(1, 6), st.integers(500, 9000))
def test_micro_batches_hold_every_sequence_once_within_room(tokens: list[int], ranks: int, room: int) -> None:
    lengths = np.array(tokens)
    layout = ByteScale(small(1, ranks)).layout(lengths, room)
    found = split_by_room(lengths, layout, ranks, room)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    for part in found:
        held = np.zeros(ranks, np.int64)
        for seq in part:
            held[layout.sets[seq]] += -(-lengths[seq] // layout.degree[seq])
        shares = -(-lengths[part] // layout.degree[part])
        assert held.max() <= max(room, shares.max())


def test_rings_leave_a_node_by_different_nics() -> None:
    cost = with_nodes(small(1, 4), 2, 4)
    system = ByteScale(cost)
    rows = system.spread_over_nics(np.tile(np.arange(8), (4, 1)))
    assert sorted(rows[:, 3].tolist()) == [0, 1, 2, 3]  # the last rank of the first node
    assert (np.sort(rows, axis=1) == np.arange(8)).all()
    assert (rows[:, :4] < 4).all()


def test_predicted_seconds_are_those_of_the_clock() -> None:
    """A sequence by itself on 1 to 8 ranks, short and long: within 15 %."""
    for cost in (small(1, 8), small(2, 4, H100, "gqa")):
        for tokens in (2000, 30_000, 100_000):
            for cut in (tokens, -(-tokens // 3), -(-tokens // 8)):
                system = ByteScale(replace_memory(cost), tokens_per_rank=cut)
                (plan,) = system.plan(Batch(np.array([tokens]), 0, 0))
                played = layer_seconds(plan, cost, 3)
                # starts of kernels that a rank's sequences share are left out of a share
                fixed = 3 * float(cost.linear_seconds(1)) + 2 * cost.cluster.device.call_seconds
                assert plan.notes["busiest_seconds"] < 1.15 * played
                assert plan.notes["busiest_seconds"] + fixed > 0.85 * played


def replace_memory(cost: Cost) -> Cost:
    device = replace(cost.cluster.device, memory_bytes=1e15)
    return replace(cost, cluster=replace(cost.cluster, device=device))


def best_busiest(choices: list[list[np.ndarray]], ranks: int, upper: float) -> float:
    """Least busiest rank over every choice: an item's choices are what it adds to each rank. Ranks are alike.

    A frontier of the loads after each item, sorted, without those that can end no lower than `upper`.
    """
    rest = np.cumsum([0.0, *[min(choice.sum() for choice in item) for item in reversed(choices)]])[::-1]
    states = np.zeros((1, ranks))
    for item, left in zip(choices, rest[1:], strict=True):
        states = np.sort((states[:, None, :] + np.stack(item)).reshape(-1, ranks), axis=1)
        promising = (states[:, -1] < upper) & ((states.sum(axis=1) + left) / ranks < upper)
        states = states[promising]
        if not len(states):
            return upper
        states = states[np.unique(np.round(states / upper, 9), axis=0, return_index=True)[1]]
    return float(states[:, -1].min())


def on(ranks: int, width: int, load: float) -> list[np.ndarray]:
    return [np.isin(np.arange(ranks), chosen) * load for chosen in combinations(range(ranks), width)]


def gaps(cost: Cost, free: bool, near: float, count: int) -> list[float]:
    """To the best of every C and every choice of ranks; `free`: of every number of ranks of each by itself."""
    found, ranks, room = [], cost.cluster.num_ranks, 1 << 40
    rng = np.random.default_rng(6)
    alike = [rng.integers(1000, 6000, int(rng.integers(5, 9))) for _ in range(count // 2)]  # harder to pack
    for lengths in [batch.lengths for batch in batches(count, seed=5)] + alike:
        order = np.argsort(-lengths)
        layout = balanced(lengths, cuts(lengths, ranks, room), cost, "carry", near)
        widths = np.arange(1, ranks + 1)
        table = np.stack([share_seconds(lengths, 0 * lengths + w, cost, "carry") for w in widths])
        best = layout.busiest
        if free:
            choices = [[one for w in widths for one in on(ranks, int(w), table[w - 1, s])] for s in order]
            best = min(best, best_busiest(choices, ranks, best))
        else:
            every = np.unique(-(-lengths[:, None] // widths))
            degrees = {tuple(np.minimum(-(-lengths // c), ranks).tolist()) for c in every if c * ranks >= lengths.max()}
            for degree in degrees:
                choices = [on(ranks, degree[s], table[degree[s] - 1, s]) for s in order]
                best = min(best, best_busiest(choices, ranks, best))
        found.append(layout.busiest / best - 1)
    return found


@pytest.mark.parametrize(
    ("free", "near", "median", "worst"),
    [(False, 1.0, 1e-9, 0.02), (False, NEAR, 1e-9, 0.06), (True, 1.0, 0.05, 0.20)],
    ids=["own", "near", "free"],
)
def test_the_busiest_rank_is_near_the_best(free: bool, near: float, median: float, worst: float) -> None:
    """2 to 8 sequences on 4 ranks, against everything ByteScale may choose, and against every sequence's own width.

    near: what is given away for less to do in all counts as a gap here.
    """
    devices = ((A100, "mha"), (H100, "gqa"))
    found = [gap for device, model in devices for gap in gaps(small(1, 4, device, model), free, near, 40)]
    assert np.median(found) <= median
    assert max(found) < worst


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_batch_larger_than_memory_takes_micro_batches(balance: bool, times: int) -> None:
    cost = small(2, 2, memory=16e9)
    batch = Batch(np.full(32 * times, fitting_tokens(cost) // 8), 0, 0)
    plans = ByteScale(cost, balance_micro_batches=balance).plan(batch)
    verify_step(batch, plans, cost)
    assert times <= len(plans) <= 2 * times + 1
    assert StepEstimate(cost).lacking_bytes(plans) == 0


@given(st.lists(st.integers(1, 15_000), min_size=1, max_size=10), st.floats(14e9, 24e9))
def test_memory_is_kept_wherever_a_ring_of_all_ranks_fits(tokens: list[int], memory: float) -> None:
    """If every sequence alone on all ranks fits, no plan is over."""
    cost = small(1, 4, memory=memory)
    alone = ByteScale(small(1, 4, memory=1e15), tokens_per_rank=1)
    batch = Batch(np.array(tokens), 0, 0)
    least = max(int(peak_bytes(alone.plan(Batch(np.array([s]), 0, 0)), cost).max()) for s in tokens)
    plans = ByteScale(cost).plan(batch)
    verify_step(batch, plans)
    assert (int(peak_bytes(plans, cost).max()) <= memory) == (least <= memory)


def test_an_impossible_batch_is_a_verdict() -> None:
    for memory in (8e9, 1e9):  # too long a sequence; not even the parameters
        cost = small(2, 2, memory=memory)
        batch = Batch(np.array([10 * 4 * fitting_tokens(cost), 300, 20]), 0, 0)
        plans = ByteScale(cost).plan(batch)
        verify_step(batch, plans)
        assert StepEstimate(cost).lacking_bytes(plans) > 0


def test_without_balance_packs_are_as_full_as_they_can_be() -> None:
    cost, lengths = small(1, 2, memory=16e9), np.array([3000, 2000, 1500, 1500, 1000, 1000])
    plans = ByteScale(cost, tokens_per_rank=3000, balance_micro_batches=False).plan(Batch(lengths, 0, 0))
    assert [sorted(plan.tokens_per_rank.tolist()) for plan in plans] == [[1000, 3000], [3000, 3000]]
    local = LocalPacking(cost, pack_tokens=3000).plan(Batch(lengths, 0, 0))
    assert len(local) == len(plans)
    for plan in plans:
        assert not (plan.forward.kind == TRANSFER).any()
        assert (plan.forward.kind == ATTEND).sum() == 2


def test_balance_gains() -> None:
    cost = with_nodes(small(1, 4), 2)
    lengths: Ints = np.array([60_000, 20_000, *[900] * 60])
    batch = Batch(lengths, 0, 0)
    seconds = [
        StepEstimate(cost).seconds(ByteScale(cost, balance_micro_batches=way).plan(batch)) for way in (True, False)
    ]
    assert seconds[0] < 0.9 * seconds[1]


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_balance_gains_over_several_micro_batches(sharding: str) -> None:
    """With ZeRO-3 ranks meet in each: then none of them may be left to a few ranks."""
    cost = with_nodes(small(1, 4, memory=20e9), 2)
    cost = replace(cost, model=replace(cost.model, sharding=sharding))
    for batch in batches(6, most=60, seed=3):
        longer = Batch(np.concatenate([batch.lengths] * 3), 0, 0)
        plans = [ByteScale(cost, balance_micro_batches=way).plan(longer) for way in (True, False)]
        verify_step(longer, plans[0], cost)
        seconds = [StepEstimate(cost).seconds(each) for each in plans]
        assert seconds[0] < 1.05 * seconds[1]
        if sharding == "zero3":
            assert len(plans[0]) <= len(plans[1])


@pytest.mark.parametrize(
    ("key", "value"), [("tokens_per_rank", 0), ("tokens_per_rank", True), ("balance_micro_batches", 1)]
)
def test_what_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"system.{key} is {value!r}; it takes"):
        ByteScale(small(1, 4), **{key: value})  # type: ignore[arg-type]


# -- stages -----------------------------------------------------------------------------------------
def staged(nodes: int, gpus: int, pp: int) -> Cost:
    cost = small(nodes, gpus, memory=80e9)
    return stacked(replace(cost, model=replace(cost.model, sharding="zero1", micro_batches=4 * pp)), pp)


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=20), st.integers(1, 9))
def test_even_parts_hold_every_sequence_once(tokens: list[int], count: int) -> None:
    lengths = np.array(tokens)
    work = lengths.astype(float) ** 2
    for way in (alike, even_parts):
        found = way(lengths, work, min(count, len(lengths)))
        assert len(found) <= count
        assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    ends = [(lengths[part].min(), lengths[part].max()) for part in alike(lengths, work, min(count, len(lengths)))]
    assert all(one[1] <= other[0] for one, other in pairwise(ends))


def test_micro_batches_of_pp_balance_are_of_equal_work() -> None:
    """Those of equal tokens are not, where lengths differ; both hold every sequence once, on any number of ranks."""
    cost = staged(2, 4, 2)
    batch = Batch(np.array([20_000, 9000, 9000, 7000, *[3000] * 8, *[500] * 60]), 0, 0)
    spread = {}
    for balance in ("dp", "pp"):
        plans = ByteScale(cost, balance_micro_batches=balance).plan(batch)  # type: ignore[arg-type]
        verify_step(batch, plans, cost)
        assert len(plans) >= 2
        each = np.array([layer_seconds(plan, cost, 1) for plan in plans])
        spread[balance] = each.max() / each.mean()
    assert spread["pp"] < min(1.3, spread["dp"])


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """Every way to divide `items` into parts."""
    if not items:
        yield []
        return
    first, *rest = items
    for found in partitions(rest):
        yield [[first], *found]
        for at in range(len(found)):
            yield [*found[:at], [first, *found[at]], *found[at + 1 :]]


def even_gap(lengths: Ints, system: ByteScale) -> float:
    """By how much the sum of PP-balance's parts is above that of the best division."""

    def took(found: list[list[int]]) -> float:
        return staged_seconds(np.array([busiest[tuple(sorted(part))] for part in found]), system.cost)

    def lay(some: Ints) -> RingAssignment:
        return system.layout(some, capacity_tokens(system.cost))

    every = range(len(lengths))
    chosen = [part for size in every for part in combinations(every, size + 1)]
    busiest = {part: lay(lengths[list(part)]).busiest for part in chosen}
    _, mine = even(lengths, lay, system.cost, "carry")
    return took([part.tolist() for part in mine]) / min(map(took, partitions(list(every)))) - 1


def test_even_parts_are_near_the_best() -> None:
    """Against every division of up to 6 sequences."""
    systems = [ByteScale(staged(pp, pp, pp)) for pp in (2, 4)]
    gaps = [even_gap(batch.lengths, system) for system in systems for batch in batches(15, 6)]
    assert np.median(gaps) < 1e-9
    assert min(gaps) > -1e-9
    assert max(gaps) < 0.05


def test_balance_shortens_steps_and_that_of_micro_batches_most() -> None:
    """Two batches that no document dominates, in four stages, simulated."""
    cost, rng = staged(4, 4, 4), np.random.default_rng(0)
    cost = replace(cost, model=replace(cost.model, num_layers=16, vocab=1000))
    batches = [Batch(np.minimum(rng.lognormal(8.5, 1.0, 60), 32_000).astype(np.int64) + 1, 0, step) for step in (0, 1)]
    seconds = {}
    for balance in (False, "dp", "pp"):
        system = ByteScale(cost, balance_micro_batches=balance)  # type: ignore[arg-type]
        seconds[balance] = sum(StepEstimate(cost).seconds(system.plan(batch)) for batch in batches)
    assert seconds["pp"] < seconds["dp"] < seconds[False]


def test_what_a_job_asks_for_is_pp_balance_where_it_has_stages() -> None:
    cost, batch = staged(2, 4, 2), Batch(np.array([9000, 4000, 2500, 700, 300, 20]), 0, 0)
    chosen, meant = (ByteScale(cost, balance_micro_batches=balance).plan(batch) for balance in (True, "pp"))  # type: ignore[arg-type]
    assert [plan.sequences.tolist() for plan in chosen] == [plan.sequences.tolist() for plan in meant]


def test_ranks_of_a_job_with_stages_have_different_numbers_of_micro_batches_too() -> None:
    cost = staged(2, 4, 2)
    batch = Batch(np.array([30_000, *[2000] * 9]), 0, 0)
    plans = ByteScale(cost, balance_micro_batches="dp", tokens_per_rank=10_000).plan(batch)
    runs = np.array([plan.tokens_per_rank > 0 for plan in plans]).sum(axis=0)
    assert runs.min() < runs.max()


def test_pp_balance_is_for_stages() -> None:
    with pytest.raises(
        ValueError, match=r"system.balance_micro_batches is 'pp'; it takes stages to balance, as parallel.pipeline_"
    ):
        ByteScale(small(2, 4), balance_micro_batches="pp")
    with pytest.raises(ValueError, match=r"system.balance_micro_batches is 'tp'; it takes true, false, dp or pp"):
        ByteScale(small(2, 4), balance_micro_batches="tp")  # type: ignore[arg-type]


def test_as_published_a_stretch_is_what_a_gpu_holds() -> None:
    """Whatever is balanced, and the same as that number typed; by default it is one of many that are compared."""
    cost = small(2, 2, memory=60e9)
    batch = Batch(np.array([60_000, 9_000, 9_000, *[400] * 20], np.int64), 0, 0)
    room = capacity_tokens(cost)
    published, typed, chosen = (
        ByteScale(cost, tokens_per_rank=cut).plan(batch)  # type: ignore[arg-type]
        for cut in ("published", room, None)
    )
    assert [plan.notes["tokens_per_rank"] for plan in published] == [plan.notes["tokens_per_rank"] for plan in typed]
    assert max(float(plan.notes["tokens_per_rank"]) for plan in published) == room
    assert min(float(plan.notes["tokens_per_rank"]) for plan in chosen) < room
    assert ByteScale.PUBLISHED["tokens_per_rank"].value == "published"


HOST = {"host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 1e13}


def offloading(rate: float, layers: int | str = "auto", memory: float = 30e9, **model: Any) -> Cost:
    """Eight GPUs with a link to their hosts of `rate` bytes/s; inputs of layers go there unless the model says else."""
    cost = small(1, 8, memory=memory)
    cluster = replace(cost.cluster, host_bandwidth=rate, **HOST)
    of = {"num_layers": 32, "recompute": "full", "sharding": "zero3", "loss_chunk_tokens": "auto", "offload": "inputs"}
    return make_cost(cluster, replace(cost.model, offload_layers=layers, **(of | model)), False)


def without(cost: Cost, layers: int) -> Cost:
    """Returns a cost model with the inputs of so many layers on hosts, 0: of none."""
    return replace(cost, model=cost.model.offloading(layers))


def test_as_many_layers_inputs_on_hosts_as_a_sequence_hides() -> None:
    """Algorithm 1: a transfer is to take no longer than what is computed, which grows with the square of a sequence."""
    cost, lengths = offloading(2e9), np.array([1000, 30_000, 400_000])
    count = cost.model.num_layers
    layers = hidden_layers(lengths, cost)
    computing = cost.linear_seconds(lengths) + cost.whole_seconds(lengths, False)
    size = lengths * cost.model.hidden * cost.model.element_bytes
    wanted = count * computing / (1e-5 + size / 1.6e9)
    assert layers.tolist() == np.minimum(wanted, count).astype(int).tolist()
    assert 0 < layers[0] < layers[1] < layers[2] == count
    held = tokens_with_hosts(lengths, cost)
    assert held is not None
    assert held.tolist() == [capacity_tokens(without(cost, each)) for each in layers.tolist()]
    assert tokens_with_hosts(lengths, offloading(2e9, "all")) is None


@pytest.mark.parametrize(("level", "hiddens"), [("none", 0), ("selective", 1)])
def test_algorithm_1_with_activations(level: str, hiddens: int) -> None:
    """All that layers keep goes to hosts, but the last one's: at the same link fewer layers are hidden than of inputs,
    and a sequence's ranks hold more tokens than with none."""
    cost, lengths = offloading(20e9, recompute=level, offload="activations"), np.array([100, 30_000, 1_000_000])
    layers, model = hidden_layers(lengths, cost), cost.model
    e, columns = model.element_bytes, 3 * model.active_ffn
    each = 4 * e * model.hidden + 2 * e * model.head_dim * (model.num_heads + model.num_kv_heads)
    each += model.lse_bytes * model.num_heads + e * columns - hiddens * e * (model.hidden + columns)
    computing = cost.linear_seconds(lengths) + cost.whole_seconds(lengths, False)
    wanted = model.num_layers * computing / (lengths * each / 16e9)
    assert layers.tolist() == np.minimum(wanted, 31).astype(int).tolist()
    assert 0 < layers[0] <= layers[1] < layers[2] == 31
    inputs = hidden_layers(lengths, offloading(20e9))
    assert (layers[:2] < inputs[:2]).all()
    held = tokens_with_hosts(lengths, cost)
    assert held is not None
    assert held.tolist() == [capacity_tokens(without(cost, count)) for count in layers.tolist()]
    assert capacity_tokens(without(cost, 0)) < held[0] < held[2]


def test_algorithm_1_by_shares_of_a_sequences_tokens() -> None:
    """The paper's r, in parts of 64: what is computed of a layer over what copying all that it keeps takes. A rank
    holds as many tokens as with such a share of all of its tokens on hosts, and a plan fits with what a run chooses."""
    of = {"recompute": "none", "offload": "activations"}
    cost, lengths = offloading(20e9, "all", offload_tokens="auto", **of), np.array([100, 30_000, 100_000, 1_000_000])
    parts, model = hidden_parts(lengths, cost), cost.model
    computing = cost.linear_seconds(lengths) + cost.whole_seconds(lengths, False)
    sending = 1e-5 + lengths * kept_activation_bytes(model) / 16e9
    assert parts.tolist() == np.minimum(64 * computing / sending, 64).astype(int).tolist()
    assert 0 < parts[0] <= parts[1] < parts[2] < parts[3] == 64
    held = tokens_with_hosts(lengths, cost)
    assert held is not None
    shares = [*(int(count) / 64 for count in parts[:3]), "all"]
    models = [replace(model, offload_tokens=share) for share in shares]
    assert held.tolist() == [capacity_tokens(replace(cost, model=one)) for one in models]
    assert capacity_tokens(without(cost, 0)) < held[0] <= held[1] < held[2] < held[3]
    assert tokens_with_hosts(lengths, offloading(20e9, "all", **of)) is None
    fast, batch = offloading(60e9, "all", offload_tokens="auto", **of), Batch(np.array([100_000, 30_000, 500]), 0, 0)
    degrees = []
    for one in (fast, without(fast, 0)):
        naive = ByteScale(one, "published", balance_micro_batches=False)
        degrees.append(naive.layout(batch.lengths, capacity_tokens(one)).degree.tolist())
    assert degrees[0] == [3, 1, 1]
    assert degrees[1][0] == 8
    plans = ByteScale(fast, "published").plan(batch)
    result = Simulated(fast).step(batch, plans)
    assert not result.out_of_memory
    assert max(result.recompute["offloaded_tokens"]) > 0
    assert sum(result.recompute["of_tokens"]) == batch.num_tokens


def test_a_long_sequence_takes_fewer_ranks_where_it_hides_its_transfers() -> None:
    """And a plan fits with the layers on hosts that a run chooses for it; with a slow link there are as many ranks as
    without."""
    fast, slow = offloading(40e9), offloading(1e6)
    room = capacity_tokens(without(fast, 0))
    lengths = np.array([3 * room, room // 2, room // 3])
    degrees = []
    for cost in (without(fast, 0), slow, fast):
        system = ByteScale(cost, "published", balance_micro_batches=False)
        degrees.append(system.layout(lengths, capacity_tokens(cost)).degree.tolist())
    assert degrees[0] == degrees[1] == [3, 1, 1]
    assert degrees[2][0] < 3
    batch = Batch(lengths, 0, 0)
    plans = ByteScale(fast, "published").plan(batch)
    verify_step(batch, plans, fast)
    (result,) = [Simulated(fast).step(batch, plans)]
    chosen = result.recompute["offloaded_layers"]
    assert len(chosen) == len(plans)
    assert 0 < max(chosen) <= fast.model.num_layers
    assert not result.out_of_memory
    for plan, layers in zip(plans, chosen, strict=True):  # with one fewer it is not known to fit
        assert peak_bytes((plan,), without(fast, layers)).max() <= 30e9
        assert layers == 0 or peak_bytes((plan,), without(fast, layers - 1)).max() > 30e9
