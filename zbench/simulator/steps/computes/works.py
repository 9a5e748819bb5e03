"""Counts what computes have to do, term by term, for all operations of a layout at once; compiled."""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.describe.compiled import ENTERED, IN_PLACE
from zbench.simulator.steps.computes.terms import MATMUL, SCORE, UPDATE, TermRows
from zbench.step.operations import COMPUTE

TURNED, STRAIGHT, GRADIENT = range(3)  # matmuls: rows by inner, by columns; of tokens with tokens


class Named(NamedTuple):
    """The tensors, lists and indices that operations of a layout may name.

    ref_offsets, refs, slots: zbench.step.layout.FormulaRows. list_offsets, list_sizes: parts of lists, and tokens,
    heads or columns of all of them; index_sizes: those of every index, index_of_batch: whether its parts are tokens.
    whole: bytes of all of each tensor; parameter: the tensor that each is the gradient of, itself where it is none;
    of_batch: as of StepLayout.
    """

    ref_offsets: Ints
    refs: Ints
    slots: Ints
    list_offsets: Ints
    list_sizes: Ints
    index_sizes: Floats
    index_of_batch: Flags
    whole: Floats
    parameter: Ints
    of_batch: Flags


class CountedAmounts(NamedTuple):
    """Amounts that are counted beside, by the computes of a formula in their order.

    bytes_at: by reference, where the bytes that computes name by it begin in `bytes`, -1 where lists say them.
    meeting_at: by formula, the same of the shares of pairs that meet, -1 where all do. routed: by formula, whether
    another table has its rows, as of experts.
    """

    bytes_at: Ints
    bytes: Floats
    meeting_at: Ints
    meeting: Floats
    routed: Flags


class Works(NamedTuple):
    """The work of terms of computes, one after another, those of one operation in the formula's order.

    op, row: the operation and the row of terms. passed: bytes that pass through memory once; of them the share
    `meeting` does. tokens: of the operation. elements: of a parameter, and share: of all of it, that the term
    multiplies with, makes the gradient of or updates; of a part of it where a formula is routed. again: whether another
    compute at the place has added to the same gradient. shape: TURNED ... GRADIENT.
    """

    op: Ints
    row: Ints
    passed: Floats
    meeting: Floats
    tokens: Floats
    elements: Floats
    share: Floats
    again: Flags
    shape: Ints

    def take(self, index: Ints) -> "Works":
        """Returns some of them."""
        return Works(*(getattr(self, name)[index] for name in self._fields))


def works(ops: Ints, begin: Ints, terms: TermRows, named: Named, counted: CountedAmounts, element_bytes: int) -> Works:
    """Counts what the computes of templates have to do. ops: int64 [n, columns], of templates that begin at `begin`.

    A matmul without a parameter has share -1.
    """
    return Works(*_works(ops, begin, terms, named, counted, element_bytes))


@nb.njit(**IN_PLACE)
def _share(n, formula, ref, op):  # type: ignore[no-untyped-def]
    """Returns the share of a tensor that an operation names by a reference."""
    found = 1.0
    for slot in (n.refs[ref, 3], n.refs[ref, 5]):
        if slot >= 0:
            found = found * n.list_sizes[op[4 + slot]] / n.index_sizes[n.slots[formula, slot]]
    return found


@nb.njit(**IN_PLACE)
def _bytes(n, counted, formula, ref, op, place):  # type: ignore[no-untyped-def]
    """Returns the bytes that an operation names by a reference. place: which of its formula's it is."""
    if counted.bytes_at[ref] >= 0:
        return counted.bytes[counted.bytes_at[ref] + place]
    return n.whole[n.refs[ref, 1]] * _share(n, formula, ref, op)


@nb.njit(**IN_PLACE)
def _weight(n, formula, row, results):  # type: ignore[no-untyped-def]
    """Returns the reference that a matmul's parameter, or its gradient, has in the formula; -1 if none."""
    for ref in range(row[0], row[0] + row[1]):
        if not n.of_batch[n.refs[ref, 1]]:
            return ref
    for ref in range(results, n.ref_offsets[formula + 1]):
        if not n.of_batch[n.refs[ref, 1]]:
            return ref
    return -1


