"""Batches: all ranks agree on them, nothing deadlocks however strictly they are posted, and they are few."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import SHARP, batches, cases, costs
from tests.helpers.variants import SYSTEMS, Variant
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch as Lengths
from zbench.describe.cluster import Cluster
from zbench.describe.model import KV, Model, O, Q
from zbench.passes import route
from zbench.passes.reverse import reverse
from zbench.plans.dataflow import Edges, edges
from zbench.plans.plan import TRANSFER, Blocks, Lists, Ops, Plan
from zbench.plans.touches import IS_COPY
from zbench.proof.verify import verify_step
from zbench.runtime.program.compiler import Compiler
from zbench.runtime.program.phases import AHEAD, message_batch_numbers, with_message_batches
from zbench.runtime.program.program import HOME, MessageBatch, Program, Relay, Send
from zbench.simulator.hops import hops
from zbench.systems.ring import Ring


def programs(plan: Plan, cost: Cost) -> list[tuple[Program, Program]]:
    pairs = [Compiler(plan, rank, cost, lambda rows: rows, lambda *_: None).compile() for rank in range(plan.num_ranks)]
    return [with_message_batches(plan, cost, pair) for pair in pairs]


def hops_of(program: Program, at: int) -> list[tuple[int, int]]:
    """(hop, peer) of a batch's messages."""
    batch = program.batches[at]
    found = [(program.receives[index].hop, program.receives[index].peer) for index in batch.receives]
    for send in (program.sends[index] for index in batch.sends):
        found += [(send.hop, send.peer)] if isinstance(send, Relay) else [(hop, peer) for hop, peer, _, _ in send.hops]
    return found


class Rank:
    """A rank that stands still in each batch until its partners are in it too."""

    def __init__(self, program: Program) -> None:
        self.program, self.posted, self.started, self.standing = program, 0, 0, False

    @property
    def is_done(self) -> bool:
        return self.posted == len(self.program.batches) and self.started == len(self.program.attends)

    def go(self) -> bool:
        """One thing more; whether there was one. Nothing may be used that has not come."""
        program = self.program
        if self.standing:
            return False
        if self.posted < len(program.batches) and program.batches[self.posted].at <= self.started:
            for send in (program.sends[index] for index in program.batches[self.posted].sends):
                if isinstance(send, Send):
                    assert send.after <= self.started
                    self.check([part.slot for part in send.parts] + [send.whole])
                else:
                    assert self.has_come(send.received)
            self.standing = True
            return True
        if self.started < len(program.attends):
            step = program.attends[self.started]
            self.check([read.slot for read in (step.q, step.kv, step.do) if read])
            self.check([part.slot for fill in step.fills for part in fill.parts])
            self.started += 1
            return True
        return False

    def check(self, slots: list[int]) -> None:
        assert all(self.has_come(index) for slot in slots if slot != HOME for index in self.program.arrives[slot])

    def has_come(self, receive: int) -> bool:
        return any(receive in batch.receives for batch in self.program.batches[: self.posted])


def play(found: list[Program]) -> None:
    """Every rank to its end. A rank's batch is complete when each of its hops is posted at both ends."""
    ranks, ends, moving = [Rank(program) for program in found], Counter[int](), True
    while moving:
        moving = False
        for rank in ranks:
            while rank.go():
                moving = True
                if rank.standing:
                    ends.update(hop for hop, _ in hops_of(rank.program, rank.posted))
        for rank in ranks:
            if rank.standing and all(ends[hop] == 2 for hop, _ in hops_of(rank.program, rank.posted)):
                rank.standing, moving = False, True
                rank.posted += 1
    assert all(rank.is_done for rank in ranks), "deadlock"


def check(plan: Plan, cost: Cost) -> None:
    found = programs(plan, cost)
    for way, ops in enumerate((plan.forward, plan.backward)):
        parts = hops(plan, ops, cost.message_bytes(plan, ops), cost.cluster)
        number = message_batch_numbers(plan, ops, parts, way == 1)
        for one in (pair[way] for pair in found):
            posted = [hop for at in range(len(one.batches)) for hop, _ in hops_of(one, at)]
            assert (
                len(posted)
                == len(set(posted))
                == len(one.receives) + sum(1 if isinstance(send, Relay) else len(send.hops) for send in one.sends)
            )
            each = [{int(number[hop]) for hop, _ in hops_of(one, at)} for at in range(len(one.batches))]
            assert all(len(of) == 1 for of in each)
            for at in range(len(one.batches)):  # copies, for which attends wait, never wait for sums of attends
                assert len({bool(IS_COPY[ops.tensor[parts.op[hop]]]) for hop, _ in hops_of(one, at)}) == 1
            assert sorted(each, key=min) == each  # by number, on every rank
        play([pair[way] for pair in found])


@given(cases(3, 4))
def test_any_plan_runs_however_strictly(case: tuple[Cost, Plan]) -> None:
    check(case[1], case[0])


@pytest.mark.parametrize("which", SYSTEMS, ids=str)
@settings(max_examples=8)
@given(st.data())
def test_every_system_runs_however_strictly(which: Variant, data: st.DataObject) -> None:
    cost = data.draw(costs(2, 4))
    for plan in which.make(cost).plan(data.draw(batches(300, 8))):
        check(plan, cost)


@given(cases(3, 4), st.booleans())
def test_what_is_sent_on_came_in_an_earlier_phase(case: tuple[Cost, Plan], backward: bool) -> None:
    cost, plan = case
    ops = plan.backward if backward else plan.forward
    parts = hops(plan, ops, cost.message_bytes(plan, ops), cost.cluster)
    number = message_batch_numbers(plan, ops, parts, backward)
    assert ((number >= 0) == (ops.kind[parts.op] == TRANSFER)).all()
    routed = parts.after >= 0
    assert (number[routed] == number[parts.after[routed]] + 1).all()
    found = edges(plan, ops, backward)
    assert isinstance(found, Edges)
    phase = number[parts.first[:-1]] // 6
    both = (ops.kind[found.producer] == TRANSFER) & (ops.kind[found.consumer] == TRANSFER)
    assert (phase[found.producer[both]] < phase[found.consumer[both]]).all()


