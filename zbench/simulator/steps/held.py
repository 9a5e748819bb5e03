"""Memory that a template of a step holds while it is played, tensor by tensor, in plan order.

An item lives from the operation that writes or adds to it first to the one that touches it last, or to the end of its
template where the contract leaves it; a copy that is forgotten (DROP) and written again lives twice. Logits, which are
no item, are there while a formula of the head's that makes them is computed (zbench.cost.loss). An item that is taken
and added to again counts in between.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.cost.loss import logits_bytes
from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, IN_PLACE, INNER
from zbench.describe.model import Model
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.played_template import PlayedTemplate
from zbench.simulator.steps.variant import Variant
from zbench.step.form import LayoutForm
from zbench.step.operations import COMPUTE
from zbench.step.proof.items import EMPTY, find_key
from zbench.step.template import AT_HOME

LOGITS = "logits"
_MAKE_LOGITS = ("score", "score_d0", "score_d1")
_TENSOR, _PLACE, _BEGIN, _END, _SIZE = range(5)  # columns of lives; a moment of -1 is before the first operation


class HeldBytes(NamedTuple):
    """Bytes by the step's tensors and places, int64 [tensors, places].

    before, after: of what its contract needs and leaves. then: at its fullest moment, of what its contract names or
    its operations touch. peak: the sum of these, int64 [places].
    """

    before: Ints
    after: Ints
    then: Ints
    peak: Ints


@dataclass(frozen=True)
class HeldTemplate:
    """The lives of a template's items, whatever layers there are.

    needs, leaves: the items of its contract, int64 [n, 5], (tensor, layer offset, place, cell of atoms, bytes). before,
    after: of every item of its data flow the row of what is needed, and of what is left; -1: none. others: the lives of
    logits, and of copies that are forgotten.
    """

    needs: Ints
    leaves: Ints
    before: Ints
    after: Ints
    others: Ints

    @staticmethod
    def of(template: PlayedTemplate, model: Model) -> "HeldTemplate":
        """Reads a template. model: for its logits."""
        flow, contract = template.flow, (template.template.needs.table, template.template.leaves.table)
        needs, leaves, before, after, ended = _read(flow.tables, *contract, flow.items, flow.ended)
        return HeldTemplate(needs, leaves, before, after, np.concatenate([ended, _logits(template, model)]))


def held_by(variant: Variant, of: HeldTemplate, rows: Ints, shape: tuple[int, int]) -> HeldBytes:
    """Returns what a variant holds while it is played. of: its template. rows: of its layout's tensors, logits last,
    the numbers among the step's. shape: how many of these, and places, there are."""
    missing, tables = np.array(variant.missing, np.int64).reshape(-1, 2), variant.of.flow.tables
    items = variant.of.flow.items, tables.cell_bytes, tables.first_cell
    lives = of.needs, of.leaves, of.before, of.after, of.others
    return HeldBytes(*_held(items, lives, missing, (rows, variant.where), shape, len(variant.of.ops)))


@lru_cache(maxsize=64)
def _makers_of(form: LayoutForm) -> frozenset[int]:
    """Returns the formulas that make logits."""
    functions = enumerate(one.terms[0].function for one in form.formulas)
    return frozenset(number for number, function in functions if function in _MAKE_LOGITS)


def _logits(of: PlayedTemplate, model: Model) -> Ints:
    """Returns the lives of logits."""
    layout = of.layout
    makers = _makers_of(layout.form).intersection(of.template.formulas)
    if not makers:
        return np.zeros((0, 5), np.int64)
    sizes, rows = Sizes(layout, (of.template,)), list[tuple[int, int, int, int, int]]()
    known = dict[tuple[float, float], int]()  # most GPUs have as many tokens and words as others
    for number in sorted(makers):
        formula = layout.formulas[number]
        mine = np.flatnonzero((of.ops[:, 0] == COMPUTE) & (of.ops[:, 1] == number))
        every, named = (*formula.operands, *formula.results), sizes.of(formula, mine)
        weight = next(ref for ref in every if not layout.of_batch(layout.number[ref.tensor]))
        columns = of.ops[mine, 2], mine, named.tokens, named.share(weight)
        for place, op, count, words in zip(*(one.tolist() for one in columns), strict=True):
            if (count, words) not in known:
                known[count, words] = logits_bytes(model, int(count), words)
            rows.append((len(layout.tensors), place, op, op, known[count, words]))
    return np.array(rows, np.int64).reshape(-1, 5)


