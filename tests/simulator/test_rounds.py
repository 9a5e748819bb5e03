"""Ranks that go from round to round, and that stay until what they send has arrived."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import REAL, costs
from tests.simulator.test_direct import same_waits
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.passes.reverse import MODES, Mode
from zbench.plans.dataflow import Edges, edges
from zbench.plans.plan import ATTEND, Ops, Plan
from zbench.simulator.attention import playable, prepare, programs
from zbench.simulator.clock import Free, run_hops
from zbench.simulator.direct import Direct
from zbench.simulator.estimate.layers import ClockState, Layers, finished
from zbench.simulator.rounds import in_rounds
from zbench.systems.ring import Ring

MODEL = Model("m", 4, 4096, 32, 8, 128, 11008, 32000)
LENGTHS = np.array([9000, 4100, 700, 77])


def two_nodes(nic: float = 25e9) -> Cost:
    """Two nodes of two GPUs with a NIC each: slower than what is inside a node."""
    return Cost(Cluster("c", 2, 2, 2, nic, 0.8, 15e-6, 2e11, 0.6, 1e-5, REAL), MODEL)


def laid(cost: Cost, mode: Mode = "carry", **keys: str) -> Plan:
    (plan,) = Ring(cost, received_kv=mode, **keys).plan(Batch(LENGTHS, 0, 0))  # type: ignore[arg-type]
    return plan


def lists(plan: Plan) -> tuple[tuple[Ops, bool], ...]:
    return (plan.forward, False), (plan.backward, True)


def plain_waits(plan: Plan, ops: Ops, backward: bool) -> set[tuple[int, int]]:
    """What an operation waits for besides data, of the rules as they are told, one operation after the other."""
    found = edges(plan, ops, backward)
    assert isinstance(found, Edges)
    rounds: list[list[int]] = [[]]
    for op in range(len(ops)):
        if rounds[-1] and ops.kind[op] != ATTEND and ops.kind[op - 1] == ATTEND:
            rounds.append([])
        rounds[-1].append(op)
    number = {op: at for at, some in enumerate(rounds) for op in some}
    waits = set()

    def of(at: int, rank: int, attends: bool) -> list[int]:
        some = rounds[at] if at >= 0 else []
        return [one for one in some if (ops.kind[one] == ATTEND) == attends and rank in (ops.src[one], ops.dst[one])]

    for op, at in number.items():
        for rank in {int(ops.src[op]), int(ops.dst[op])}:
            waits |= {(one, op) for one in of(at - 1, rank, False)}
            if ops.kind[op] != ATTEND:
                waits |= {(one, op) for one in of(at - 2, rank, True)}
    for before, op in zip(found.producer.tolist(), found.consumer.tolist(), strict=True):
        if ops.kind[op] == ATTEND and ops.kind[before] != ATTEND and number[before] == number[op]:
            waits |= {(one, op) for one in of(number[op], int(ops.src[op]), False)}
    return waits


@pytest.mark.parametrize("mode", MODES)
def test_waits_are_those_of_the_rules(mode: Mode) -> None:
    plan = laid(two_nodes(), mode, wait="published")
    assert plan.in_rounds
    for ops, backward in lists(plan):
        found = edges(plan, ops, backward)
        assert isinstance(found, Edges)
        whole = in_rounds(found, ops)
        more = slice(len(found.producer), None)
        added = set(zip(whole.producer[more].tolist(), whole.consumer[more].tolist(), strict=True))
        assert added == plain_waits(plan, ops, backward)
        assert added
        assert all(before < after for before, after in added)


@given(st.data())
def test_lists_in_rounds_are_played_in_order_as_by_the_event_loop(data: st.DataObject) -> None:
    cost = data.draw(costs(3, 4))
    cost = replace(cost, cluster=replace(cost.cluster, nics_per_node=cost.cluster.gpus_per_node))
    plan = laid(cost, data.draw(st.sampled_from(MODES)), wait="published", run_ahead="published")
    for ops, backward in lists(plan):
        found = edges(plan, ops, backward)
        assert isinstance(found, Edges)
        same_waits(cost, plan, ops, backward, in_rounds(found, ops))


@pytest.mark.parametrize("backward", [False, True])
def test_a_rank_attends_when_all_of_the_step_before_is_sent_and_received(backward: bool) -> None:
    """As a loop has it that waits for both requests, and not by data alone."""
    cost, overtaken = two_nodes(2e9), []
    for wait in ("overlapped", "published"):
        plan = laid(cost, wait=wait)
        ops = (plan.forward, plan.backward)[backward]
        assert isinstance(playable(plan, cost)[backward], Direct)  # whose hops are its operations
        timeline = run_hops(programs(plan, cost)[backward], np.zeros(4), Free.zero(cost.cluster))
        start, done = timeline.start, timeline.done
        early = 0
        for rank in range(4):
            mine = np.flatnonzero((ops.src == rank) | (ops.dst == rank))
            attends = [op for op in mine if ops.kind[op] == ATTEND]
            for before, after in pairwise(attends):
                sent = [op for op in mine if op < before and ops.kind[op] != ATTEND]
                early += sum(done[op] > start[after] for op in sent)
        overtaken.append(early)
    assert overtaken[0] > 0
    assert overtaken[1] == 0


def test_a_rank_that_stays_until_its_messages_have_arrived_begins_no_linear_module_before() -> None:
    cost = two_nodes(2e9)
    linear = np.zeros(4)
    for run_ahead, stays in (("overlapped", False), ("published", True)):
        plan = laid(cost, run_ahead=run_ahead)
        assert plan.until_sent == stays
        ops = plan.forward
        found = edges(plan, ops, False)
        assert isinstance(found, Edges)
        of = prepare(plan, ops, found, cost, False)
        timeline = run_hops(of, linear, Free.zero(cost.cluster))
        last = np.zeros(4)
        moves = of.hops.link_a >= 0
        np.maximum.at(last, ops.src[of.hops.op[moves]], timeline.done[moves])
        assert (finished(of, timeline, linear) >= last).all() == stays


def test_each_cause_costs_and_all_of_them_most() -> None:
    cost = two_nodes()
    seconds = {}
    for keys in ((), ("wait",), ("run_ahead",), ("wait", "run_ahead")):
        plan = laid(cost, **dict.fromkeys(keys, "published"))
        state = ClockState.zero(cost.cluster)
        for of in playable(plan, cost):
            Layers(of, cost.linear_seconds(plan.tokens_per_rank), 8).play(state)
        seconds[keys] = float(state.ready.max())
    assert seconds[()] < min(seconds["wait",], seconds["run_ahead",])
    assert max(seconds["wait",], seconds["run_ahead",]) <= seconds["wait", "run_ahead"]
