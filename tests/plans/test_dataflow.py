"""The data edges equal those found by following every head of every block one operation after another."""

import numpy as np
import pytest
from hypothesis import given

from tests.helpers.eventloop import data_edges
from tests.helpers.strategies import cases
from zbench.cost.cost import Cost
from zbench.describe.model import DKV, KV, O, Q
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.dataflow import Edges, Violation, edges, first_violation
from zbench.plans.patterns import ring
from zbench.plans.plan import TRANSFER, Lists, Ops, Plan
from zbench.plans.touches import ACTION, ADD, ITEM, PLACE, READ, TAKE, WRITE, scratch, source, touches


@given(cases(nodes=2, gpus=5))
def test_edges_equal_the_literal_ones(case: tuple[Cost, Plan]) -> None:
    _, plan = case
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        found = edges(plan, ops, backward)
        assert isinstance(found, Edges)
        pairs = set(zip(found.producer.tolist(), found.consumer.tolist(), strict=True))
        assert pairs == data_edges(plan, ops, backward)
        assert (found.producer < found.consumer).all()


@given(cases(nodes=2, gpus=4))
def test_touches_are_grouped_by_item_and_in_plan_order(case: tuple[Cost, Plan]) -> None:
    _, plan = case
    home = plan.blocks.home
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        of = source(plan, ops, backward)
        work = scratch(of, len(plan.blocks))
        table, order, runs, keys, number = work
        for rank in range(plan.num_ranks):
            count, items = touches(rank, of, work, home)
            assert len(set(keys[:items].tolist())) == items
            assert runs[items] == count
            assert sorted(order[:count].tolist()) == list(range(count))
            for item in range(items):
                mine = table[order[runs[item] : runs[item + 1]]]
                assert (mine[:, ITEM] == item).all()
                assert (np.diff(mine[:, PLACE]) >= 0).all()
                assert len(mine) > 0
            assert set(table[:count, ACTION].tolist()) <= {READ, TAKE, WRITE, ADD}
        assert (number == -1).all()


def test_the_fault_told_is_the_first_by_tensor_block_and_rank() -> None:
    ops = [("attend", 2, 0, 2, 1, 0), ("attend", 1, 0, 2, 0, 0), (Q, 0, 1, 0, 2, 1)]
    plan = hand(ops)
    found = first_violation(plan, plan.forward, False)
    assert found is not None
    assert (found.op, found.block, found.rank) == (1, 0, 1)
    assert found.reason.startswith("uses q of block 0 on rank 1")


@given(cases(nodes=2, gpus=4))
def test_a_plan_without_fault_has_edges_and_one_with_has_none(case: tuple[Cost, Plan]) -> None:
    _, plan = case
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        assert first_violation(plan, ops, backward) is None
        rest = ops.take(np.arange(len(ops)) != np.argmax(ops.kind == TRANSFER))
        assert isinstance(edges(plan, rest, backward), Violation) == (first_violation(plan, rest, backward) is not None)


def hand(ops: list[tuple], num_heads: int = 2) -> Plan:
    """Two tokens, a block each, homes 0 and 1 of three ranks; operations as (tensor or "attend", ...)."""
    builder = Builder(np.array([2]), 3, num_heads)
    ring(builder, np.array([0]), np.array([0]), np.array([[0, 1]]))
    plan = builder.build()
    made = []
    for kind, *rest in ops:
        if kind == "attend":
            rank, lo, hi, q, kv = rest
            made.append(Ops.attends(np.array([rank]), (lo, hi), np.array([q]), np.array([kv])))
        else:
            src, dst, lo, hi, block = rest
            made.append(Ops.transfers(kind, np.array([src]), np.array([dst]), (lo, hi), np.array([block])))
    return plan.with_(lists=Lists.of([[0], [1], [0, 1]]), forward=Ops.concatenate(made))


@pytest.mark.parametrize(
    ("ops", "op", "block", "rank", "words"),
    [
        (
            [("attend", 1, 0, 2, 1, 0)],
            0,
            0,
            1,
            "uses kv of block 0 on rank 1, which no earlier operation brought there",
        ),
        ([(KV, 0, 1, 0, 1, 0), ("attend", 1, 0, 2, 1, 0)], 1, 0, 1, "uses kv of block 0 on rank 1, which no earlier"),
        ([(Q, 2, 1, 0, 2, 0)], 0, 0, 2, "uses q of block 0 on rank 2, which no earlier"),
        ([(KV, 0, 1, 0, 2, 0), (KV, 0, 1, 1, 2, 0)], 1, 0, 1, "brings kv of block 0 to rank 1, which has it already"),
        ([(KV, 0, 1, 0, 2, 0), (KV, 1, 0, 0, 2, 0)], 1, 0, 0, "brings kv of block 0 to rank 0, which has it already"),
        ([(O, 1, 0, 0, 2, 0)], 0, 0, 1, "sends o of block 0 from rank 1, where nothing was added to it"),
        (
            [(Q, 0, 2, 0, 1, 0), (KV, 0, 2, 0, 1, 0), ("attend", 2, 0, 1, 0, 0), (O, 2, 0, 0, 2, 0)],
            3,
            0,
            2,
            "sends o of block 0 from rank 2, where nothing was added to it for all of these heads",
        ),
        (
            [(Q, 0, 2, 0, 2, 0), (KV, 0, 2, 0, 2, 0), ("attend", 2, 0, 2, 0, 0), (O, 2, 0, 0, 1, 0)],
            3,
            0,
            2,
            "sends o of block 0 from rank 2 for heads that cut through an earlier contribution",
        ),
        (
            [(Q, 0, 2, 0, 2, 0), (KV, 0, 2, 0, 2, 0), ("attend", 2, 0, 2, 0, 0)],
            2,
            0,
            2,
            "adds to o of block 0 on rank 2, and nothing sends that home to rank 0",
        ),
    ],
)
def test_every_fault(ops: list[tuple], op: int, block: int, rank: int, words: str) -> None:
    plan = hand(ops)
    broken = edges(plan, plan.forward, False)
    assert isinstance(broken, Violation)
    assert (broken.op, broken.block, broken.rank) == (op, block, rank)
    assert words in broken.reason


def test_a_head_range_may_come_in_parts_and_leave_whole() -> None:
    halves = [(KV, 0, 2, 0, 1, 0), (KV, 0, 2, 1, 2, 0)]
    plan = hand([(Q, 0, 2, 0, 2, 0), *halves, ("attend", 2, 0, 2, 0, 0), (O, 2, 0, 0, 2, 0)])
    found = edges(plan, plan.forward, False)
    assert isinstance(found, Edges)
    assert set(zip(found.producer.tolist(), found.consumer.tolist(), strict=True)) == {(0, 3), (1, 3), (2, 3), (3, 4)}


def test_what_the_forward_kept_is_there_in_the_backward() -> None:
    builder = Builder(np.array([64]), 4, 1)
    ring(builder, np.array([0]), np.array([0]), np.arange(4)[None])
    plan = reverse(builder.build(), "keep")
    assert isinstance(edges(plan, plan.backward, True), Edges)
    forgot = plan.with_(forward=Ops(**{**vars(plan.forward), "keep": np.zeros(len(plan.forward), np.int64)}))
    broken = edges(forgot, forgot.backward, True)
    assert isinstance(broken, Violation)
    assert "uses kv" in broken.reason
    assert not (plan.backward.tensor == KV).any()
    assert (plan.backward.tensor == DKV).any()