@nb.njit(**ENTERED)
def _read(t, needs, leaves, items, ended):  # type: ignore[no-untyped-def]
    """Returns the fields of HeldTemplate, of its others those that are no logits. needs, leaves: contract entries.
    items, ended: of Flow."""
    had, has = _entries(t, needs), _entries(t, leaves)
    named = np.zeros((2, len(t.nature)), np.bool_)
    for side, rows in enumerate((had, has)):
        for row in rows:
            named[side, row[0]] = True
    before, after = _rows_of(items, had, named[0]), _rows_of(items, has, named[1])
    found, count = np.empty((len(ended), 5), np.int64), 0
    for row in ended:
        if row[4] >= 0:  # else it was there before the template
            size = t.cell_bytes[t.first_cell[row[0]] + row[3]]
            count = _write(found, count, (row[0], row[2], row[4], row[5], size))
    return had, has, before, after, found[:count]


@nb.njit(**INNER)
def _entries(t, entries):  # type: ignore[no-untyped-def]
    """Returns the items of contract entries, as HeldTemplate has them."""
    count = 0
    for fill in range(2):
        if fill:
            found = np.empty((count, 5), np.int64)
            count = 0
        for row in entries:
            tensor, places = row[0], row[2]
            for i in range(1 if row[3] < 0 else t.list_offsets[row[3] + 1] - t.list_offsets[row[3]]):
                cell0 = 0 if row[3] < 0 else t.atoms[t.list_offsets[row[3]] + i]
                for j in range(1 if row[4] < 0 else t.list_offsets[row[4] + 1] - t.list_offsets[row[4]]):
                    cell = cell0 * t.shape1[tensor] + (0 if row[4] < 0 else t.atoms[t.list_offsets[row[4]] + j])
                    first = t.first_cell[tensor] + cell
                    at_home = places == AT_HOME
                    offsets = t.home_offsets if at_home else t.member_offsets
                    which = first if at_home else places
                    for at in range(offsets[which], offsets[which + 1]):
                        if fill:
                            found[count, 0], found[count, 1], found[count, 3] = tensor, row[1], cell
                            found[count, 2] = t.homes[at] if at_home else t.members[at]
                            found[count, 4] = t.home_bytes[at] if at_home else t.cell_bytes[first]
                        count += 1
    return found


@nb.njit(**IN_PLACE)
def _number(rows, at):  # type: ignore[no-untyped-def]
    """Returns the number of an item; a row begins with tensor, layer offset, place and cell."""
    return (((rows[at, 1] + 64) * 2**9 + rows[at, 0]) * 2**20 + rows[at, 2]) * 2**27 + rows[at, 3]


@nb.njit(**INNER)
def _numbers(rows):  # type: ignore[no-untyped-def]
    """Returns a table of the numbers of items, and the row of each."""
    size = 16
    while size < 2 * len(rows):
        size *= 2
    keys, which = np.full(size, EMPTY, np.int64), np.full(size, -1, np.int64)
    for at in range(len(rows)):
        place = find_key(keys, _number(rows, at))
        keys[place], which[place] = _number(rows, at), at
    return keys, which


@nb.njit(**INNER)
def _rows_of(items, rows, named):  # type: ignore[no-untyped-def]
    """Returns the row of every item among those that a contract names, -1 where it does not. named: whether it names
    any of each tensor."""
    (keys, which), found = _numbers(rows), np.full(len(items), -1, np.int64)
    for item in range(len(items)):
        if named[items[item, 0]]:
            found[item] = which[find_key(keys, _number(items, item))]
    return found


@nb.njit(**ENTERED)
def _held(items, of, missing, named, shape, operations):  # type: ignore[no-untyped-def]
    """Returns the fields of `HeldBytes`. items: of Flow, the bytes of cells, and the first cell of each tensor. of:
    fields of HeldTemplate. named: the step's tensors and places for those of the template."""
    contract, others = of[:4], of[4]
    used = np.zeros(len(contract[0]), np.bool_)  # whether each item that is needed is one that was touched
    lives = np.empty((4 * len(items[0]) + len(used) + len(others), 5), np.int64)
    count = _lived(items, contract, used, missing, operations, lives)
    lives[count : count + len(others)] = others
    return _fullest(lives[: count + len(others)], contract[:2], missing, named, shape, operations)


