"""The memory account of a step: what is where at which moment, in plan order, tensor by tensor.

An item lives from the operation that writes or adds to it first to the one that touches it last, or to the end of its
template where the contract leaves it; what a contract leaves stays until another one does not. Logits, which are no
item, are there from the first formula of the head's that makes them to the last (zbench.cost.loss). Workspaces of
kernels and fragmentation are not in it. An item that is taken and added to again counts in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numba as nb
import numpy as np

from zbench.cost.loss import held_bytes
from zbench.describe.arrays import Ints
from zbench.simulator.steps.program import StepParts
from zbench.simulator.steps.sizes import Sizes
from zbench.simulator.steps.variant import Key, Variant, tensor_key
from zbench.step.operations import COMPUTE
from zbench.step.template import AT_HOME, Items

LOGITS = "logits"
_MAKE_LOGITS = ("score", "score_d0", "score_d1")


@dataclass(frozen=True)
class StepMemory:
    """The fullest moment of every place. peak: bytes, int64 [places]. held: by tensor, the bytes of it then, int64
    [places]; without tensors that nobody has."""

    peak: Ints
    held: Mapping[str, Ints]


def step_memory(parts: StepParts) -> StepMemory:
    """Follows a step's instances, all layers, and returns the fullest moments."""
    step = parts.step
    names = {
        name: at for at, name in enumerate(dict.fromkeys([n for one in step.layouts for n in one.number] + [LOGITS]))
    }
    there: dict[Key, Ints] = {}
    resident = np.zeros((len(names), step.num_places), np.int64)
    best, peak = resident.copy(), np.zeros(step.num_places, np.int64)
    profiles: dict[tuple[int, tuple[tuple[int, int], ...]], _Profile] = {}
    for key, size in _beginnings(parts):
        there[key] = size
        resident[names[key[0]]] += size
    for one in step.order:
        for layer in one.layers:
            variant = parts.variant(one.template, layer, one.place, step)
            profile = profiles.setdefault((one.template, variant.missing), _Profile(variant, parts))
            for which in profile.groups:
                key = tensor_key(variant, layer, *which)
                if key in there:
                    resident[names[key[0]]] -= there.pop(key)
            total = resident.sum(axis=0) + np.roll(profile.peak, one.place)
            fuller = total > peak
            if fuller.any():
                peak = np.maximum(peak, total)
                inside = resident.copy()
                for tensor, size in profile.held.items():
                    inside[names[tensor]] += np.roll(size, one.place)
                best = np.where(fuller, inside, best)
            for which, size in profile.leaves.items():
                key = tensor_key(variant, layer, *which)
                there[key] = np.roll(size, one.place)
                resident[names[key[0]]] += there[key]
    return StepMemory(peak, {name: best[at] for name, at in names.items() if best[at].any()})


def _beginnings(parts: StepParts) -> list[tuple[Key, Ints]]:
    """Lists the bytes of what there is before a step, by key and place."""
    step, layout = parts.step, parts.step.layouts[0]
    sizes = Sizes(layout, step.templates[0]).of_lists
    found: dict[Key, Ints] = {}
    for tensor, _, places, list0, list1, *_ in step.begins.rows():
        one = layout.tensors[tensor]
        if places == AT_HOME:
            size = np.bincount(one.home, one.cell_bytes(layout.index), step.num_places).astype(np.int64)
        else:
            size = np.zeros(step.num_places, np.int64)
            size[layout.lists[places]] = one.unit * np.prod(
                [int(sizes[which]) for which in (list0, list1) if which >= 0]
            )
        for layer in range(step.num_layers + 1 if one.layers != "none" else 1):
            if one.exists(layer, step.num_layers):
                key = (one.name, layer, -1)
                place = step.stage(layer).place if one.layers != "none" else 0
                found[key] = found.get(key, 0) + np.roll(size, place)
    return list(found.items())


