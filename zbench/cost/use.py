"""Says how attends use their blocks: whole or in part, for the first time or again."""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags
from zbench.describe.compiled import ENTERED
from zbench.plans.area import Work
from zbench.plans.plan import Column, Ints, Ops, Plan


@dataclass(frozen=True, slots=True)
class Given:
    """The blocks that attends are given (arrays over the attends of a list).

    heads, kv_heads: of the call. q_tokens, kv_tokens: of the blocks. cut: some of the heads only. again_q, again_kv: an
    earlier attend on the rank had the same q blocks (kv blocks) and heads; shares_q, shares_kv: another attend has,
    earlier or later.
    """

    heads: Ints
    kv_heads: Ints
    q_tokens: Ints
    kv_tokens: Ints
    cut: Flags
    again_q: Flags
    again_kv: Flags
    shares_q: Flags
    shares_kv: Flags


@dataclass(frozen=True, slots=True)
class Use(Given):
    """The use that attends make of what they are given.

    buffer: kv tokens that the kernel is given. many: several whole blocks of kv, which are copied into one buffer.
    """

    buffer: Ints
    many: Flags

    @staticmethod
    def of(plan: Plan, ops: Ops, attend: Ints, work: Work, kv_heads: Column, known: "Repeats | None" = None) -> "Use":
        """Works out how the attends of a plan use their blocks."""
        one = given(plan, ops, attend, kv_heads, known)
        many = (plan.lists.lengths[ops.kv_blocks[attend]] > 1) & ~one.cut
        buffer = np.where(many, one.kv_tokens, np.minimum(work.keys, one.kv_tokens))
        return Use(**{name: getattr(one, name) for name in Given.__slots__}, buffer=buffer, many=many)


def given(plan: Plan, ops: Ops, attend: Ints, kv_heads: Column, known: "Repeats | None" = None) -> Given:
    """Returns the blocks that attends are given; known: the repeats among all attends of the list, where `attend` are
    some of them."""
    heads = (ops.head_hi - ops.head_lo)[attend].astype(np.int64)
    flags = known or Repeats.of(plan, ops, attend)
    again = (flags.again_q, flags.again_kv, flags.shares_q, flags.shares_kv)
    tokens = plan.list_tokens[ops.blocks[attend]], plan.list_tokens[ops.kv_blocks[attend]]
    return Given(heads, kv_heads.astype(np.int64), *tokens, heads < plan.num_heads, *again)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Flags of the attends that have blocks which others on their rank have too, as in Use."""

    again_q: Flags
    shares_q: Flags
    again_kv: Flags
    shares_kv: Flags

    @staticmethod
    def of(plan: Plan, ops: Ops, attend: Ints) -> "Repeats":
        """Finds the repeats among attends."""
        order = np.argsort(ops.src[attend], kind="stable")
        place = (ops.src, ops.head_lo, attend, order, len(plan.lists), plan.num_heads + 1)
        return Repeats(*_repeats(ops.blocks, *place), *_repeats(ops.kv_blocks, *place))

    def part(self, where: slice) -> "Repeats":
        """Returns the repeats of a slice of the attends."""
        return Repeats(self.again_q[where], self.shares_q[where], self.again_kv[where], self.shares_kv[where])


@nb.njit(**ENTERED)
def _repeats(lists, src, head_lo, attend, order, num_lists, width):  # type: ignore[no-untyped-def]
    """Returns (whether an earlier attend of the rank has the same list and first head, whether any other one has)."""
    again, shares = np.zeros(len(order), np.bool_), np.zeros(len(order), np.bool_)
    first = np.full(num_lists * width, -1, np.int32)  # by list and head, the rank's first one
    begin = 0
    while begin < len(order):
        rank, end = src[attend[order[begin]]], begin
        while end < len(order) and src[attend[order[end]]] == rank:
            at = order[end]
            key = lists[attend[at]] * width + head_lo[attend[at]]
            if first[key] < 0:
                first[key] = at
            else:
                again[at] = shares[at] = shares[first[key]] = True
            end += 1
        for place in range(begin, end):
            at = attend[order[place]]
            first[lists[at] * width + head_lo[at]] = -1
        begin = end
    return again, shares
