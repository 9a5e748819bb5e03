"""Plans with pipelines: what is refused, and planners' seconds and memory against countings of their own. Whole
steps of them: tests/simulator/steps/test_side_by_side.py."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import small
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.needs import memory_of, moments_of_stages, pipeline_moments
from zbench.cost.memory.peak import peak_bytes
from zbench.cost.stage import Stage, held, refusal
from zbench.describe.batch import Batch
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import Ops, Plan
from zbench.proof.verify import OutOfMemory, PlanError, verify, verify_step
from zbench.simulator.estimate.step import StepEstimate


def pipelines(*rows: tuple[int, int, int]) -> Pipelines:
    """Returns pipelines, each given as (lead, tp, pp)."""
    return Pipelines(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def laid(cost: Cost, of: Pipelines | None, micro: list[dict[int, list[int]]]) -> tuple[Batch, tuple[Plan, ...]]:
    """Micro-batches, each the lengths on every lead."""
    plans, every = [], []
    for one in micro:
        lengths = [s for group in one.values() for s in group]
        rank = np.array([lead for lead, group in one.items() for _ in group])
        seqs = np.arange(len(every), len(every) + len(lengths))
        every += lengths
        builder = Builder(np.array(lengths), cost.cluster.num_ranks, cost.model.num_heads, sequences=seqs)
        local(builder, np.arange(len(lengths)), rank)
        plans.append(reverse(builder.build(), "keep").with_(pipelines=of))
    return Batch(np.array(every), 0, 0), tuple(plans)


# -- one forward, one backward ----------------------------------------------------------------------
def one_forward_one_backward(forward: list[float], backward: list[float], stages: int) -> float:
    """When the first stage has ended its last backward, where messages take no time: stage s begins with stages - s
    forwards, and a backward and a forward take turns."""
    count, ends = len(forward), dict[tuple[bool, int, int], float]()
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, count)
        turns = [(False, i) for i in range(ahead)]
        for i in range(count):
            turns += [(True, i)] + [(False, ahead + i)] * (ahead + i < count)
        orders.append(turns)
    free = [0.0] * stages
    while any(orders):
        for stage, turns in enumerate(orders):
            if not turns:
                continue
            back, i = turns[0]
            before = stage + 1 if back else stage - 1
            if 0 <= before < stages and (back, before, i) not in ends:
                continue
            turns.pop(0)
            begin = max(free[stage], ends.get((back, before, i), 0.0))
            free[stage] = ends[back, stage, i] = begin + (backward if back else forward)[i]
    return free[0]


@given(st.lists(st.sampled_from((0.1, 0.5, 1.0, 2.0, 5.0, 20.0)), min_size=1, max_size=12), st.integers(2, 8))
def test_lightest_first_takes_no_longer_than_the_sum_and_the_longest_again(each: list[float], stages: int) -> None:
    """Hydraulis' objective says so; in other orders it can take 1.7 times as long."""
    times = sorted(each)
    played = one_forward_one_backward(times, [2 * one for one in times], stages)
    most = 3 * (sum(each) + (stages - 1) * max(each))
    assert 0.8 * most <= played <= most * (1 + 1e-9)
    if len(set(each)) == 1:
        assert played == pytest.approx(most)


# -- what cannot be ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "micro", "fault"),
    [
        ([(0, 2, 1), (1, 1, 1)], {0: [5]}, "rank 1 is in two pipelines"),
        ([(0, 2, 5)], {0: [5]}, "has ranks outside"),
        ([(0, 3, 1)], {0: [5]}, "tp has to divide model.num_heads"),
        ([(0, 1, 3)], {0: [5]}, "pp has to divide model.num_layers"),
        ([(1, 2, 1)], {1: [5]}, "inside a node"),
        ([(0, 2, 1), (2, 2, 1)], {1: [5]}, "leads no pipeline"),
    ],
)
def test_pipelines_that_cannot_be_are_refused(rows: list, micro: dict, fault: str) -> None:
    cost = small(2, 4)
    _, (plan,) = laid(cost, pipelines(*rows), [micro])
    with pytest.raises(PlanError, match=fault):
        verify(plan, cost)


def test_pipelines_send_nothing_and_do_not_change_in_a_step() -> None:
    cost = small(1, 4)
    batch, plans = laid(cost, pipelines((0, 2, 1), (2, 2, 1)), [{0: [5, 6], 2: [7]}, {0: [9]}])
    verify_step(batch, plans, cost)
    other = plans[1].with_(pipelines=pipelines((0, 4, 1)))
    with pytest.raises(PlanError, match="different pipelines"):
        verify_step(batch, (plans[0], other), cost)
    there = Ops.transfers(1, np.array([0]), np.array([2]), (0, 32), np.array([0]))
    with pytest.raises(PlanError, match="no attend of whole sequences"):
        verify(plans[0].with_(forward=Ops.concatenate([plans[0].forward, there])))


def test_more_kv_heads_than_a_rank_has_are_shared_or_replicated() -> None:
    cost = small(2, 8, model="gqa")
    assert [refusal(tp, 1, cost) for tp in (1, 2, 4, 8, 16)] == [""] * 5
    assert Stage.of(cost, 16, 1).kv_heads == 1
    assert Stage.of(cost, 4, 1).kv_heads == 2
    odd = replace(cost, model=replace(cost.model, num_heads=24, num_kv_heads=6))
    assert "num_kv_heads=6" in refusal(8, 1, odd)


