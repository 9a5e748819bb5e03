"""Attention: a system's plan, forward and backward and unchanged, as operations of every GPU of its groups.

An attend becomes a compute of o, or of dq and dkv; transfers of q, kv and do become sends, those of o, dq and dkv
moves. With do goes e, its row sums and log-sum-exps, which the backward reads beside it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.model import DKV, DO, DQ, KV, TENSOR_NAMES, O, Q
from zbench.plans.columns import Lists
from zbench.plans.plan import ATTEND, Ops
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, ListTable
from zbench.step.operations import COMPUTE, DROP, MOVE, QUEUES, SEND
from zbench.step.passes.parts import PlanParts
from zbench.step.template import entry_table

_COMPUTE, _SENDS = QUEUES.index("compute"), QUEUES.index("attention")
_KINDS = {Q: SEND, KV: SEND, DO: SEND, O: MOVE, DQ: MOVE, DKV: MOVE}


def attention_rows(
    parts: PlanParts, ops: Ops, layout: StepLayout, lists: ListTable, backward: bool = False, again: str = ""
) -> Ints:
    """Returns operations of a plan's forward or backward list as rows, int64 [n, columns of Operations].

    again: "~" where they make or read what was made again, else "". layout: for the numbers of formulas and tensors.
    """
    tables = _Numbers(parts, layout, lists, again)
    blocks = tables.of_blocks(ops)
    most = parts.plan.num_heads + 1
    ranges, which = np.unique(ops.head_lo.astype(np.int64) * most + ops.head_hi, return_inverse=True)
    heads, lanes = tables.of_ranges(ops, np.stack(np.divmod(ranges, most), axis=1))
    each = [tables.rows(ops, (blocks, lanes), share, heads[share, which], backward) for share in range(parts.degree)]
    rows = np.concatenate(each)
    return rows[np.argsort(rows[:, -1], kind="stable"), :-1]


def own_rows(parts: PlanParts, name: str, lists: ListTable) -> tuple[Ints, Ints, Ints]:
    """Returns what GPUs keep of the q or kv of their group's own tokens, until the backward: GPUs, lists of parts of t,
    lists of parts of h or g, int64 [entries] each. It is what the backward list reads there; heads that were sent away
    are not."""
    index, read = ("h", parts.read_at_home[0]) if name == "q" else ("g", parts.read_at_home[1])
    heads, way = _ways(read)
    cuts = np.array(
        [[lists.number(index, parts.of_slice(index, at)[one]) for at in range(parts.degree)] for one in heads], np.int64
    )
    # Tokens of a group that are read alike stand together, those of the first one first.
    tokens, group = parts.together.items, np.repeat(np.arange(parts.plan.num_ranks), parts.together.lengths)
    kind = group * len(heads) + way[tokens]
    kinds, first, which = np.unique(kind, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.argsort(order)[which]  # of its kind, for each token
    rows = Lists(np.cumsum([0, *np.bincount(place, minlength=len(kinds))]), tokens[np.argsort(place, kind="stable")])
    ranks, ways = np.divmod(kinds[order], len(heads))
    there = np.flatnonzero(np.array(list(map(len, heads)))[ways])
    mine = lists.all_of("t", rows)[there]
    gpus = (ranks[there, None] * parts.degree + np.arange(parts.degree)).reshape(-1)
    return gpus, np.repeat(mine, parts.degree), cuts[ways[there]].reshape(-1)


def _ways(read: Flags) -> tuple[list[Ints], Ints]:
    """Returns the different rows of a table as the columns that each marks, and which of them each row is."""
    if read.all():
        return [np.arange(read.shape[1])], np.zeros(len(read), np.int64)
    packed = np.ascontiguousarray(np.packbits(read, axis=1))
    _, first, way = np.unique(packed.view(f"V{packed.shape[1]}"), return_index=True, return_inverse=True)
    return [np.flatnonzero(read[one]) for one in first.tolist()], way.reshape(-1)


def kept_copy_rows(parts: PlanParts, saved: Sequence[str], lists: ListTable, numbers: Mapping[str, int]) -> Ints:
    """Returns the entries of the copies of q and kv that a plan keeps where its forward brought them, until the
    backward, of those that are `saved`, int64 [entries, columns of Items]. numbers: of tensors, by their names."""
    ops, degree, most = parts.plan.forward, parts.degree, parts.plan.num_heads + 1
    named = np.array([name in saved for name in TENSOR_NAMES], np.bool_)
    kept = np.flatnonzero(ops.keep)
    kept = kept[named[ops.tensor[kept]]]
    heads = (ops.tensor[kept] * most + ops.head_lo[kept]).astype(np.int64) * most + ops.head_hi[kept]
    ranges, which = np.unique(heads, return_inverse=True)
    cuts = np.zeros((len(ranges), degree), np.int64)
    for at, (tensor, low, high) in enumerate(zip(ranges // most**2, ranges // most % most, ranges % most, strict=True)):
        cuts[at] = _cuts(parts, "h" if tensor == Q else "g", (low, high), lists)
    used, blocks = np.unique(ops.blocks[kept], return_inverse=True)
    tokens = np.array([lists.number("t", parts.of_lists[one]) for one in used.tolist()], np.int64)[blocks]
    gpus = (ops.dst[kept].astype(np.int64)[:, None] * degree + np.arange(degree)).reshape(-1)
    tensors = np.array([numbers.get(name, -1) for name in TENSOR_NAMES], np.int64)[ops.tensor[kept]]
    table = entry_table(0, lists.places[gpus], (np.repeat(tokens, degree), cuts[which].reshape(-1)), 0)
    table[:, 0] = np.repeat(tensors, degree)
    return table


def _cuts(parts: PlanParts, index: str, heads: tuple[int, int], lists: ListTable) -> list[int]:
    """Returns the list of parts of h or g that a range of heads has on each GPU of a group."""
    cut = np.arange(*np.searchsorted(parts.head_cuts, heads))
    cut = cut if index == "h" else np.unique(parts.kv_of_head[cut])
    return [lists.number(index, parts.of_slice(index, share)[cut]) for share in range(parts.degree)]


def dropped_rows(parts: PlanParts, layout: StepLayout, lists: ListTable, again: str) -> Ints:
    """Returns operations that drop what the forward list brought and did not mark to stay."""
    forward = parts.plan.forward
    copies = (forward.kind != ATTEND) & np.isin(forward.tensor, (Q, KV)) & (forward.keep == 0)
    ops = forward.take(np.flatnonzero(copies))
    rows = attention_rows(parts, ops, layout, lists, again=again)
    rows[:, 0], rows[:, 2], rows[:, 3], rows[:, 11] = DROP, rows[:, 3], -1, -1  # no lanes: nothing is sent
    return rows


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


class _Numbers:
    """The numbers of lists, formulas and tensors that operations of a plan become."""

    def __init__(self, parts: PlanParts, layout: StepLayout, lists: ListTable, again: str) -> None:
        self.parts, self.lists, self.again = parts, lists, again
        names = layout.number
        self.tensors = np.array(
            [names.get(f"{name}{again if name in ('q', 'kv', 'o') else ''}", -1) for name in TENSOR_NAMES], np.int64
        )
        self.row_sums = names.get("e", -1)  # -1: of a step without a backward, which has neither
        self.attend = layout.labels.index(f"o{again}")
        # Where some layers' keys are made again and others' kept, dq has two formulas: the one that reads these keys.
        keys = f"kv{again}"
        backs = [at for at, one in enumerate(layout.formulas) if one.results[0].tensor == "dq" and one.relation]
        reading = (at for at in backs if any(ref.tensor == keys for ref in layout.formulas[at].operands))
        self.attend_back = next(reading, -1)  # a forward alone has none

    def of_blocks(self, ops: Ops) -> Ints:
        """Returns the list of parts of t for every list of blocks that operations name, -1 for others."""
        found = np.full(len(self.parts.plan.lists) + 1, -1, np.int64)
        named = np.zeros(len(found), np.bool_)
        named[ops.blocks] = named[ops.kv_blocks] = True  # the last one is none
        for which in np.flatnonzero(named[:-1]).tolist():
            found[which] = self.lists.number("t", self.parts.of_lists[which])
        return found

    def of_lanes(self, ops: Ops) -> Ints:
        """Returns the list of lanes for every one that operations name, and -1 at the end, for none."""
        found = np.full(len(self.parts.plan.lanes) + 1, -1, np.int64)
        for which in np.unique(ops.via[ops.via >= 0]).tolist():
            found[which] = self.lists.number(LANE, self.parts.plan.lanes[which])
        return found

    def of_heads(self, index: str, share: int, low: int, high: int) -> int:
        """Returns the list of parts of h or g that a range of the plan's heads is on GPU `share` of a group."""
        mine = self.parts.of_slice(index, share)
        inside = np.arange(*np.searchsorted(self.parts.head_cuts, (low, high)))
        return self.lists.number(index, mine[inside if index == "h" else np.unique(self.parts.kv_of_head[inside])])

    def of_ranges(self, ops: Ops, ranges: Ints) -> tuple[Ints, Ints]:
        """Returns (the lists of parts of h and of g that ranges of heads are on each GPU of a group, int64 [degree,
        ranges, 2]; the lists of lanes, as `of_lanes`). ranges: first and last head, int64 [ranges, 2]."""
        found, lanes = np.zeros((self.parts.degree, len(ranges), 2), np.int64), np.full(1, -1, np.int64)
        for share in range(self.parts.degree):
            for at, (low, high) in enumerate(ranges.tolist()):
                found[share, at] = [self.of_heads(index, share, low, high) for index in ("h", "g")]
                if share == at == 0:
                    lanes = self.of_lanes(ops)
        return found, lanes

    def rows(self, ops: Ops, lists: tuple[Ints, Ints], share: int, heads: Ints, backward: bool) -> Ints:
        """Returns the rows of operations on GPU `share` of each group. Their last column sorts them into plan order.
        lists: those of blocks and of lanes; heads: of every operation its lists of h and g."""
        degree, (blocks, lanes) = self.parts.degree, lists
        attend = ops.kind == ATTEND
        tensor = np.where(attend, 0, ops.tensor)
        table = np.full((len(ops), 13), -1, np.int64)
        table[:, 0] = np.where(attend, COMPUTE, np.array([_KINDS[one] for one in range(6)])[tensor])
        table[:, 1] = np.where(attend, self.attend_back if backward else self.attend, self.tensors[tensor])
        table[:, 2] = ops.src.astype(np.int64) * degree + share
        table[:, 3] = np.where(attend, -1, ops.dst.astype(np.int64) * degree + share)
        table[:, 4] = blocks[ops.blocks]
        table[:, 5] = np.where(~attend & np.isin(tensor, (KV, DKV)), heads[:, 1], heads[:, 0])
        table[:, 6] = np.where(attend, blocks[ops.kv_blocks], -1)
        table[:, 7], table[:, 9] = 0, 0
        table[:, 8] = np.where(attend, _COMPUTE, _SENDS)
        table[:, 11] = lanes[ops.via]
        table[:, 12] = 2 * np.arange(len(ops)) * degree + share
        extra = table[~attend & (tensor == DO)].copy()
        extra[:, 1], extra[:, 12] = self.row_sums, extra[:, 12] + degree
        return np.concatenate([table, extra])