@nb.njit(**IN_PLACE)
def _results(n, formula):  # type: ignore[no-untyped-def]
    """Returns where the results of a formula begin among references."""
    at = n.ref_offsets[formula]
    while at < n.ref_offsets[formula + 1] and n.refs[at, 0] == 0:  # what it reads stands before
        at += 1
    return at


@nb.njit(**IN_PLACE)
def _shape(n, formula, weight, results, kind):  # type: ignore[no-untyped-def]
    """Returns the shape of a matmul."""
    if weight >= results:
        return GRADIENT
    slot = n.refs[weight, 3] if n.refs[weight, 3] >= 0 else n.refs[weight, 5]
    turned = kind == SCORE or slot < 0
    for ref in range(results, n.ref_offsets[formula + 1]):
        turned |= n.refs[ref, 3] == slot or n.refs[ref, 5] == slot
    return TURNED if turned else STRAIGHT


@nb.njit(**ENTERED)
def _works(ops, begin, terms, n, counted, element_bytes):  # type: ignore[no-untyped-def]
    """Returns the fields of `Works`."""
    count, places, formulas = _room(ops, terms), 1, len(n.slots)
    for op in range(len(ops)):
        places = max(places, ops[op, 2] + 1)
    whole, amounts = np.full((3, count), -1, np.int64), np.zeros((5, count))
    again, noted = np.zeros(count, np.bool_), (np.full((formulas, places), -1, np.int64), np.zeros(formulas, np.int64))
    _put_works(ops, begin, terms, n, counted, element_bytes, noted, (whole, amounts, again))
    return whole[0], whole[1], amounts[0], amounts[1], amounts[2], amounts[3], amounts[4], again, whole[2]


@nb.njit(**IN_PLACE)
def _room(ops, terms):  # type: ignore[no-untyped-def]
    """Returns how many terms computes have."""
    count = 0
    for op in range(len(ops)):
        if ops[op, 0] == COMPUTE:
            count += terms.offsets[ops[op, 1] + 1] - terms.offsets[ops[op, 1]]
    return count


@nb.njit(**IN_PLACE)
def _put_works(ops, begin, terms, n, counted, element_bytes, noted, out):  # type: ignore[no-untyped-def]
    """Writes works: rows of `out` are op, row, shape; passed, meeting, tokens, elements, share; again. noted: by
    formula and place, the template that had it there last, and by formula how many computes it had."""
    (seen, last), (whole, amounts, again) = noted, out
    template, used = 0, 0
    for number in range(len(ops)):
        op, formula = ops[number], ops[number, 1]
        while template < len(begin) and begin[template] <= number:
            template += 1
        if op[0] != COMPUTE:
            continue
        results, place = _results(n, formula), last[formula]
        meets = counted.meeting[counted.meeting_at[formula] + place] if counted.meeting_at[formula] >= 0 else 1.0
        size, before = 1.0, seen[formula, op[2]] == template
        seen[formula, op[2]], last[formula] = template, place + 1
        for slot in range(3):
            index = n.slots[formula, slot]
            if index >= 0 and n.index_of_batch[index]:
                size *= n.list_sizes[op[4 + slot]]
        for row in range(terms.offsets[formula], terms.offsets[formula + 1]):
            refs, kind = terms.refs[row], terms.kind[row]
            whole[0, used], whole[1, used], again[used] = number, row, before
            amounts[1, used], amounts[2, used] = meets, size
            for ref in range(refs[2], refs[2] + refs[3]):
                amounts[0, used] += _bytes(n, counted, formula, ref, op, place)
            for ref in range(refs[0], refs[0] + refs[1] * refs[4]):
                amounts[0, used] += _bytes(n, counted, formula, ref, op, place)
            if kind >= UPDATE:
                weight = results if kind == UPDATE else _weight(n, formula, refs, results)
                amounts[4, used] = -1.0
                if weight >= 0:
                    share = _share(n, formula, weight, op)
                    elements = n.whole[n.parameter[n.refs[weight, 1]]] / element_bytes * share
                    if counted.routed[formula] and kind != UPDATE:
                        which = op[4 + n.refs[weight, 3]]
                        elements /= n.list_offsets[which + 1] - n.list_offsets[which]
                    amounts[3, used], amounts[4, used] = elements, share
                    if kind >= MATMUL:
                        whole[2, used] = _shape(n, formula, weight, results, kind)
            used += 1
