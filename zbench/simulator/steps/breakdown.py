"""Tells where the seconds of every GPU go in a whole step: an account that closes.

From the step's begin to its end a GPU's compute queue computes, waits, or is done:

- **attention**, **linear**, **optimizer**, **recomputation**: it computes. Recomputation is what makes again what the
  forward did not keep, attention included; linear is all else that is neither attention nor the optimizer. What
  messages beside it make it take longer (Device.compute_slowdown) is apart, **slowed**.
- **a gap** before a compute lasts from the end of the one before it on the same GPU (or the step's begin) to its own
  begin. It belongs to the operand that arrived last. Where a transfer for parameters, gradients, experts, stages
  or host brought that, all of the gap is waiting for it (**waiting_parameters**, ...; a pipeline's bubbles are
  **waiting_stages**). Of other messages, attention's and tensor parallelism's, the gap is split at the moment when the
  message could have started: what it sends, or passes on, is there, at every member of a collective, and the buffer
  that it takes is free. Before it is **waiting_rank** (somebody else was late), after it **waiting_link**: the message
  stood behind others, was on its links, or its latency passed.
- **end**: from its last compute to the end of the step.

With layers that were left out (zbench.simulator.steps.left_out) gaps are those of all layers: a gap across a cut is
as long as what was left out, of which each part has what it has in the steady half of its run, layer by layer, and what
is over is a gap like others. So parts sum to the step's seconds, but for rounding.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.compiled import ENTERED, ENTERED_IN_PLACE, IN_PLACE
from zbench.interfaces.result import SECONDS_FOR
from zbench.simulator.steps.expand import OP, RANK
from zbench.simulator.steps.left_out import LeftOut
from zbench.simulator.steps.program import StepParts
from zbench.simulator.steps.trains.columns import Narrow
from zbench.simulator.steps.variant import Variant
from zbench.step.form import LayoutForm
from zbench.step.formula import Formula
from zbench.step.operations import COMPUTE, PURPOSE_OF, QUEUES

_AT = {name: number for number, name in enumerate(SECONDS_FOR)}
_SLOWED, _LINK, _RANK, _END = _AT["slowed"], _AT["waiting_link"], _AT["waiting_rank"], _AT["end"]
_SPLIT = -1  # in place of a part: of messages whose gaps are split
_WAITS = np.array([_AT.get(f"waiting_{name}", _SPLIT) for name in QUEUES], np.int64)[PURPOSE_OF]  # by kind and queue
_AGAIN = "~"  # at the end of the name of what is made again (zbench.step.passes.recompute)


def breakdown(left_out: LeftOut, seconds: float, num_gpus: int) -> dict[str, Floats]:
    """Returns the seconds of every GPU by what they went to, {part of SECONDS_FOR: float64 [GPUs]}; those of a GPU sum
    to `seconds`, the step's with all its layers."""
    program, timeline, added = left_out.program, left_out.timeline, left_out.added
    steady = np.full(len(program.of), -1)
    for number, (half, _) in enumerate(left_out.steady):
        steady[half] = number
    following = program.assembled.following.offsets, program.assembled.following.followers
    times = timeline.start, timeline.done, left_out.later
    shape = len(left_out.steady) + 1, num_gpus, len(SECONDS_FOR)
    hops = program.hops, program.owner, _columns_of(program.variants, program.stacked.begin, num_gpus)
    found, last = _spent(hops, following, times, (added.cut, added.late, steady), shape)
    parts = found[-1]
    parts[:, _END] = seconds - last
    for (_, more), played in zip(left_out.steady, found, strict=False):
        parts += more * played
    return {name: parts[:, number] for name, number in _AT.items()}


def recomputation_seconds(parts: StepParts) -> float:
    """Returns the seconds of recomputation of a step, of the GPU that has most."""
    variants, which = parts.of_step
    found, begin = np.zeros(parts.step.num_gpus), np.cumsum([0, *(len(one.lowered.busy) for one in variants)])
    columns, times = _columns_of(variants, begin, len(found)), np.bincount(which, minlength=len(variants)).tolist()
    for variant, count, (first, last) in zip(variants, times, pairwise(begin.tolist()), strict=True):
        mine = np.flatnonzero((columns.part[first:last] == _AT["recomputation"]) & (columns.gpu[first:last] >= 0))
        found += count * np.bincount(columns.gpu[first:last][mine], variant.lowered.busy[mine], len(found))
    return float(found.max())


class _HopColumns(NamedTuple):
    """Columns of the hops of variants, one after another, int32 [rows]. gpu: of a compute, else -1. part: of a compute
    its own, of others that of a gap before what they bring, or _SPLIT. head: the hops between a hop and the first of
    its operation."""

    gpu: Narrow
    part: Narrow
    head: Narrow


def _columns_of(variants: Sequence[Variant], begin: Ints, num_gpus: int) -> _HopColumns:
    """Returns columns of the hops of variants. begin: where those of each begin, and the end."""
    found = _HopColumns(*(np.empty(begin[-1], np.int32) for _ in range(3)))
    for variant, first in zip(variants, begin.tolist(), strict=False):
        of_formula, table = _parts_of(variant.of.layout.form), variant.lowered.table
        _put_columns(variant.ops, table, (of_formula, _WAITS), num_gpus, first, found)
    return found