@dataclass(frozen=True)
class _Profile:
    """What a template holds while it is played, of what its contract names or its operations touch."""

    variant: Variant
    parts: StepParts

    @cached_property
    def groups(self) -> set[tuple[int, int]]:
        """The (tensor, layer offset) of which its contract says all that there is, without those that are not there."""
        of = self.variant.of
        touched = np.unique(of.flow.items[:, :2], axis=0).tolist()
        found = {*of.held[0], *of.held[1], *((tensor, offset) for tensor, offset in touched)}
        return found - set(self.variant.missing)

    @cached_property
    def leaves(self) -> dict[tuple[int, int], Ints]:
        """The bytes that it leaves, by (tensor, layer offset), int64 [places]."""
        places, found = self.parts.step.num_places, {}
        rows = self._leaves
        for which in set(self.variant.of.held[1]) - set(self.variant.missing):
            mine = (rows[:, 0] == which[0]) & (rows[:, 1] == which[1])
            found[which] = np.bincount(rows[mine, 2], rows[mine, 4], places).astype(np.int64)
        return found

    @cached_property
    def _fullest(self) -> tuple[Ints, dict[str, Ints]]:
        """Returns (peak, what is held then by tensor)."""
        of, places = self.variant.of, self.parts.step.num_places
        lives = self._lives()
        tensor, place, begin, end, size = lives.T
        moment = np.concatenate([2 * begin, 2 * end + 1])
        change, at = np.concatenate([size, -size]), np.concatenate([place, place])
        order = np.lexsort((moment, at))
        level = np.cumsum(change[order])
        peak, when = np.zeros(places, np.int64), np.full(places, -4, np.int64)
        starts = np.flatnonzero(np.diff(at[order], prepend=-1))
        for first, last in zip(starts.tolist(), [*starts.tolist()[1:], len(order)], strict=len(starts) > 0):
            before = int(level[first - 1]) if first else 0
            top = first + int(np.argmax(level[first:last]))
            peak[at[order[first]]], when[at[order[first]]] = int(level[top]) - before, moment[order[top]]
        alive = (2 * begin <= when[place]) & (2 * end + 1 > when[place])
        names = [one.name for one in of.layout.tensors] + [LOGITS]
        held = {}
        for number in np.unique(tensor[alive]).tolist():
            mine = alive & (tensor == number)
            held[names[number]] = np.bincount(place[mine], size[mine], places).astype(np.int64)
        return peak, held

    @property
    def peak(self) -> Ints:
        """Bytes at its fullest moment, int64 [places]."""
        return self._fullest[0]

    @property
    def held(self) -> dict[str, Ints]:
        """The bytes of every tensor at that moment, int64 [places]."""
        return self._fullest[1]

    def _lives(self) -> Ints:
        """Returns int64 [n, 5]: (tensor, place, first operation, last operation, bytes); -1 is before the first."""
        of = self.variant.of
        tables, count = of.flow.tables, len(of.ops)
        num = _numbered(of.flow.items)
        needs, leaves = self._needs, self._leaves
        had, has = _numbered(needs), _numbered(leaves)
        here = np.ones(len(num), bool)
        for missing in self.variant.missing:
            here &= (of.flow.items[:, :2] != missing).any(axis=1)
        items, num = of.flow.items[here], num[here]
        whole = tables.cell_bytes[tables.first_cell[items[:, 0]] + items[:, 3]]
        first, kept = _found(num, had, needs[:, 4]), _found(num, has, leaves[:, 4])
        last = np.where(kept >= 0, count, items[:, 5])
        # What a contract has, from the start; what is written besides, from then on; what is left stays.
        old = np.where(first >= 0, first, 0)
        new = np.where((items[:, 4] >= 0) & (old < whole), whole - old, 0)
        stays = np.where(kept >= 0, kept, 0)
        rows = []
        for size, begin in ((old, np.full(len(items), -1)), (new, items[:, 4])):
            left = np.minimum(size, stays)
            stays = stays - left
            rows.append(np.stack([items[:, 0], items[:, 2], begin, last, left], axis=1))
            rows.append(np.stack([items[:, 0], items[:, 2], begin, items[:, 5], size - left], axis=1))
        untouched = needs[_found(had, num, num) < 0]
        rows.append(
            np.stack(
                [
                    untouched[:, 0],
                    untouched[:, 2],
                    -1 + 0 * untouched[:, 0],
                    count + 0 * untouched[:, 0],
                    untouched[:, 4],
                ],
                axis=1,
            )
        )
        rows.append(self._logits())
        lives = np.concatenate(rows)
        return lives[lives[:, 4] > 0]

    def _logits(self) -> Ints:
        """Returns the lives of logits."""
        of, model = self.variant.of, self.parts.cost.model
        sizes, found = Sizes(of.layout, of.template), []
        for number in of.template.formulas:
            formula = of.layout.formulas[number]
            if formula.terms[0].function in _MAKE_LOGITS:
                mine = np.flatnonzero((of.ops[:, 0] == COMPUTE) & (of.ops[:, 1] == number))
                weight = next(
                    ref
                    for ref in (*formula.operands, *formula.results)
                    if not of.layout.of_batch(of.layout.number[ref.tensor])
                )
                size = held_bytes(model) * sizes.tokens(formula, mine) * sizes.share(formula, weight, mine)
                found.append(np.stack([of.ops[mine, 2], mine, size.astype(np.int64)], axis=1))
        if not found:
            return np.zeros((0, 5), np.int64)
        table = np.concatenate(found)
        rows = []
        for place in np.unique(table[:, 0]).tolist():
            mine = table[table[:, 0] == place]
            rows.append([len(of.layout.tensors), place, mine[:, 1].min(), mine[:, 1].max(), mine[:, 2].max()])
        return np.array(rows, np.int64)

    @cached_property
    def _needs(self) -> Ints:
        return self._contract(self.variant.of.template.needs)

    @cached_property
    def _leaves(self) -> Ints:
        return self._contract(self.variant.of.template.leaves)

    def _contract(self, items: Items) -> Ints:
        """Returns the items of a contract, int64 [n, 5]: (tensor, layer offset, place, cell of atoms, bytes)."""
        table = items.table()
        here = np.ones(len(table), bool)
        for missing in self.variant.missing:
            here &= (table[:, :2] != missing).any(axis=1)
        found: Ints = _entries(self.variant.of.flow.tables, table[here])
        return found


def _numbered(rows: Ints) -> Ints:
    """Returns a number for every item; rows begin with tensor, layer offset, place and cell."""
    tensor, offset, place, cell = rows.T[:4]
    found: Ints = (((offset + 64) * 2**9 + tensor) * 2**20 + place) * 2**27 + cell
    return found


def _found(wanted: Ints, numbers: Ints, values: Ints) -> Ints:
    """Returns the values of the numbers that are wanted, -1 where there is none."""
    if not len(numbers):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(numbers, kind="stable")
    at = np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)
    return np.asarray(np.where(numbers[order][at] == wanted, values[order][at], -1), np.int64)


@nb.njit(cache=True)
def _entries(t, entries):  # type: ignore[no-untyped-def]
    """Returns the items of contract entries, int64 [n, 5], as `_contract`."""
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
