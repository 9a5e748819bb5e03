"""Decides which messages travel together: every hop's batch, and what a rank posts when. No torch: numpy only.

Where messages have no names (NCCL), all ranks have to post what they send and receive in an order that they agree on.
So the hops of transfers are numbered, the same on all ranks, and those of one number are a **batch**: a rank posts its
part of it at once, and its batches by number. Numbers follow from **phases**. A transfer is in the first phase that
- comes after that of each transfer which brought what it sends;
- comes after those of what attends of its target, listed before it, read: so these do not wait for it;
- for sums (o, dq, dkv), comes after those of what attends of its source, listed before it, read: they made it;
- for sums, comes after that of the last sum that its source sent, if attends came between: so that one leaves early.
A phase has six batches: copies, then sums, each by the hops of routed transfers: dispatch, NIC to NIC, combine.
All of that follows from what needs what. No seconds are in it, so neither links' rates nor their channels are.

Nothing deadlocks, even if a rank stood still until a batch it has posted is complete. Take the lowest batch that is
not complete. What its ranks wait for before they post it came with lower batches: what they send, by the first rule,
and what those attends read that they start before (MessageBatch.at). For `at` goes past an attend for two reasons
only: the batch sends a sum, which is the third rule; or it brings a copy and is listed after the attend,
which is the second.
"""

from collections.abc import Sequence
from dataclasses import replace

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.compiled import ENTERED
from zbench.plans.dataflow import Edges, edges
from zbench.plans.plan import TRANSFER, Ints, Ops, Plan
from zbench.plans.touches import IS_COPY
from zbench.runtime.program.program import HOME, KernelCall, MessageBatch, Program, Relay, Send
from zbench.simulator.hops import Hops, hops

AHEAD = 8  # attends by which copies may come early: enough to overlap with them, few enough to bound memory


def with_message_batches(plan: Plan, cost: Cost, pair: tuple[Program, Program]) -> tuple[Program, Program]:
    """Returns a rank's programs of `plan` (zbench.runtime.program.compiler) with their batches."""
    forward, backward = (
        _with_batches(plan, cost, ops, is_backward, program)
        for program, ops, is_backward in zip(pair, (plan.forward, plan.backward), (False, True), strict=True)
    )
    return forward, backward


def _with_batches(plan: Plan, cost: Cost, ops: Ops, backward: bool, program: Program) -> Program:
    parts = hops(plan, ops, cost.message_bytes(plan, ops), cost.cluster)
    return replace(program, batches=batches(program, message_batch_numbers(plan, ops, parts, backward), parts.op))


def message_batch_numbers(plan: Plan, ops: Ops, parts: Hops, backward: bool) -> Ints:
    """Returns int64 [num_hops]: the batch of every hop of a transfer, -1 for attends."""
    found = edges(plan, ops, backward)
    assert isinstance(found, Edges)
    moves = ops.kind == TRANSFER
    brings = moves[found.producer]
    order = np.argsort(found.consumer[brings], kind="stable")
    producer, consumer = found.producer[brings][order], found.consumer[brings][order]
    first = np.searchsorted(consumer, np.arange(len(ops) + 1))
    sums = moves & ~IS_COPY[ops.tensor]
    phase = _phases(moves, sums, ops.src, ops.dst, producer, first, plan.num_ranks)
    later = parts.after >= 0
    depth = np.where(later, 1 + later[parts.after], 0)
    return np.where(moves[parts.op], 6 * phase[parts.op] + 3 * sums[parts.op] + depth, -1)


@nb.njit(**ENTERED)
def _phases(moves, sums, src, dst, producer, first, num_ranks):  # type: ignore[no-untyped-def]
    """Returns int64 [num_ops]: the phase of every transfer, -1 for attends. first: where an operation's producers
    begin."""
    phases = np.full(len(moves), -1, np.int64)
    read = np.full(num_ranks, -1, np.int64)  # latest phase that attends of a rank read
    sent = np.full(num_ranks, -1, np.int64)  # phase of the last sum that a rank sent
    attended = np.zeros(num_ranks, np.int64)  # 1: it attended since
    for op in range(len(moves)):
        brought = -1
        for at in range(first[op], first[op + 1]):
            brought = max(brought, phases[producer[at]])
        if not moves[op]:
            read[src[op]] = max(read[src[op]], brought)
            attended[src[op]] = 1
            continue
        phases[op] = 1 + max(brought, read[dst[op]])
        if sums[op]:
            phases[op] = max(phases[op], 1 + read[src[op]], sent[src[op]] + attended[src[op]])
            sent[src[op]], attended[src[op]] = phases[op], 0
    return phases


def batches(program: Program, number: Ints, op: Ints) -> tuple[MessageBatch, ...]:
    """Lists what one rank posts, in order. number: int64 [num_hops], the batch of every hop; op: its operation."""
    receives: dict[int, list[int]] = {}
    sends: dict[int, list[int]] = {}
    listed: dict[int, int] = {}  # operation of a batch's first message here
    for table, messages in ((receives, program.receives), (sends, program.sends)):
        for at, message in enumerate(messages):
            hop = message.hops[0][0] if isinstance(message, Send) else message.hop
            one = int(number[hop])
            table.setdefault(one, []).append(at)
            listed[one] = min(listed.get(one, len(op)), int(op[hop]))
    attends = np.array([step.op for step in program.attends], np.int64)
    reader = _readers(program)
    out: list[MessageBatch] = []
    for one in sorted(listed):
        mine, theirs = tuple(receives.get(one, ())), tuple(sends.get(one, ()))
        readers = [reader[at] for at in mine if at in reader]
        wanted = min(readers) - AHEAD if readers else 0
        at = max(
            out[-1].at if out else 0,
            min(wanted, int(np.searchsorted(attends, listed[one]))),
            max((_after(program.sends[send]) for send in theirs), default=0),
        )
        assert all(at <= number for number in readers), "an attend comes before what it reads"
        out.append(MessageBatch(at, mine, theirs))
    return tuple(out)


def _after(send: Send | Relay) -> int:
    return send.after if isinstance(send, Send) else 0


def _readers(program: Program) -> dict[int, int]:
    """Returns, for receives that attends read, the first attend that does."""
    found: dict[int, int] = {}
    for number, step in enumerate(program.attends):
        for slot in _slots(step):
            for receive in program.arrives[slot] if slot != HOME else ():
                found.setdefault(receive, number)
    return found


def _slots(step: KernelCall) -> Sequence[int]:
    reads = [read.slot for read in (step.q, step.kv, step.do) if read is not None]
    return [*reads, *(place for fill in step.fills for place in (fill.slot, *(part.slot for part in fill.parts)))]