@nb.njit(**IN_PLACE)
def _is_missing(missing, tensor, offset):  # type: ignore[no-untyped-def]
    """Returns whether a tensor and layer offset are among those that are not there."""
    found = False
    for one in range(len(missing)):
        found |= tensor == missing[one, 0] and offset == missing[one, 1]
    return found


@nb.njit(**IN_PLACE)
def _lived(items, contract, used, missing, operations, found):  # type: ignore[no-untyped-def]
    """Writes the lives of items, int64 [n, 5]: tensor, place, first and last operation, bytes; returns how many there
    are.

    What a contract needs is there from the start; what is written besides, from then on; what it leaves stays.
    contract: needs, leaves, before and after of HeldTemplate. The others as of `_held`.
    """
    (needs, leaves, before, after), (items, cell_bytes, first_cell), count = contract, items, 0
    for item in range(len(items)):
        tensor = items[item, 0]
        if _is_missing(missing, tensor, items[item, 1]):
            continue
        old, stays = np.int64(0), np.int64(0) if after[item] < 0 else leaves[after[item], 4]
        if before[item] >= 0:
            old, used[before[item]] = needs[before[item], 4], True
        new = max(cell_bytes[first_cell[tensor] + items[item, 3]] - old, 0) if items[item, 4] >= 0 else 0
        for size, begin in ((old, np.int64(-1)), (new, items[item, 4])):
            left = min(size, stays)
            stays -= left
            for part, end in ((left, operations), (size - left, items[item, 5])):
                if part > 0:
                    count = _write(found, count, (tensor, items[item, 2], begin, end, part))
    for at in range(len(needs)):
        if not used[at] and needs[at, 4] > 0 and not _is_missing(missing, needs[at, 0], needs[at, 1]):
            count = _write(found, count, (needs[at, 0], needs[at, 2], np.int64(-1), operations, needs[at, 4]))
    return count


@nb.njit(**IN_PLACE)
def _write(found, count, life):  # type: ignore[no-untyped-def]
    """Writes a life; returns how many there are then."""
    found[count, 0], found[count, 1], found[count, 2], found[count, 3], found[count, 4] = life
    return count + 1


@nb.njit(**INNER)
def _fullest(lives, contract, missing, named, shape, operations):  # type: ignore[no-untyped-def]
    """Returns the fields of `HeldBytes`. A life begins with its operation, and ends after that. contract: needs and
    leaves. named: the step's tensors and places for those of lives, which are changed to them."""
    before, after, then = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    level, peak, when = np.zeros(shape[1], np.int64), np.zeros(shape[1], np.int64), np.full(shape[1], -4, np.int64)
    tensors, places = named
    for rows, into in ((contract[0], before), (contract[1], after)):
        for row in range(len(rows)):
            if not _is_missing(missing, rows[row, 0], rows[row, 1]):
                into[tensors[rows[row, 0]], places[rows[row, 2]]] += rows[row, 4]
    for life in lives:
        life[_TENSOR], life[_PLACE] = tensors[life[_TENSOR]], places[life[_PLACE]]
    offsets = np.zeros(2 * operations + 5, np.int64)  # a counting sort by moment
    order = np.empty(2 * len(lives), np.int64)
    _followed(lives, offsets, order, (level, peak, when), then)
    return before, after, then, peak


@nb.njit(**IN_PLACE)
def _followed(lives, offsets, order, places, then):  # type: ignore[no-untyped-def]
    """Follows lives from moment to moment, as `_fullest`. places: bytes of each place now and at most, and when."""
    level, peak, when = places
    for life in range(len(lives)):
        offsets[2 * lives[life, _BEGIN] + 3] += 1
        offsets[2 * lives[life, _END] + 4] += 1
    for at in range(len(offsets) - 1):
        offsets[at + 1] += offsets[at]
    for at in range(len(lives)):
        for moment, end in ((2 * lives[at, _BEGIN] + 2, 0), (2 * lives[at, _END] + 3, 1)):
            order[offsets[moment]] = 2 * at + end
            offsets[moment] += 1
    for event in order:
        life = event // 2
        place = lives[life, _PLACE]
        level[place] += -lives[life, _SIZE] if event % 2 else lives[life, _SIZE]
        if level[place] > peak[place]:
            peak[place], when[place] = level[place], 2 * lives[life, _BEGIN]
    for life in range(len(lives)):
        place = lives[life, _PLACE]
        if 2 * lives[life, _BEGIN] <= when[place] < 2 * lives[life, _END] + 1:
            then[lives[life, _TENSOR], place] += lives[life, _SIZE]