@lru_cache(maxsize=64)
def _parts_of(form: LayoutForm) -> Ints:
    """Returns the part of every formula's computes."""
    return np.array([_part_of(one) for one in form.formulas], np.int64)


def _part_of(formula: Formula) -> int:
    """Returns the part of a formula's computes."""
    if formula.results[0].tensor.endswith(_AGAIN):
        return _AT["recomputation"]
    name = formula.terms[0].function
    return _AT["optimizer"] if name == "adam" else _AT["attention"] if name in ("attend", "attend_d") else _AT["linear"]


@nb.njit(**ENTERED_IN_PLACE)
def _put_columns(ops, table, parts, num_gpus, first, found):  # type: ignore[no-untyped-def]
    """Writes _HopColumns of a variant's hops from the row `first` on. parts: by formula of computes, and by kind and
    queue of others."""
    head = 0
    for hop in range(table.shape[1]):
        op, gpu = table[OP, hop], table[RANK, hop]
        if hop == 0 or op != table[OP, hop - 1]:
            head = hop
        computes, at = ops[op, 0] == COMPUTE, first + hop
        found.gpu[at] = gpu if computes and gpu < num_gpus else -1
        found.part[at] = parts[0][ops[op, 1]] if computes else parts[1][ops[op, 0], ops[op, 8]]
        found.head[at] = hop - head


@nb.njit(**ENTERED)
def _spent(hops, following, times, cuts, shape):  # type: ignore[no-untyped-def]
    """Returns (seconds of computes and of gaps before them, [cuts + 1, GPUs, parts], with all layers in the last row;
    the end of each GPU's last compute with all layers).

    The row of a cut has those of the steady half of its run as it was played. What a hop waits for stands before it.
    hops: ProgramHops, their instances, and _HopColumns. times: when each starts and its data has arrived, as it was
    played, and by how much that is later with all layers. cuts: of left_out.Added, and of each instance the cut of
    whose steady half it is, -1: none. shape: of what is returned.
    """
    out, count = np.zeros(shape), len(times[0])
    ready, whole = np.zeros(count), np.zeros(count)  # when the last operand was there, played and with all layers
    bringer, whole_bringer = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    end, whole_end, before = np.zeros(shape[1]), np.zeros(shape[1]), np.full(shape[1], -1)  # of each GPU's last compute
    state = (ready, whole, bringer, whole_bringer), (end, whole_end, before)
    _follow(hops, following, times, cuts, out, state)
    return out, whole_end


@nb.njit(**IN_PLACE)
def _follow(hops, following, times, cuts, out, state):  # type: ignore[no-untyped-def]
    """Adds all hops to `out`, as `_spent`. state: of hops, and of GPUs, as `_spent` has them."""
    (row_of, rows), owner, columns = hops
    offsets, followers = following
    start, done, later = times
    cut, late, steady = cuts
    (ready, whole, bringer, whole_bringer), (end, whole_end, before) = state
    for hop in range(len(start)):
        mine, row = owner[hop], row_of[hop]
        at_gpu, ends, of, after = columns.gpu[row], done[hop] + later[hop], cut[mine, 0], cut[mine, 1]
        if at_gpu >= 0:
            last, skipped, part = before[at_gpu], 0.0, columns.part[row]
            if last >= 0 and after == 1 and cut[owner[last], 1] == 0 and cut[owner[last], 0] == of:
                skipped = late[of, rows.queue_a[row]]
            sums, begin = out[len(out) - 1, at_gpu], start[hop] + later[hop]
            _gap(sums, whole_end[at_gpu] + skipped, begin, whole_bringer[hop], (row_of, columns, whole))
            more = done[hop] - start[hop] - rows.busy[row] if done[hop] > start[hop] + rows.busy[row] else 0.0
            sums[part] += ends - begin - more
            sums[_SLOWED] += more
            if steady[mine] >= 0:
                sums = out[steady[mine], at_gpu]
                _gap(sums, end[at_gpu], start[hop], bringer[hop], (row_of, columns, ready))
                sums[part] += done[hop] - start[hop] - more
                sums[_SLOWED] += more
            end[at_gpu], whole_end[at_gpu], before[at_gpu] = done[hop], ends, hop
        for at in range(offsets[hop], offsets[hop + 1]):
            follower, skipped = followers[at], 0.0
            if after == 0 and cut[owner[follower], 1] == 1 and cut[owner[follower], 0] == of:
                skipped = late[of, rows.queue_a[row_of[follower]]]
            if bringer[follower] < 0 or done[hop] > ready[follower]:
                ready[follower], bringer[follower] = done[hop], hop
            if whole_bringer[follower] < 0 or ends + skipped > whole[follower]:
                whole[follower], whole_bringer[follower] = ends + skipped, hop


@nb.njit(**IN_PLACE)
def _gap(sums, begin, end, bringer, hops):  # type: ignore[no-untyped-def]
    """Adds a gap from `begin` to `end` of what the hop `bringer` brought last to a GPU's parts."""
    row_of, columns, ready = hops
    if end <= begin:  # or less, by rounding
        return
    if bringer < 0:  # else never a compute: computes of a GPU follow each other without a gap, others' send messages
        sums[_RANK] += end - begin
        return
    row = row_of[bringer]
    if columns.part[row] >= 0:
        sums[columns.part[row]] += end - begin
    else:
        could = min(max(ready[bringer - columns.head[row]], begin), end)
        sums[_RANK] += could - begin
        sums[_LINK] += end - could
