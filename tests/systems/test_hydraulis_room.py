"""Hydraulis with sequences above every pipeline's capacity: what has room is found, what has none is out of memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers.oracles import A100, MODELS, small
from tests.helpers.strategies import costs
from zbench.anchors.presets import cluster
from zbench.cost.cost import Cost
from zbench.cost.memory.state import pipeline_state_bytes
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.plans.plan import Ints
from zbench.proof.verify import OutOfMemory, verify_step
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.hydraulis.cost import Schemes
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.hydraulis.room import room

LLAMA_30B = Model("30b", 60, 6656, 52, 52, 128, 17920, 32000, sharding="zero3")


def with_memory(cost: Cost, size: float) -> Cost:
    return replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=size)))


def fits(batch: Batch, system: Hydraulis) -> bool:
    """Whether the system's plan does, which is correct in any case, and which the simulator says, too."""
    plans = system.plan(batch)
    verify_step(batch, plans)
    lacking = StepEstimate(system.cost).lacking_bytes(plans)
    try:
        verify_step(batch, plans, system.cost)
    except OutOfMemory:
        assert lacking > 0
        return False
    assert lacking == 0
    return True


def held(of: Schemes, k: int, lengths: Ints) -> bool:
    """Whether a pipeline has room for sequences: in micro-batches of one each, any pp of them under way."""
    rows = -(-np.sort(lengths)[::-1] // of.tp[k]) * of.tp[k]
    under_way = rows[: of.pp[k]].sum() + of.working[k] * rows[0]
    return bool(rows[0] <= of.alone[k] and under_way <= of.window[k])


def possible(of: Schemes, lengths: Ints, num_ranks: int) -> bool:
    """Whether any pipelines have room for all sequences: every assignment of them to pipelines of every scheme."""
    sets = 1 << len(lengths)
    members = [np.flatnonzero(mask >> np.arange(len(lengths)) & 1) for mask in range(sets)]
    each = [[mask for mask in range(1, sets) if held(of, k, lengths[members[mask]])] for k in range(len(of))]
    reached = [{0}]  # sets of sequences that so many ranks have room for
    for ranks in range(1, num_ranks + 1):
        found = set(reached[-1])
        for k in range(len(of)):
            if of.size[k] <= ranks:
                found |= {before | mask for before in reached[ranks - of.size[k]] for mask in each[k]}
        reached.append(found)
    return sets - 1 in reached[-1]


def test_what_some_pipelines_have_room_for_is_planned_and_nothing_else() -> None:
    """6 or 8 ranks without tensor parallelism of 4, so that stages alone make room; all assignments tried."""
    rng, found = np.random.default_rng(0), []
    for number in range(120):
        gpus, heads = (3, 32) if number % 4 < 2 else (4, 26)
        model = replace(MODELS["mha"], num_layers=8, num_heads=heads, num_kv_heads=heads)
        cost = replace(small(2, gpus, A100), model=replace(model, recompute=("none", "full")[number % 2]))
        system = Hydraulis(with_memory(cost, pipeline_state_bytes(cost, 1, 1) + 4e9), dispatch_orders=3)
        of, count = system.objective, rng.integers(2, 6)
        usual, most = of.capacity.max(), of.alone.max()
        lengths = rng.uniform(np.where(rng.random(count) < 0.7, usual / 3, 1), most * 1.02).astype(np.int64)
        wanted = possible(of, lengths, cost.cluster.num_ranks)
        assert fits(Batch(lengths, 0, 0), system) == wanted
        found.append((bool(lengths.max() > usual), wanted))
    assert found.count((True, True)) > 20
    assert found.count((True, False)) > 20


@given(st.data())
def test_pinned_sequences_and_the_capacity_beside_them_have_room_together(data: st.DataObject) -> None:
    """Any pp micro-batches of a pipeline, at their fullest."""
    cost = data.draw(costs(3, 8))
    share = data.draw(st.floats(1e3, 1e6))
    of = Hydraulis(with_memory(cost, pipeline_state_bytes(cost, 1, 1) + share)).objective
    assume(((of.pp + of.working) * of.capacity <= of.window).all())  # else no scheme has room for a token
    scheme = np.array(data.draw(st.lists(st.sampled_from(range(len(of))), min_size=1, max_size=4)))
    sizes = data.draw(st.lists(st.floats(0.01, 1.1), min_size=1, max_size=8))
    lengths = np.sort(np.maximum(np.array(sizes) * of.alone.max(), 1).astype(np.int64))
    found = room(lengths, of.seconds(lengths), scheme, of)
    rows = found.fits(lengths, found.kinds(scheme))
    assert rows.any(axis=0).all()
    for p, k in enumerate(scheme.tolist()):
        pinned = lengths[found.pin == p]
        if not found.over and found.capacity[p] > 0:
            others = np.full(of.pp[k], found.capacity[p])
            assert held(of, k, np.concatenate([pinned, others])[: len(pinned) + of.pp[k]])
        assert (pinned > found.capacity[p]).all()
    if not found.over:
        assert (lengths[found.pin < 0] <= found.capacity.max()).all()


@given(st.data())
def test_adversarial_lengths_around_what_schemes_can_have(data: st.DataObject) -> None:
    """At, above and below every capacity: never an error, and within memory where every sequence has room by itself.

    What has room by itself is told as if a pipeline were alone, which has most of a tied table's state then; beside
    others of its kind somewhat longer sequences may have room."""
    cost = data.draw(costs(3, 8))
    share = data.draw(st.floats(1e3, 1e6))
    system = Hydraulis(with_memory(cost, pipeline_state_bytes(cost, 1, 1) + share), dispatch_orders=3)
    of = system.objective
    edges = np.unique(np.concatenate([of.capacity, of.alone, of.alone // 2]))
    around = np.maximum(np.concatenate([edges - 1, edges, edges + 1]), 1)
    lengths = np.array(data.draw(st.lists(st.sampled_from(around.tolist()), min_size=1, max_size=12)))
    if lengths.max() <= of.capacity.max() or len(lengths) == 1:
        small_enough = lengths.max() <= of.alone.max() and of.capacity.min() > 1
        assert fits(Batch(lengths, 0, 0), system) or not small_enough
    elif lengths.max() > of.alone.max():
        has_less_beside_others = cost.model.tied_embeddings and cost.model.sharding != "none"
        assert not fits(Batch(lengths, 0, 0), system) or has_less_beside_others
    else:
        fits(Batch(lengths, 0, 0), system)


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        ([27427, 15552, 9070, 7491, 6977, 6337, 5057, 4988, 4748, 3430, *[790] * 50], True),
        ([43649, 38626, 10932, 6482, 4674, 3761, *[600] * 38], True),
        ([43649, 43648, 18_000], True),
        ([96_400, 10, 10], False),
        ([90_000, 90_000], False),
    ],
    ids=["one long", "two long", "three long", "too long", "two too long together"],
)
def test_a_large_model_whose_longest_sequences_need_most_of_a_pipeline(lengths: list[int], wanted: bool) -> None:
    """52 heads take tensor parallelism of 4 at most: 24 of 32 A800 have room for 6 x 18,256 tokens, or 96,384."""
    system = Hydraulis(Cost(cluster("a800_4x8", device="a800_80g"), LLAMA_30B))
    assert system.objective.alone.max() == 96_384
    assert fits(Batch(np.array(lengths), 0, 0), system) == wanted
