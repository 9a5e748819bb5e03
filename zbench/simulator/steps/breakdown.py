"""Tells where the seconds of every GPU go in a whole step: an account that closes.

From the step's begin to its end a GPU's compute queue computes, waits, or is done:

- **attention**, **linear**, **optimizer**, **recomputation**: it computes. Recomputation is what makes again what the
  forward did not keep, attention included; linear is all else that is neither attention nor the optimizer. What
  messages beside it make it take longer (Device.compute_slowdown) is apart, **slowed**.
- **a gap** before a compute lasts from the end of the one before it on the same GPU (or the step's begin) to its own
  begin. It belongs to the operand that arrived last. Where a transfer of queue parameters, gradients, experts, stages
  or host brought that, all of the gap is waiting for it (**waiting_parameters**, ...; a pipeline's bubbles are
  **waiting_stages**). Of other messages, attention's and tensor parallelism's, the gap is split at the moment when the
  message could have started: what it sends, or passes on, is there, at every member of a collective, and the buffer
  that it takes is free. Before it is **waiting_rank** (somebody else was late), after it **waiting_link**: the message
  stood behind others, was on its links, or its latency passed.
- **end**: from its last compute to the end of the step.

With layers that were left out (zbench.simulator.steps.left_out) gaps are those of all layers: a gap across a cut
is as long as what was left out, of which each part has what it has in the steady half of its run, layer by layer, and
what is over is a gap like others. So parts sum to the step's seconds, but for rounding.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.compiled import IN_PLACE
from zbench.interfaces.result import SECONDS_FOR
from zbench.simulator.hop_graph import HopGraph
from zbench.simulator.steps.expand import OP, RANK
from zbench.simulator.steps.left_out import LeftOut
from zbench.simulator.steps.program import StepProgram
from zbench.simulator.steps.variant import Variant
from zbench.step.operations import COMPUTE, QUEUES

_AT = {name: number for number, name in enumerate(SECONDS_FOR)}
_SLOWED, _LINK, _RANK, _END = _AT["slowed"], _AT["waiting_link"], _AT["waiting_rank"], _AT["end"]
_SPLIT = -1  # in place of a part: of messages whose gaps are split
_WAITS = np.array([_AT.get(f"waiting_{name}", _SPLIT) for name in QUEUES], np.int64)  # by queue
_AGAIN = "~"  # at the end of the name of what is made again (zbench.step.passes.recompute)


def breakdown(left_out: LeftOut, seconds: float, num_gpus: int) -> dict[str, Floats]:
    """Returns the seconds of every GPU by what they went to, {part of SECONDS_FOR: float64 [GPUs]}; those of a GPU sum
    to `seconds`, the step's with all its layers."""
    program, timeline, added = left_out.program, left_out.timeline, left_out.added
    of = np.full(len(program.instances), -1)
    for number, (half, _) in enumerate(left_out.steady):
        of[half] = number
    cuts = np.repeat(of, np.diff(program.begin))
    following = program.graph.offsets, program.graph.followers
    times = timeline.start, timeline.done, left_out.later
    shape = len(left_out.steady) + 1, num_gpus, len(SECONDS_FOR)
    found, last = _spent(_hops_of(program), following, times, (added.cut, added.late, cuts), shape)
    parts = found[-1]
    parts[:, _END] = seconds - last
    for (_, more), steady in zip(left_out.steady, found, strict=False):
        parts += more * steady
    return {name: parts[:, number] for name, number in _AT.items()}


class _HopColumns(NamedTuple):
    """Columns of hops, int64 [hops]. gpu: of a compute, else -1. queue: that it is in. part: of a compute its own, of
    others that of a gap before what they bring, or _SPLIT. head: the first hop of its operation. busy: seconds of it
    alone, float64 [hops]."""

    gpu: Ints
    queue: Ints
    part: Ints
    head: Ints
    busy: Floats


def _hops_of(program: StepProgram) -> _HopColumns:
    graph: HopGraph = program.graph
    known: dict[int, Ints] = {}
    for one in program.instances:
        if id(one.variant) not in known:
            known[id(one.variant)] = _parts_of(one.variant)
    part = np.concatenate([known[id(one.variant)] for one in program.instances])
    table, count = program.table, program.table.shape[1]
    fresh = np.ones(count, bool)
    fresh[1:] = table[OP, 1:] != table[OP, :-1]
    fresh[program.begin[:-1][np.diff(program.begin) > 0]] = True
    head = np.maximum.accumulate(np.where(fresh, np.arange(count), 0))
    return _HopColumns(np.where(program.kinds == COMPUTE, table[RANK], -1), graph.hops.queue_a, part, head, graph.busy)


