"""A step that does nothing, of what rests between steps: parameters, optimizer state and gradients, where they are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, PartLists
from zbench.step.operations import COMPUTE, Operations
from zbench.step.template import COMPLETE, GONE, Items, Step, Template


def resting_step(step: Step) -> Step:
    """Returns a step that begins with what another one begins with, and leaves it so: nothing of a batch is in it, and
    its text says of a checkpoint what lies where."""
    kept = KeptLayout.of(step, 0, ())
    begins = kept.items(step.begins)
    return replace(step, encodings=(), layouts=(kept.layout,), templates=(), order=(), begins=begins, ends=begins)


@dataclass(frozen=True)
class KeptLayout:
    """The part of a layout that updates, and what rests between steps, are of. tensors, formulas, lists: the new
    numbers of those that are left, -1 of others."""

    layout: StepLayout
    tensors: Ints
    formulas: Ints
    lists: Ints

    @staticmethod
    def of(step: Step, number: int, templates: Sequence[Template]) -> "KeptLayout":
        """Returns what is left of a layout: parameters, their gradients and state, and the formulas of some
        templates. number: of the layout."""
        old, hops = step.layouts[number], dict[str, int]()
        for row in step.begins.rows():
            if row[2] != GONE and row[5] == COMPLETE:
                name = step.layouts[0].tensors[row[0]].name
                hops[name] = max(hops.get(name, 0), row[7])
        weights = {one.name for one in old.tensors if {f"s{one.name}", f"d{one.name}"} <= old.number.keys()}
        names = {f"{before}{weight}" for weight in weights for before in ("", "d", "s")}
        tensors = [at for at, one in enumerate(old.tensors) if one.name in names]
        formulas = sorted({formula for one in templates for formula in one.formulas})
        indices = {one.name for one in old.indices if not one.of_batch}
        lists = [at for at in range(len(old.lists)) if old.lists.index_of(at) in indices | {PLACE}]
        layout = replace(
            old,
            indices=tuple(one for one in old.indices if one.name in indices),
            aliases=tuple(pair for pair in old.aliases if pair[1] in indices),
            maps=tuple(one for one in old.maps if {one.coarse, one.fine} <= indices),
            relations=(),
            tensors=tuple(replace(old.tensors[at], hops=hops.get(old.tensors[at].name, 0)) for at in tensors),
            formulas=tuple(old.formulas[at] for at in formulas),
            lists=_taken(old.lists, lists, indices),
        )
        sizes = len(old.tensors), len(old.formulas), len(old.lists)
        kept = zip((tensors, formulas, lists), sizes, strict=True)
        return KeptLayout(layout, *(_numbers(mine, size) for mine, size in kept))

    def template(self, one: Template, layout: int) -> Template:
        """Returns a template in the numbers of what is left. layout: the new number of its own."""
        table = one.operations.table.copy()
        is_compute = table[:, 0] == COMPUTE
        formulas, tensors = (np.where(one, table[:, 1], -1) for one in (is_compute, ~is_compute))
        table[:, 1] = np.where(is_compute, self.formulas[formulas], self.tensors[tensors])
        table[:, 4:7] = self.lists[table[:, 4:7]]
        return replace(
            one,
            layout=layout,
            operations=Operations.of_tables([table]),
            formulas=tuple(self.formulas[list(one.formulas)].tolist()),
            needs=self.items(one.needs),
            leaves=self.items(one.leaves),
        )

    def items(self, items: Items) -> Items:
        """Returns entries in the numbers of what is left; of tensors that are not, none."""
        table = items.table[self.tensors[items.tensor] >= 0]
        table[:, 0] = self.tensors[table[:, 0]]
        table[:, 2] = np.where(table[:, 2] >= 0, self.lists[table[:, 2]], table[:, 2])
        table[:, 3:5] = self.lists[table[:, 3:5]]
        return Items.of(table.tolist())


def _numbers(kept: Sequence[int], size: int) -> Ints:
    """Returns the new numbers of things by their old ones, and -1 of one that there is none of, int64 [size + 1]."""
    found = np.full(size + 1, -1, np.int64)
    found[list(kept)] = np.arange(len(kept))
    return found


def _taken(lists: PartLists, kept: Sequence[int], indices: set[str]) -> PartLists:
    """Returns some lists, of the indices that are left and of places."""
    names = tuple(one for one in lists.indices if one in indices | {PLACE})
    rows = [lists[at] for at in kept]
    return PartLists(
        names,
        np.array([names.index(lists.index_of(at)) for at in kept], np.int64),
        np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64),
        np.concatenate([*rows, np.zeros(0, np.int64)]),
    )
