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

Everything before that is a step whose head has a table of its own, so this is a pass: it adds a layout of no
micro-batch, of what is outside the layers alone, and two templates at the step's end: one sums up, the other updates
both tables and the gain of the last norm, wherever their optimizer state is (zbench.step.passes.memory).
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
from zbench.step.passes.parameters.weights import TABLES
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.template import COMPLETE, Instance, Items, Step, Template

Rows = list[list[int]]
FIRST, LAST = TABLES
GAIN = "gl"
TABLES_UPDATE = "optimizer_tables"  # the template that updates what is outside the layers
# Both are cut alike; the slots of the second one's shards are the first one's.
UPDATES = {
    FIRST: update("we", "j,zwe"),
    LAST: "wh[j,zwh], swh[j,zwh] := adam(wh[j,zwh], swh[j,zwh], dwe[j,zwe(zwh)])",
    GAIN: update("gl", ""),
}
SUM = "dwe[j,zwe] += dwh[j,zwh(zwe)]"
_SUM_NUMBER = len(UPDATES)  # those before it are of what is updated, in its order


def with_two_tables(step: Step, parameters: ShardedParameters, gradients: Mapping[str, Ints]) -> Step:
    """Returns a step of several stages, built but for the updates of both tables, with these at its end.

    parameters: of a stage. gradients: contributions of every GPU of a stage to each parameter's in the step.
    """
    names = [f"{kind}{weight}" for weight in UPDATES for kind in ("", "d", "s")]
    of = step.layouts[0]
    indices = tuple(of.index[name] for name in ("j", *(f"z{weight}" for weight in TABLES)))
    lists = ListTable({**{one.name: len(one) for one in indices}, PLACE: step.num_places})
    shards = [f"z{weight}" for weight in TABLES]
    maps = tuple(
        PartMap(coarse, fine, np.arange(len(of.index[fine]), dtype=np.int64)) for coarse, fine in (shards, shards[::-1])
    )
    tensors, formulas = (
        tuple(of.tensors[of.number[name]] for name in names),
        tuple(map(parse_formula, (*UPDATES.values(), SUM))),
    )
    layout = StepLayout(indices, (), maps, (), tensors, formulas, lists.lists())
    tables = _Tables(GradientRows(parameters, layout, lists), step.stages[-1].place)
    templates = tables.templates(len(step.layouts), gradients)
    return replace(
        step,
        layouts=(*step.layouts, replace(layout, lists=lists.lists())),
        templates=(*step.templates, *templates),
        order=(*step.order, *(Instance(len(step.templates) + at, 0) for at in range(len(templates)))),
    )


def places_of_tables(step: Step) -> dict[str, int]:
    """Returns, of the layout of the tables of a step, by which place the homes of what the last stage updates are moved
    on, by the names of tensors; {} where it has no such layout."""
    if not has_two_tables(step):
        return {}
    last = step.stages[-1].place
    return {f"{kind}{weight}": last for weight in (LAST, GAIN) for kind in ("", "s")}


def has_two_tables(step: Step) -> bool:
    """Returns whether a step has a table on its first stage and one on its last, updated as one."""
    return any(one.name.startswith(TABLES_UPDATE) for one in step.templates)


@dataclass(frozen=True)
class _Tables:
    """The two tables of a step. rows: of a stage's parameters, in their layout. last: the last stage's first place."""

    rows: GradientRows
    last: int

    def templates(self, layout: int, gradients: Mapping[str, Ints]) -> list[Template]:
        """Returns the templates that sum up both tables' gradients, and that update what is outside the layers once.
        layout: its number."""
        rows, degrees = self.rows, self.rows.of.degrees
        before, needs, leaves = Rows(), self._sums(gradients), Rows()
        for weight in UPDATES:
            own = rows.gradients(weight, gradients[weight], True)
            before += self._placed(weight, own) if weight in TABLES else []
            held = rows.held(weight, weight, degrees.weights) + rows.held(f"s{weight}", weight, degrees.optimizer)
            needs += self._placed(weight, held if weight in TABLES else held + own)
            after = rows.held(f"s{weight}", weight, degrees.optimizer, version=1) + rows.resting(weight, version=1)
            leaves += self._placed(weight, after)
        sums = [*self._summed(), *self._gathered()]
        return [
            Template(
                "sum_tables",
                layout,
                Operations.of(sums),
                (_SUM_NUMBER,),
                Items.of(before),
                Items.of(self._sums(gradients)),
            ),
            Template(
                TABLES_UPDATE,
                layout,
                Operations.of(self._updates()),
                tuple(range(len(UPDATES))),
                Items.of(needs),
                Items.of(leaves),
            ),
        ]

    def _sums(self, gradients: Mapping[str, Ints]) -> Rows:
        """Returns the entries of the sum of both gradients on both stages, where these update."""
        rows = self.rows
        found = rows.held(f"d{FIRST}", FIRST, rows.of.degrees.optimizer, count=COMPLETE)
        if rows.hops.encodings:
            hops = [rows.hops.reduced(weight, gradients[weight] >= 0, True) for weight in TABLES]
            found = rows.told(found, np.maximum(*hops))
        return found + moved_entries(found, rows.layout, rows.lists, self.last)

    def _placed(self, weight: str, entries: Rows) -> Rows:
        """Returns entries of a parameter with the places of its stage."""
        return entries if weight == FIRST else moved_entries(entries, self.rows.layout, self.rows.lists, self.last)

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
            computes.append(operation_row(COMPUTE, _SUM_NUMBER, (pair[1], -1), every, "compute"))
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
        """Returns the updates of both tables and the gain, each on its stage."""
        of, lists, found = self.rows.of, self.rows.lists, Rows()
        for formula, weight in enumerate(UPDATES):
            place = 0 if weight == FIRST else self.last
            found += [[*row[:2], row[2] + place, *row[3:]] for row in updates_of(formula, weight, of, lists)]
        return found
