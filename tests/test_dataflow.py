"""The data edges equal those found by following every head of every block one operation after another."""

from itertools import pairwise

import numpy as np
import pytest
from eventloop import data_edges
from hypothesis import given
from strategies import cases

from zbench.build import Builder
from zbench.cost import Cost
from zbench.dataflow import Edges, Fault, accesses, edges
from zbench.model import DKV, KV, O, Q
from zbench.patterns import ring
from zbench.plan import Lists, Ops, Plan
from zbench.rewrite import reverse
from zbench.touches import ADD, READ, TAKE, WRITE


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
def test_accesses_are_grouped_by_item_and_in_plan_order(case: tuple[Cost, Plan]) -> None:
    _, plan = case
    for ops, backward in ((plan.forward, False), (plan.backward, True)):
        table = accesses(plan, ops, backward)
        items = list(zip(table.tensor.tolist(), table.block.tolist(), table.rank.tolist(), strict=True))
        assert len(set(items)) == len(items)
        for begin, end in pairwise(table.runs):
            turns = list(zip(table.op[begin:end].tolist(), table.action[begin:end].tolist(), strict=True))
            assert turns == sorted(turns)
            assert end > begin
        assert table.runs[-1] == len(table.op)
        assert set(table.action.tolist()) <= {READ, TAKE, WRITE, ADD}


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
        ([("attend", 1, 0, 2, 1, 0)], 0, 0, 1, "uses kv of block 0 on rank 1 before an earlier operation brought it"),
        ([(KV, 0, 1, 0, 1, 0), ("attend", 1, 0, 2, 1, 0)], 1, 0, 1, "uses kv of block 0 on rank 1 before"),
        ([(Q, 2, 1, 0, 2, 0)], 0, 0, 2, "uses q of block 0 on rank 2 before"),
        ([(KV, 0, 1, 0, 2, 0), (KV, 0, 1, 1, 2, 0)], 1, 0, 1, "brings kv of block 0 to rank 1, which has it already"),
        ([(KV, 0, 1, 0, 2, 0), (KV, 1, 0, 0, 2, 0)], 1, 0, 0, "brings kv of block 0 to rank 0, which has it already"),
        ([(O, 1, 0, 0, 2, 0)], 0, 0, 1, "sends o of block 0 from rank 1, where nothing was added to it"),
        (
            [(Q, 0, 2, 0, 1, 0), (KV, 0, 2, 0, 1, 0), ("attend", 2, 0, 1, 0, 0), (O, 2, 0, 0, 2, 0)],
            3, 0, 2, "sends o of block 0 from rank 2, where nothing was added to it for all of these heads",
        ),
        (
            [(Q, 0, 2, 0, 2, 0), (KV, 0, 2, 0, 2, 0), ("attend", 2, 0, 2, 0, 0), (O, 2, 0, 0, 1, 0)],
            3, 0, 2, "sends o of block 0 from rank 2 for heads that cut through an earlier contribution",
        ),
        (
            [(Q, 0, 2, 0, 2, 0), (KV, 0, 2, 0, 2, 0), ("attend", 2, 0, 2, 0, 0)],
            2, 0, 2, "adds to o of block 0 on rank 2, and nothing sends that home to rank 0",
        ),
    ],
)  # fmt: skip
def test_every_fault(ops: list[tuple], op: int, block: int, rank: int, words: str) -> None:
    plan = hand(ops)
    fault = edges(plan, plan.forward, False)
    assert isinstance(fault, Fault)
    assert (fault.op, fault.block, fault.rank) == (op, block, rank)
    assert words in fault.reason


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
    fault = edges(forgot, forgot.backward, True)
    assert isinstance(fault, Fault)
    assert "uses kv" in fault.reason
    assert not (plan.backward.tensor == KV).any()
    assert (plan.backward.tensor == DKV).any()
