"""Which messages travel together: every leg's batch, and what a rank posts when. No torch: numpy only.

Where messages have no names (NCCL), what a rank sends and receives has to be posted in an order that all ranks agree
on. So each transfer has a **phase**, the same on all ranks, by the plan's total order: one that sends what an earlier
one brought comes in a later phase, and so does one that the plan lists after an attend of a rank it touches (source,
target or proxy). A phase is up to three **batches**, by the legs of routed transfers: dispatch, NIC to NIC, combine.
A rank posts its part of each batch at once, and its batches in order.

Nothing deadlocks, even if a rank stood still until each of its batches is complete. Take the first batch that is not:
what it sends came with earlier ones; and the attends that its ranks start before it are, by the rule above, those that
read what came in earlier phases only, as `at` never goes past the place that the plan gives a batch among the attends.
"""

from collections.abc import Sequence
from dataclasses import replace

import numba as nb
import numpy as np

from zbench.cost import Cost
from zbench.dataflow import Edges, edges
from zbench.legs import LANES, Legs, legs
from zbench.plan import TRANSFER, Ints, Ops, Plan
from zbench.runtime.program import HOME, Attend, Batch, Program, Relay, Send

AHEAD = 2  # attends by which a copy's batch is posted early: enough to overlap with one, few enough to bound memory


def batched(plan: Plan, rank: int, cost: Cost, pair: tuple[Program, Program]) -> tuple[Program, Program]:
    """The rank's programs of `plan` (zbench.runtime.compiler) with their batches."""
    forward, backward = (
        _with_batches(plan, rank, cost, ops, is_backward, program)
        for program, ops, is_backward in zip(pair, (plan.forward, plan.backward), (False, True), strict=True)
    )
    return forward, backward


def _with_batches(plan: Plan, rank: int, cost: Cost, ops: Ops, backward: bool, program: Program) -> Program:
    parts = legs(plan, ops, cost.message_bytes(plan, ops), cost.cluster)
    return replace(program, batches=batches(program, numbers(plan, ops, parts, backward), parts.op))


def numbers(plan: Plan, ops: Ops, parts: Legs, backward: bool) -> Ints:
    """int64 [num_legs]: the batch of every leg of a transfer, -1 for attends."""
    found = edges(plan, ops, backward)
    assert isinstance(found, Edges)
    moves = ops.kind == TRANSFER
    both = moves[found.producer] & moves[found.consumer]
    order = np.argsort(found.consumer[both], kind="stable")
    producer, consumer = found.producer[both][order], found.consumer[both][order]
    first = np.searchsorted(consumer, np.arange(len(ops) + 1))
    phase = _phases(moves, ops.src, producer, first, parts.first, parts.rank, parts.lane_b // LANES, plan.num_ranks)
    later = parts.after >= 0
    depth = np.where(later, 1 + later[parts.after], 0)
    return np.where(moves[parts.op], 3 * phase[parts.op] + depth, -1)


@nb.njit(cache=True)
def _phases(moves, src, producer, first, legs_first, leg_from, leg_to, num_ranks):  # type: ignore[no-untyped-def]
    """int64 [num_ops]: of every transfer, -1 for attends."""
    phases = np.full(len(moves), -1, np.int64)
    last = np.full(num_ranks, -1, np.int64)  # phase of the transfer that touched a rank last
    attended = np.zeros(num_ranks, np.int64)  # 1: an attend of the rank is listed after that
    for op in range(len(moves)):
        if not moves[op]:
            attended[src[op]] = 1
            continue
        phase = 0
        for at in range(first[op], first[op + 1]):
            phase = max(phase, phases[producer[at]] + 1)
        for leg in range(legs_first[op], legs_first[op + 1]):
            for rank in (leg_from[leg], leg_to[leg]):
                phase = max(phase, last[rank] + attended[rank])
        phases[op] = phase
        for leg in range(legs_first[op], legs_first[op + 1]):
            for rank in (leg_from[leg], leg_to[leg]):
                last[rank], attended[rank] = phase, 0
    return phases


def batches(program: Program, number: Ints, op: Ints) -> tuple[Batch, ...]:
    """What one rank posts, in order. number: int64 [num_legs], the batch of every leg; op: its operation."""
    receives: dict[int, list[int]] = {}
    sends: dict[int, list[int]] = {}
    earliest: dict[int, int] = {}  # operation of a batch's first message here
    for table, messages in ((receives, program.receives), (sends, program.sends)):
        for at, message in enumerate(messages):
            leg = message.legs[0][0] if isinstance(message, Send) else message.leg
            table.setdefault(int(number[leg]), []).append(at)
            earliest[int(number[leg])] = min(earliest.get(int(number[leg]), len(op)), int(op[leg]))
    attends = np.array([step.op for step in program.attends], np.int64)
    reader = _readers(program)
    out: list[Batch] = []
    for one in sorted(earliest):
        mine, theirs = tuple(receives.get(one, ())), tuple(sends.get(one, ()))
        place = int(np.searchsorted(attends, earliest[one]))
        after = max((_after(program.sends[at]) for at in theirs), default=0)
        read = min((reader[at] for at in mine if at in reader), default=0)
        at = max(out[-1].at if out else 0, after, min(place, read - AHEAD))
        assert after <= at, "x"
        out.append(Batch(at, mine, theirs))
    return tuple(out)


def _after(send: Send | Relay) -> int:
    return send.after if isinstance(send, Send) else 0


def _readers(program: Program) -> dict[int, int]:
    """Of receives that attends read: the first attend that does."""
    found: dict[int, int] = {}
    for number, step in enumerate(program.attends):
        for slot in _slots(step):
            for receive in program.arrives[slot] if slot != HOME else ():
                found.setdefault(receive, number)
    return found


def _slots(step: Attend) -> Sequence[int]:
    reads = [read.slot for read in (step.q, step.kv, step.do) if read is not None]
    return [*reads, *(place for fill in step.fills for place in (fill.slot, *(part.slot for part in fill.parts)))]
