"""Attention: a system's plan, forward and backward and unchanged, as operations of every GPU of its groups.

An attend becomes a compute of o, or of dq and dkv; transfers of q, kv and do become sends, those of o, dq and dkv
moves. With do goes e, its row sums and log-sum-exps, which the backward reads beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import ENTERED
from zbench.describe.model import DKV, DO, DQ, KV, TENSOR_NAMES, O, Q
from zbench.plans.columns import Column, Lists
from zbench.plans.plan import ATTEND, Ops
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, ListTable
from zbench.step.operations import COLUMN_NAMES, COMPUTE, DROP, MOVE, QUEUES, SEND
from zbench.step.passes.parts import PlanParts
from zbench.step.template import entry_table

_COMPUTE, _SENDS = QUEUES.index("compute"), QUEUES.index("attention")
_KINDS = np.array([{Q: SEND, KV: SEND, DO: SEND, O: MOVE, DQ: MOVE, DKV: MOVE}[one] for one in range(6)], np.int64)
_WIDTH = len(COLUMN_NAMES)


@dataclass(frozen=True)
class PlanAttention:
    """Makes the operations of attention, and the entries of what it keeps. layout: for the numbers of formulas and
    tensors."""

    parts: PlanParts
    layout: StepLayout
    lists: ListTable

    def operations(self, ops: Ops, backward: bool = False, again: str = "") -> Ints:
        """Returns operations of a plan's forward or backward list as rows, int64 [n, columns of Operations]. again: "~"
        where they make or read what was made again, else ""."""
        names, (heads, which) = self.layout.number, self._of_heads(ops.head_lo, ops.head_hi)
        tensors = [names.get(f"{name}{again if name in ('q', 'kv', 'o') else ''}", -1) for name in TENSOR_NAMES]
        columns = ops.kind, ops.tensor, ops.src, ops.dst, ops.blocks, ops.kv_blocks, ops.via
        numbers = self._of_blocks(ops), self._of_lanes(ops), heads, which
        # A forward alone has neither row sums nor a formula of a backward.
        attend = self._attends_back(again) if backward else self.layout.labels.index(f"o{again}")
        rows = _rows(columns, numbers, (attend, names.get("e", -1), np.array(tensors, np.int64), _KINDS))
        return np.asarray(rows, np.int64)

    def own(self, name: str) -> tuple[Ints, Ints, Ints]:
        """Returns what GPUs keep of the q or kv of their group's own tokens, until the backward: GPUs, lists of parts
        of t, lists of parts of h or g, int64 [entries] each. It is what the backward list reads there; heads that were
        sent away are not."""
        parts, lists = self.parts, self.lists
        index, read = ("h", parts.read_at_home[0]) if name == "q" else ("g", parts.read_at_home[1])
        ways, way = _ways(read)
        sizes, inside = ways.sum(axis=1), np.nonzero(ways)[1]
        ends = np.cumsum([0, *sizes])
        slices = (parts.of_slice(index, share) for share in range(parts.degree))
        cuts = np.stack([lists.all_of(index, Lists(ends, mine[inside])) for mine in slices], axis=1)
        # Tokens of a group that are read alike stand together, those of the first one first.
        tokens, group = parts.together.items, np.repeat(np.arange(parts.plan.num_ranks), parts.together.lengths)
        kinds, first, which = np.unique(group * len(ways) + way[tokens], return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.argsort(order)[which]  # of its kind, for each token
        ends = np.cumsum([0, *np.bincount(place, minlength=len(kinds))])
        mine = lists.all_of("t", Lists(ends, tokens[np.argsort(place, kind="stable")]))
        ranks, which = np.divmod(kinds[order], len(ways))
        there = sizes[which] > 0
        gpus = (ranks[there, None] * parts.degree + np.arange(parts.degree)).reshape(-1)
        return gpus, np.repeat(mine[there], parts.degree), cuts[which[there]].reshape(-1)

    def kept_copies(self, saved: Sequence[str]) -> Ints:
        """Returns the entries of the copies of q and kv that a plan keeps where its forward brought them, until the
        backward, of those that are `saved`, int64 [entries, columns of Items]."""
        ops, degree = self.parts.plan.forward, self.parts.degree
        named = np.array([name in saved for name in TENSOR_NAMES], np.bool_)
        kept = np.flatnonzero(ops.keep)
        kept = kept[named[ops.tensor[kept]]]
        if not len(kept):
            return entry_table(0, kept, [], 0)
        heads, which = self._of_heads(ops.head_lo[kept], ops.head_hi[kept])
        cuts = heads[which, :, (ops.tensor[kept] == KV).astype(np.int64)]
        tokens = self._of_blocks(ops)[ops.blocks[kept]]
        gpus = (ops.dst[kept].astype(np.int64)[:, None] * degree + np.arange(degree)).reshape(-1)
        table = entry_table(0, self.lists.places[gpus], (np.repeat(tokens, degree), cuts.reshape(-1)), 0)
        tensors = np.array([self.layout.number.get(name, -1) for name in TENSOR_NAMES], np.int64)
        table[:, 0] = np.repeat(tensors[ops.tensor[kept]], degree)
        return table

    def dropped(self, again: str) -> Ints:
        """Returns operations that drop what the forward list brought and did not mark to stay."""
        forward = self.parts.plan.forward
        copies = (forward.kind != ATTEND) & np.isin(forward.tensor, (Q, KV)) & (forward.keep == 0)
        rows = self.operations(forward.take(np.flatnonzero(copies)), again=again)
        rows[:, 0], rows[:, 2], rows[:, 3], rows[:, 11] = DROP, rows[:, 3], -1, -1  # no lanes: nothing is sent
        return rows

    def _attends_back(self, again: str) -> int:
        """Returns the formula of dq. Where some layers' keys are made again and others' kept, it has two: the one that
        reads these keys."""
        keys = f"kv{again}"
        backs = [at for at, one in enumerate(self.layout.formulas) if one.results[0].tensor == "dq" and one.relation]
        return next(at for at in backs if any(ref.tensor == keys for ref in self.layout.formulas[at].operands))

    @cached_property
    def _blocks(self) -> Ints:
        """The list of parts of t for every list of the plan's blocks that was asked for, -1 for others; the last one
        is none."""
        return np.full(len(self.parts.plan.lists) + 1, -1, np.int64)

    def _of_blocks(self, ops: Ops) -> Ints:
        """Returns the list of parts of t for every list of blocks that operations name, -1 at the end, for none."""
        named = np.zeros(len(self._blocks), np.bool_)
        named[ops.blocks] = named[ops.kv_blocks] = True
        fresh = np.flatnonzero(named[:-1] & (self._blocks[:-1] < 0))
        if len(fresh):
            rows = self.parts.of_lists
            some = Lists.of([rows[one] for one in fresh.tolist()]) if len(fresh) < len(rows) else rows
            self._blocks[fresh] = self.lists.all_of("t", some)
        return self._blocks

    def _of_lanes(self, ops: Ops) -> Ints:
        """Returns the list of lanes for every one that operations name, and -1 at the end, for none."""
        found = np.full(len(self.parts.plan.lanes) + 1, -1, np.int64)
        for which in np.unique(ops.via[ops.via >= 0]).tolist():
            found[which] = self.lists.number(LANE, self.parts.plan.lanes[which])
        return found

    def _of_heads(self, lows: Column, highs: Column) -> tuple[Ints, Ints]:
        """Returns the lists of parts of h and of g that the different ranges of operations' heads are on each GPU of a
        group, int64 [ranges, degree, 2]; and which of these ranges each operation has."""
        parts, most = self.parts, self.parts.plan.num_heads + 1
        pair, met = lows.astype(np.int64) * most + highs, np.zeros(most**2, np.bool_)
        met[pair] = True
        low, high = np.divmod(np.flatnonzero(met), most)
        found = np.zeros((len(low), parts.degree, 2), np.int64)
        begin, end = (np.searchsorted(parts.head_cuts, edges) for edges in (low, high))
        kv = parts.kv_of_head  # ascending, by one at most
        for side, (index, first, last) in enumerate((("h", begin, end), ("g", kv[begin], kv[end - 1] + 1))):
            for share in range(parts.degree):
                found[:, share, side] = self.lists.all_of(
                    index, _spans(parts.of_slice(index, share)[0] + first, last - first)
                )
        return found, (np.cumsum(met) - 1)[pair]


def with_drops(rows: Ints, drops: Ints, lists: ListTable, keys: int) -> Ints:
    """Returns operations of attention with drops of copies that they brought, each behind the last operation that uses
    some of its tokens: a ring's keys are gone when they have been passed on. keys: the tensor of keys and values; other
    copies are of queries."""
    behind = np.zeros(len(drops), np.int64)
    for of_keys in (True, False):
        mine = np.flatnonzero((drops[:, 1] == keys) == of_keys)
        if not len(mine):
            continue
        sent = np.flatnonzero((rows[:, 0] == SEND) & (rows[:, 1] == drops[mine[0], 1]))
        read = np.flatnonzero(rows[:, 0] == COMPUTE)
        at = np.concatenate([sent, sent, read])
        place = np.concatenate([rows[sent, 2], rows[sent, 3], rows[read, 2]])
        of = np.concatenate([rows[sent, 4], rows[sent, 4], rows[read, 6 if of_keys else 4]])
        order = np.argsort(at, kind="stable")
        part, which = _parts_of(lists, of[order])
        width = int(part.max()) + 1
        last = np.zeros((int(place.max()) + 1) * width, np.int64)
        last[place[order][which] * width + part] = at[order][which]  # of several the last one stays
        part, which = _parts_of(lists, drops[mine, 4])
        np.maximum.at(behind, mine[which], last[drops[mine, 2][which] * width + part])
    moment = np.concatenate([2 * np.arange(len(rows)), 2 * behind + 1])
    return np.concatenate([rows, drops])[np.argsort(moment, kind="stable")]


def _parts_of(lists: ListTable, numbers: Ints) -> tuple[Ints, Ints]:
    """Returns the parts of lists one after another, and for each the position of its list."""
    sizes = np.array([len(lists.rows[one]) for one in numbers.tolist()], np.int64)
    parts = np.concatenate([lists.rows[one] for one in numbers.tolist()])
    return parts, np.repeat(np.arange(len(numbers)), sizes)


def _spans(first: Ints, lengths: Ints) -> Lists:
    """Returns lists of numbers that follow one another."""
    ends = np.cumsum([0, *lengths])
    return Lists(ends, np.repeat(first - ends[:-1], lengths) + np.arange(ends[-1]))


def _ways(read: Flags) -> tuple[Flags, Ints]:
    """Returns the different rows of a table, and which of them each row is."""
    if read.all():
        return read[:1], np.zeros(len(read), np.int64)
    packed = np.ascontiguousarray(np.packbits(read, axis=1))
    _, first, way = np.unique(packed.view(f"V{packed.shape[1]}"), return_index=True, return_inverse=True)
    return read[first], way.reshape(-1)


@nb.njit(**ENTERED)
def _rows(columns, numbers, names):  # type: ignore[no-untyped-def]
    """Returns operations of a plan as rows, in plan order, each on every GPU of its group. columns: of Ops. numbers: of
    lists, for those of blocks and of lanes, and for the ranges of heads of operations. names: the formula of an attend,
    the tensor of row sums, those of transfers and their kinds."""
    kind, tensor, src, dst, blocks, kv_blocks, via = columns
    (of_blocks, of_lanes, heads, which), (attend, row_sums, tensors, kinds) = numbers, names
    degree, total, at = heads.shape[1], 0, 0
    for i in range(len(kind)):
        total += degree * (2 if kind[i] != ATTEND and tensor[i] == DO else 1)
    found = np.full((total, _WIDTH), -1, np.int64)
    for i in range(len(kind)):
        attends = kind[i] == ATTEND
        for turn in range(2 if not attends and tensor[i] == DO else 1):
            for share in range(degree):
                row = found[at]
                at += 1
                row[0] = COMPUTE if attends else kinds[tensor[i]]
                row[1] = attend if attends else row_sums if turn else tensors[tensor[i]]
                row[2] = np.int64(src[i]) * degree + share
                row[3] = -1 if attends else np.int64(dst[i]) * degree + share
                row[4] = of_blocks[blocks[i]]
                row[5] = heads[which[i], share, 1 if not attends and (tensor[i] == KV or tensor[i] == DKV) else 0]
                row[6] = of_blocks[kv_blocks[i]] if attends else -1
                row[7], row[8], row[9] = 0, _COMPUTE if attends else _SENDS, 0
                row[11] = of_lanes[via[i]]
    return found
