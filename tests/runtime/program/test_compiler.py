"""Programs of plans: what can be seen without running them. That they compute the right thing: test_conformance."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import batches, costs
from tests.helpers.variants import VARIANTS, Variant
from zbench.cost.cost import Cost
from zbench.describe.arrays import Flags, Ints
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.runtime.kernels.cuda import Flash, TorchFlash
from zbench.runtime.program.compiler import Compiler
from zbench.runtime.program.program import HOME, Program, Relay, Send
from zbench.simulated.executor import Simulated
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses


def cut(queries: Ints, before: Ints, diagonal: Flags, left: Ints) -> int:
    assert (left == -1).all()
    return int((queries * before + diagonal * queries * (queries + 1) // 2).sum())


def programs(plan: Plan, cost: Cost) -> list[tuple[Program, Program]]:
    return [Compiler(plan, rank, cost, lambda rows: rows, cut).compile() for rank in range(plan.num_ranks)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", VARIANTS, ids=str)
@settings(max_examples=6)  # each compiles for every rank
@given(st.data())
def test_what_is_sent_is_received_every_pair_is_attended_and_memory_is_used_as_counted(
    which: Variant, data: st.DataObject
) -> None:
    cost = data.draw(costs(3, 4))
    for plan in which.make(cost).plan(data.draw(batches(400, 8))):
        found = programs(plan, cost)
        for way in (0, 1):
            assert_received([pair[way] for pair in found])
            area = sum(step.cuts * (step.hi - step.lo) for pair in found for step in pair[way].attends)
            assert area == plan.num_heads * int((plan.lengths * (plan.lengths + 1) // 2).sum())
        for program in (one for pair in found for one in pair):
            assert counted_uses(program) == program.uses


def assert_received(found: Sequence[Program]) -> None:
    """Holds what all ranks' programs send in a forward or a backward to what they receive."""
    sent, received = [], []
    for rank, program in enumerate(found):
        sizes = {receive.hop: receive.end - receive.begin for receive in program.receives}
        for send in program.sends:
            if isinstance(send, Relay):
                hop = program.receives[send.received].hop
                assert program.receives[send.received].slot == HOME
                sent.append((send.hop, rank, send.peer, sizes[hop]))
            else:
                sent += [(hop, rank, peer, end - begin) for hop, peer, begin, end in send.hops]
        received += [(r.hop, r.peer, rank, r.end - r.begin) for r in program.receives]
    assert sorted(sent) == sorted(received)


def counted_uses(program: Program) -> tuple[int, ...]:
    """How often each slot is used: one that is let go too early, or never, would be counted wrong."""
    uses = [0] * len(program.slots)
    for step in program.attends:
        for read in (step.q, step.kv, step.do):
            if read is not None and read.slot != HOME:
                uses[read.slot] += 1
        for part in (part for fill in step.fills for part in fill.parts):
            if part.slot != HOME:
                uses[part.slot] += 1
    for send in program.sends:
        if isinstance(send, Send):
            for slot in (send.whole, *(part.slot for part in send.parts)):
                if slot != HOME:
                    uses[slot] += 1
    for part in (part for collect in program.collects for part in collect.parts):
        uses[part.slot] += 1
    return tuple(uses)


def test_a_ring_hop_forwards_what_arrived_as_it_lies(uneven: Cost) -> None:
    cost = replace(uneven, cluster=replace(uneven.cluster, num_nodes=1, gpus_per_node=4, nics_per_node=1))
    (plan,) = Ring(cost).plan(Batch(np.array([80]), 0, 0))
    for forward, _ in programs(plan, cost):
        own, *hops = forward.sends
        assert isinstance(own, Send)
        assert own.whole == HOME
        assert hops
        for hop in hops:
            assert isinstance(hop, Send)
            assert hop.whole != HOME
            assert not hop.parts


def test_an_all_to_all_is_received_where_the_kernel_reads_it(uneven: Cost) -> None:
    cost = replace(uneven, cluster=replace(uneven.cluster, num_nodes=1, gpus_per_node=3, nics_per_node=1))
    (plan,) = Ulysses(cost).plan(Batch(np.array([30, 12, 3]), 0, 0))
    for forward, backward in programs(plan, cost):
        (step,) = forward.attends
        parts = [part for fill in step.fills for part in fill.parts]
        assert [part.slot for part in parts] == [HOME, HOME]  # of q and of kv; the others' rows came by themselves
        assert not [
            fill for step in backward.attends for fill in step.fills if fill.slot in (step.q.slot, step.kv.slot)
        ]


def test_a_paced_attend_knows_what_of_its_seconds_is_repacking(uneven: Cost) -> None:
    """All attends of a rank together: what a simulated step tells apart."""
    cost = replace(uneven, cluster=replace(uneven.cluster, num_nodes=1, gpus_per_node=3, nics_per_node=1))
    batch = Batch(np.array([30, 12, 3]), 0, 0)
    for system, repacks in ((Ulysses, True), (Ring, False)):
        (plan,) = system(cost).plan(batch)
        moved = Simulated(cost).step(batch, (plan,)).seconds_for.get("repacking", [0.0] * 3)
        for rank in range(3):
            both = Compiler(plan, rank, cost, lambda rows: rows, cut, is_paced=True).compile()
            attends = [step for program in both for step in program.attends]
            assert all(0 <= step.repacking < step.seconds for step in attends)
            assert any(step.repacking > 0 for step in attends) == repacks
            total = cost.layers * sum(step.repacking for step in attends)
            assert total == pytest.approx(moved[rank], rel=1e-12)


@pytest.mark.parametrize("which", VARIANTS, ids=str)
def test_sequences_of_one_rank_are_one_variable_length_call(which: Variant, uneven: Cost) -> None:
    """However many and short they are: no gathered rows, no slot, one call of the kernel."""
    cost = replace(uneven, cluster=replace(uneven.cluster, num_nodes=1, gpus_per_node=1, nics_per_node=1))
    kernel = Flash("flash", TorchFlash(), torch.device("cpu"))
    for plan in which.make(cost).plan(Batch(np.array([50, 3, 17, 1, 90, 2, 2]), 0, 0)):
        for program in Compiler(plan, 0, cost, lambda rows: rows, kernel.cut).compile():
            (step,) = program.attends
            reads = [read for read in (step.q, step.kv, step.do) if read is not None]
            everything = slice(0, int(plan.lengths.sum()))
            assert [(read.slot, read.rows) for read in reads] == [(HOME, everything)] * len(reads)
            assert all(add.fresh and add.whole for add in step.adds)
            (call,) = step.cuts
            assert (call.causal, len(call.cu_q) - 1) == (True, len(plan.lengths))
            assert (program.slots, program.sends, program.receives) == ((), (), ())