def _parts_of(variant: Variant) -> Ints:
    """Returns _HopColumns.part of a variant's hops."""
    ops, formulas = variant.ops, variant.of.layout.formulas
    again = np.array([one.results[0].tensor.endswith(_AGAIN) for one in formulas] + [False])
    computes = ops[:, 0] == COMPUTE
    kind = np.where(variant.attends, _AT["attention"], _AT["linear"])
    kind = np.where(variant.updates, _AT["optimizer"], kind)
    kind = np.where(again[np.where(computes, ops[:, 1], len(formulas))], _AT["recomputation"], kind)
    found: Ints = np.where(computes, kind, _WAITS[ops[:, 8]])[variant.lowered.table[OP]]
    return found


@nb.njit(cache=True)
def _spent(hops, following, times, cuts, shape):  # type: ignore[no-untyped-def]
    """Returns (seconds of computes and of gaps before them, [cuts + 1, GPUs, parts], with all layers in the last row;
    the end of each GPU's last compute with all layers).

    The row of a cut has those of the steady half of its run as it was played. What a hop waits for stands before it.
    times: when each starts and its data has arrived, as it was played, and by how much that is later with all layers.
    cuts: of left_out.Added, and of each hop the cut of whose steady half it is, -1: none. shape: of what is returned.
    """
    out, count = np.zeros(shape), len(times[0])
    ready, whole = np.zeros(count), np.zeros(count)  # when the last operand was there, played and with all layers
    bringer, whole_bringer = np.full(count, -1), np.full(count, -1)
    end, whole_end, before = np.zeros(shape[1]), np.zeros(shape[1]), np.full(shape[1], -1)  # of each GPU's last compute
    state = (ready, whole, bringer, whole_bringer), (end, whole_end, before)
    _follow(hops, following, times, cuts, out, state)
    return out, whole_end


@nb.njit(**IN_PLACE)
def _follow(hops, following, times, cuts, out, state):  # type: ignore[no-untyped-def]
    """Adds all hops to `out`, as `_spent`. state: of hops, and of GPUs, as `_spent` has them."""
    gpu, queue, part, head, busy = hops
    offsets, followers = following
    start, done, later = times
    cut, late, steady = cuts
    (ready, whole, bringer, whole_bringer), (end, whole_end, before) = state
    for hop in range(len(start)):
        at_gpu, ends, crosses = gpu[hop], done[hop] + later[hop], cut[hop, 1] == 0
        if at_gpu >= 0:
            last, skipped = before[at_gpu], 0.0
            if last >= 0 and cut[hop, 1] == 1 and cut[last, 1] == 0 and cut[last, 0] == cut[hop, 0]:
                skipped = late[cut[hop, 0], queue[hop]]
            mine, begin = out[len(out) - 1, at_gpu], start[hop] + later[hop]
            _gap(mine, whole_end[at_gpu] + skipped, begin, whole_bringer[hop], (part, head, whole))
            more = done[hop] - start[hop] - busy[hop] if done[hop] > start[hop] + busy[hop] else 0.0
            mine[part[hop]] += ends - begin - more
            mine[_SLOWED] += more
            if steady[hop] >= 0:
                mine = out[steady[hop], at_gpu]
                _gap(mine, end[at_gpu], start[hop], bringer[hop], (part, head, ready))
                mine[part[hop]] += done[hop] - start[hop] - more
                mine[_SLOWED] += more
            end[at_gpu], whole_end[at_gpu], before[at_gpu] = done[hop], ends, hop
        for at in range(offsets[hop], offsets[hop + 1]):
            follower, skipped = followers[at], 0.0
            if crosses and cut[follower, 1] == 1 and cut[follower, 0] == cut[hop, 0]:
                skipped = late[cut[hop, 0], queue[follower]]
            if bringer[follower] < 0 or done[hop] > ready[follower]:
                ready[follower], bringer[follower] = done[hop], hop
            if whole_bringer[follower] < 0 or ends + skipped > whole[follower]:
                whole[follower], whole_bringer[follower] = ends + skipped, hop


@nb.njit(**IN_PLACE)
def _gap(mine, begin, end, bringer, hops):  # type: ignore[no-untyped-def]
    """Adds a gap from `begin` to `end` of what the hop `bringer` brought last to a GPU's parts."""
    part, head, ready = hops
    if end <= begin:  # or less, by rounding
        return
    if bringer < 0:  # else never a compute: computes of a GPU follow each other without a gap, others' send messages
        mine[_RANK] += end - begin
    elif part[bringer] >= 0:
        mine[part[bringer]] += end - begin
    else:
        could = min(max(ready[head[bringer]], begin), end)
        mine[_RANK] += could - begin
        mine[_LINK] += end - could