# -- seconds ----------------------------------------------------------------------------------------
def test_single_ranks_as_pipelines_take_as_long_as_without() -> None:
    """Single ranks do not meet in either case. The slowest one has the longest first micro-batch, too: without
    pipelines the gather is hidden behind that, whosever it is."""
    cost = small(1, 4)
    cost = replace(cost, model=replace(cost.model, sharding="zero1"))
    micro = [{0: [2000, 300], 1: [900], 3: [17]}, {0: [4000], 2: [1]}]
    _, plain = laid(cost, None, micro)
    _, grouped = laid(cost, pipelines(*((r, 1, 1) for r in range(4))), micro)
    assert StepEstimate(cost).seconds(grouped) == pytest.approx(StepEstimate(cost).seconds(plain), rel=1e-9)
    states = pipeline_moments(cost, 1, 1).state - moments_of_stages(cost)[0].state  # norms' gains
    assert peak_bytes(grouped, cost) - peak_bytes(plain, cost) == pytest.approx(np.full(4, states), abs=1)


def test_a_tensor_parallel_group_is_as_many_times_as_fast_less_its_gathers() -> None:
    cost = small(1, 8)
    cost = replace(cost, model=replace(cost.model, sharding="zero1"))
    length, layers = 16_384, cost.model.num_layers
    _, plans = laid(cost, pipelines((0, 8, 1)), [{0: [length]}])
    _, alone = laid(cost, None, [{0: [length]}])
    one, eight = _computing(alone, cost), _computing(plans, cost)
    port = cost.cluster.nvlink_bandwidth * cost.cluster.nvlink_efficiency
    gather = length * 4096 * 2 * 7 / 8 / port + 7 * cost.cluster.nvlink_latency
    assert eight - 8 * layers * gather == pytest.approx(one / 8, rel=0.03)


def _computing(plans: tuple[Plan, ...], cost: Cost) -> float:
    """Seconds of a step of one micro-batch without optimizer, gathers of parameters and reductions of gradients."""
    of = Collectives.of(cost, None if plans[0].pipelines is None else held(plans[0].pipelines, cost))
    return StepEstimate(cost).seconds(plans) - cost.optimizer_seconds() - of.uncovered


def test_stages_share_the_layers_and_leave_a_bubble() -> None:
    """The seconds of a stage's six micro-batches, of the longest in three others, and of the heads on the last."""
    cost = small(1, 4)
    cost = replace(cost, model=replace(cost.model, sharding="zero1"))
    found = {}
    for count in (6, 12, 18):
        _, plans = laid(cost, pipelines((0, 1, 4)), [{0: [2048]}] * count)
        found[count] = StepEstimate(cost).seconds(plans)
    each = (found[12] - found[6]) / 6
    assert found[18] - found[12] == pytest.approx(6 * each)
    stage, tokens = Stage.of(cost, 1, 4), np.array([2048])
    head = float(stage.head_seconds(tokens)[0])
    rest = found[6] - 6 * each - 3 * (each - head)
    of = Collectives.of(cost, held(pipelines((0, 1, 4)), cost))
    own = each - head
    total, through, idle = (np.array([one]) for one in (6 * each + 3 * own, 4 * own, 0.0))
    shown = of.end_of_pipelines(total, through, through, idle) - total[0]
    assert rest == pytest.approx(shown + cost.optimizer_seconds())


# -- parameters -------------------------------------------------------------------------------------
def test_nodes_gather_the_layers_and_shares_that_their_stages_have() -> None:
    cost = small(4, 2)
    whole = held(pipelines(*((r, 1, 1) for r in range(8))), cost)
    assert (whole.rank, whole.node.tolist()) == (1, [1] * 4)
    wide = held(pipelines((0, 8, 1)), cost)
    assert (wide.rank, wide.node.tolist()) == (1 / 8, [1 / 4] * 4)
    deep = held(pipelines((0, 2, 2), (4, 1, 4)), cost)
    assert (deep.rank, deep.node.tolist()) == (1 / 4, [1 / 2] * 4)


# -- memory -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_memory_of_a_group_is_its_share(recompute: str) -> None:
    cost = small(2, 4)
    cost = replace(cost, model=replace(cost.model, recompute=recompute, sharding="zero1"))
    _, plans = laid(cost, pipelines((0, 2, 2), (4, 4, 1)), [{0: [1000], 4: [4000]}, {0: [3000]}, {0: [2000]}])
    peak = peak_bytes(plans, cost)
    model = cost.model
    alone, first = pipeline_moments(cost, 4, 1), pipeline_moments(cost, 2, 2)
    assert peak[4:].tolist() == [MemoryLines(alone.lines(1, True)).bytes(4000)] * 4
    working = max(line.token for line in first.at_work)
    assert peak[:2] == pytest.approx(first.state + 5000 * first.kept + 3000 * working, rel=1e-6)
    assert peak[2:4].tolist() == [MemoryLines(first.lines(1, True)).bytes(3000)] * 2
    (loss,) = first.at_loss
    hidden, own = model.element_bytes * model.hidden, model.element_bytes * model.hidden / 2
    assert loss.token == 6 * model.vocab / 2 + own + 2 * hidden + 2 * model.lse_bytes
    assert alone.kept == first.kept  # twice the layers, on twice the ranks
    assert first.state < memory_of(cost).bytes(0)
    tight = small(2, 4, memory=float(peak.max() - 1))
    tight = replace(tight, model=cost.model)
    batch = Batch(np.concatenate([plan.lengths for plan in plans]), 0, 0)
    verify_step(batch, plans, cost)
    with pytest.raises(OutOfMemory):
        verify_step(batch, plans, tight)
