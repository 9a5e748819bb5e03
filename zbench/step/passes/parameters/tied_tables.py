"""Tied embeddings in pipeline stages: the first stage has the table, the last one a table of its own, which stay equal.

Both begin a run with the same values, and end each step with the same update of them: by the sum of both gradients,

    dwe[j,zwe] += dwh[j,zwh(zwe)]                                       the head's part of it, on the last stage
    we[j,zwe], swe[j,zwe] := adam(we[j,zwe], swe[j,zwe], dwe[j,zwe])
    wh[j,zwh], swh[j,zwh] := adam(wh[j,zwh], swh[j,zwh], dwe[j,zwe(zwh)])

That is Megatron-LM's way, which all-reduces the tables' gradients between the first and the last stage when each has
reduced its own (megatron/core/distributed/finalize_model_grads.py, _allreduce_word_embedding_grads). An all-reduce of
two GPUs is what a ring of two does: each sums up half of the cells, and both send their half to the other. A GPU here
does so with its own shard alone, where Megatron-LM's sends the whole of its slice; what updates more than its shard
gets the rest from its own stage.

Everything before that is a step whose head has a table of its own, so this is a pass: it adds a layout of the tables
alone, of no micro-batch, and one template at the step's end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.formula import parse_formula
from zbench.step.index import PartMap
from zbench.step.layers import update
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import COMPUTE, GATHER, MOVE, SEND, Operations, operation_row
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.parameters.optimizer import updates_of
from zbench.step.passes.parameters.parameter_rows import moved_entries
from zbench.step.passes.parameters.zero import TABLES, ShardedParameters
from zbench.step.template import Instance, Items, Step, Template

Rows = list[list[int]]
FIRST, LAST = TABLES
# Both are cut alike; the slots of the second one's shards are the first one's.
_FORMULAS = (
    "dwe[j,zwe] += dwh[j,zwh(zwe)]",
    update("we", "j,zwe"),
    "wh[j,zwh], swh[j,zwh] := adam(wh[j,zwh], swh[j,zwh], dwe[j,zwe(zwh)])",
)
_SUM, _UPDATE_FIRST, _UPDATE_LAST = range(len(_FORMULAS))


def with_two_tables(step: Step, parameters: ShardedParameters, gradients: Mapping[str, Ints]) -> Step:
    """Returns a step of several stages, built but for the updates of both tables, with these at its end.

    parameters: of a stage. gradients: contributions of every GPU of a stage to each parameter's in the step.
    """
    names = [f"{kind}{weight}" for weight in TABLES for kind in ("", "d", "s")]
    of = step.layouts[0]
    indices = tuple(of.index[name] for name in ("j", *(f"z{weight}" for weight in TABLES)))
    lists = ListTable({**{one.name: len(one) for one in indices}, PLACE: step.num_places})
    shards = [f"z{weight}" for weight in TABLES]
    maps = tuple(
        PartMap(coarse, fine, np.arange(len(of.index[fine]), dtype=np.int64)) for coarse, fine in (shards, shards[::-1])
    )
    tensors, formulas = tuple(of.tensors[of.number[name]] for name in names), tuple(map(parse_formula, _FORMULAS))
    layout = StepLayout(indices, (), maps, (), tensors, formulas, lists.lists())
    tables = _Tables(GradientRows(parameters, layout, lists), step.stages[-1].place)
    template = tables.template(len(step.layouts), gradients)
    return replace(
        step,
        layouts=(*step.layouts, replace(layout, lists=lists.lists())),
        templates=(*step.templates, template),
        order=(*step.order, Instance(len(step.templates), 0)),
    )


@dataclass(frozen=True)
class _Tables:
    """The two tables of a step. rows: of a stage's parameters, in their layout. last: the last stage's first place."""

    rows: GradientRows
    last: int

    def template(self, layout: int, gradients: Mapping[str, Ints]) -> Template:
        """Returns the template that sums up both gradients and updates both tables once. layout: its number."""
        rows, degrees = self.rows, self.rows.of.degrees
        needs: Rows = []
        leaves: Rows = []
        for weight in TABLES:
            before = rows.held(weight, weight, degrees.weights) + rows.held(f"s{weight}", weight, degrees.optimizer)
            before += rows.gradients(weight, gradients[weight], True)
            after = rows.held(f"s{weight}", weight, degrees.optimizer, version=1) + rows.resting(weight, version=1)
            needs += self._placed(weight, before)
            leaves += self._placed(weight, after)
        ops = [*self._summed(), *self._gathered(), *self._updates()]
        formulas = tuple(range(len(_FORMULAS)))
        return Template("optimizer_tables", layout, Operations.of(ops), formulas, Items.of(needs), Items.of(leaves))

    def _placed(self, weight: str, entries: Rows) -> Rows:
        """Returns entries of a table with the places of its stage."""
        return moved_entries(entries, self.rows.layout, self.rows.lists, self.last) if weight == LAST else entries

    def _summed(self) -> Rows:
        """Returns what sums up both gradients between each GPU of the first stage and that of the last one with the
        same number, as an all-reduce of two: both have the sum of their shard."""
        number, lists = self.rows.layout.number[f"d{FIRST}"], self.rows.lists
        computes: Rows = []
        moves: Rows = []
        sends: Rows = []
        for gpu, share, shards in self._homes():
            own, pair = lists.number("j", [share]), (gpu, self.last + gpu)
            every = [own, lists.number(f"z{FIRST}", shards)]
            computes.append(operation_row(COMPUTE, _SUM, (pair[1], -1), every, "compute"))
            middle = (len(shards) + 1) // 2
            for half, ends in ((shards[:middle], pair), (shards[middle:], pair[::-1])):
                if len(half):
                    cells = [own, lists.number(f"z{FIRST}", half)]
                    moves.append(operation_row(MOVE, number, ends[::-1], cells, "gradients"))
                    sends.append(operation_row(SEND, number, ends, cells, "gradients"))
        return computes + moves + sends

    def _homes(self) -> list[tuple[int, int, Ints]]:
        """Lists (GPU, slice, its shards) of a table, of the GPUs of a stage that are the home of some."""
        of, found = self.rows.of, list[tuple[int, int, Ints]]()
        for share, row in enumerate(of.home(FIRST).reshape(of.slices(FIRST)[1], -1)):
            found += [(gpu, share, np.flatnonzero(row == gpu)) for gpu in np.unique(row).tolist()]
        return sorted(found, key=lambda one: one[0])

    def _gathered(self) -> Rows:
        """Returns the gathers of the sum, on both stages, to the GPUs that update more than their shard."""
        found, of, lists = list[list[int]](), self.rows.of, self.rows.lists
        for row in self.rows.gathered_sums(FIRST):
            members = lists.rows[row[3]] + self.last
            found += [row, [GATHER, row[1], of.num_gpus, lists.number(PLACE, members), *row[4:]]]
        return found

    def _updates(self) -> Rows:
        """Returns the updates of both tables, each on its stage."""
        of, lists = self.rows.of, self.rows.lists
        first, last = (
            updates_of(formula, weight, of, lists) for formula, weight in ((_UPDATE_FIRST, FIRST), (_UPDATE_LAST, LAST))
        )
        return first + [[*row[:2], row[2] + self.last, *row[3:]] for row in last]