RING = Cost(
    Cluster("ring", 2, 4, 4, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, SHARP),
    Model("m", 2, 32, 4, 2, 8, 48, 64),
)


def ring(mode: str) -> Plan:
    """One long sequence around 8 ranks, its backward as `mode` says."""
    (plan,) = Ring(RING).plan(Lengths(np.array([160]), 0, 0))
    forward = plan.with_(backward=plan.forward.take(np.zeros(0, np.int64)), backward_mode="")
    return reverse(forward, mode)


@pytest.mark.parametrize(("mode", "most"), [("keep", 8), ("carry", 15), ("regather", 15)])
def test_a_rings_hop_is_one_batch_of_all_ranks(mode: str, most: int) -> None:
    """Not one rank after another: in a hop each rank sends and receives at once."""
    for forward, backward in programs(ring(mode), RING):
        assert len(forward.batches) == 7
        assert all((len(batch.receives), len(batch.sends)) == (1, 1) for batch in forward.batches)
        assert 7 <= len(backward.batches) <= most


def test_copies_are_posted_ahead_of_who_reads_them_and_sums_once_they_are_made() -> None:
    plan = ring("keep")
    for forward, backward in programs(plan, RING):
        # Attend 0 reads what is at home, attend k what hop k - 1 brings; the plan lists a hop before the attend before.
        assert [batch.at for batch in forward.batches] == [max(0, hop + 1 - AHEAD) for hop in range(7)]
        assert all(
            batch.at == max(send.after for send in (backward.sends[at] for at in batch.sends) if isinstance(send, Send))
            for batch in backward.batches
            if batch.sends
        )


def test_a_routed_transfer_is_three_batches() -> None:
    plan = route(ring("keep"), RING)
    ops = plan.forward
    parts = hops(plan, ops, RING.message_bytes(plan, ops), RING.cluster)
    number = message_batch_numbers(plan, ops, parts, False)
    across = np.flatnonzero(RING.cluster.node_of[ops.src] != RING.cluster.node_of[ops.dst])
    assert len(across)
    for op in across.tolist():
        mine = number[parts.first[op] : parts.first[op + 1]]
        assert set((mine % 3).tolist()) == {0, 1, 2}
        assert len(set((mine // 3).tolist())) == 1


def test_a_sum_leaves_before_later_attends_and_copies_are_not_behind_it() -> None:
    """Two sequences at home on rank 1 that rank 0 attends to, one after the other."""
    blocks = Blocks(np.arange(2), np.zeros(2, np.int64), np.full(2, 8), np.arange(2), np.ones(2, np.int64))
    lists, heads, both = Lists.singletons(2), (0, 4), np.arange(2)
    there, back = (np.ones(2, np.int64), np.zeros(2, np.int64)), (np.zeros(1, np.int64), np.ones(1, np.int64))
    ops = [Ops.transfers(tensor, *there, heads, both) for tensor in (Q, KV)]
    for one in (both[:1], both[1:]):
        ops += [Ops.attends(back[0], heads, one, one), Ops.transfers(O, *back, heads, one)]
    none = Ops.concatenate([])
    plan = Plan(np.full(2, 8), both, 8, 4, blocks, lists, Ops.concatenate(ops), none, Lists.of([]))
    found = [forward for forward, _ in programs(reverse(plan, "keep"), RING)]
    verify_step(Lengths(np.full(2, 8), 0, 0), (reverse(plan, "keep"),))
    assert found[0].batches == (MessageBatch(0, (0, 1, 2, 3), ()), MessageBatch(1, (), (0,)), MessageBatch(2, (), (1,)))
    assert found[1].batches == (MessageBatch(0, (), (0, 1, 2, 3)), MessageBatch(0, (0,), ()), MessageBatch(0, (1,), ()))


def test_an_attend_does_not_wait_for_what_the_plan_lists_after_it() -> None:
    """A sequence of three blocks; the last one's rank reads the kv of the first, and only then is sent the second's."""
    edge = 8 * np.arange(3)
    blocks = Blocks(np.zeros(3, np.int64), edge, edge + 8, np.arange(3), np.array([0, 2, 1]))
    heads, own = (0, 4), [np.array([at]) for at in range(3)]
    first, second = ((np.array([0]), np.array([to]), heads, own[0]) for to in (1, 2))
    ops = [Ops.transfers(KV, *first), Ops.transfers(KV, *second)]
    ops += [Ops.attends(blocks.home[at], heads, at, kv) for at, kv in ((own[0], own[0]), (own[1], own[0]))]
    ops += [Ops.attends(np.array([1]), heads, own[2], own[0]), Ops.attends(np.array([2]), heads, own[1], own[1])]
    ops += [Ops.transfers(KV, np.array([2]), np.array([1]), heads, own[1])]
    ops += [Ops.attends(np.array([1]), heads, own[2], kv) for kv in own[1:]]
    lists, none = Lists.singletons(3), Ops.concatenate([])
    forward = Plan(np.array([24]), np.arange(1), 8, 4, blocks, lists, Ops.concatenate(ops), none, Lists.of([]))
    plan = reverse(forward, "keep")
    verify_step(Lengths(np.array([24]), 0, 0), (plan,))
    check(plan, RING)
    assert [batch.receives for batch in programs(plan, RING)[1][0].batches] == [(0,), (1,)]
