"""Tied embeddings in pipelines side by side, of which some have several stages: these have a table on the first stage
and one on the last (zbench.step.passes.parameters.tied_tables), a pipeline of one stage has one.

The gradient of the table is summed over all of them. Each table's is reduced between the pipelines that have it, to the
homes of its shards, which are in pipelines of several stages alone. There the GPUs of the first and of the last stage
that are a shard's home sum up both, as an all-reduce of two: each sums up half of its shards. Where every GPU updates,
all of the sum is made on the first stages, gathered between these, and sent from there to the last ones. Every shard is
updated once on either stage, by the same sum.

Both templates are of all pipelines and of the first layer, for which a place is what it is called.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.formula import Formula, parse_formula
from zbench.step.index import PartMap
from zbench.step.lists import PLACE
from zbench.step.operations import COMPUTE, MOVE, SEND, Operations, operation_row
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.parameters.optimizer import updates_of
from zbench.step.passes.parameters.parameter_rows import moved_entries
from zbench.step.passes.parameters.pipeline_parameters import CommonParameters
from zbench.step.passes.parameters.tied_tables import SUM, UPDATES
from zbench.step.passes.parameters.weights import TABLES
from zbench.step.template import COMPLETE, Items, Template

Rows = list[list[int]]
FIRST, LAST = TABLES


def tables_updates(
    parameters: CommonParameters, totals: Mapping[str, Ints]
) -> tuple[tuple[Formula, ...], tuple[PartMap, ...]]:
    """Returns the formulas that update both tables and sum up their gradients, and the maps between their shards, which
    are cut alike. totals: contributions of every GPU to each gradient, -1: none at all; where no pipeline has used its
    last stage's table, nothing is summed up."""
    shards = [f"z{weight}" for weight in TABLES]
    every = np.arange(len(parameters.shards[FIRST][0]), dtype=np.int64)
    words = [UPDATES[FIRST], UPDATES[LAST], *([SUM] if totals[LAST].max() >= 0 else [])]
    maps = tuple(PartMap(coarse, fine, every) for coarse, fine in (shards, shards[::-1]))
    return tuple(map(parse_formula, words)), maps


@dataclass(frozen=True)
class PipelineTables:
    """Makes what sums up both tables' gradients and updates them. rows: of all pipelines' parameters, in their layout,
    which has the number `layout`. totals: as of `tables_updates`. last: by pipeline, the places from its first stage to
    its last."""

    rows: GradientRows
    layout: int
    of: CommonParameters
    totals: Mapping[str, Ints]
    last: Sequence[int]

    def templates(self) -> list[Template]:
        """Returns the template that sums up both gradients, and the one that updates both tables once."""
        rows, degrees, labels = self.rows, self.of.degrees, self.rows.layout.labels
        ops, needs, leaves = Rows(), Rows(), Rows()
        for weight in TABLES:
            held = rows.held(weight, weight, degrees.weights) + rows.held(f"s{weight}", weight, degrees.optimizer)
            after = rows.held(f"s{weight}", weight, degrees.optimizer, version=1) + rows.resting(weight, version=1)
            needs += self._placed(weight, held)
            leaves += self._placed(weight, after)
            for row in updates_of(labels.index(weight), weight, self.of, rows.lists):
                ops.append([*row[:2], row[2] + int(self._shift(weight)[row[2]]), *row[3:]])
        formulas = tuple(map(labels.index, TABLES))
        update = Template(
            "optimizer_tables",
            self.layout,
            Operations.of(ops),
            formulas,
            Items.of(needs + self._sums()),
            Items.of(leaves),
        )
        return [self._summed(), update]

    def _shift(self, weight: str) -> Ints:
        """Returns the places from where a table's parts are told to be to where they are, by place, int64 [places]."""
        return self._to_last if weight == LAST else np.zeros_like(self._to_last)

    @cached_property
    def _to_last(self) -> Ints:
        """The places from every place's first stage to its pipeline's last, int64 [places]."""
        which = np.searchsorted(self.of.shapes.lead, np.arange(self.rows.lists.sizes[PLACE]), side="right") - 1
        return np.array(self.last, np.int64)[which]

    def _placed(self, weight: str, entries: Rows) -> Rows:
        """Returns entries of a table with the places of its stages."""
        return moved_entries(entries, self.rows.layout, self.rows.lists, self._shift(weight))

    @property
    def _is_everywhere(self) -> bool:
        """Whether every GPU updates all that it has."""
        return self.of.degrees.optimizer == 1

    def _sums(self) -> Rows:
        """Returns the entries of the sum where tables are updated by it, on first stages and on last ones."""
        rows, name = self.rows, f"d{FIRST}"
        if not self._is_everywhere:
            found = rows.at_home(name, FIRST, count=COMPLETE)
            return found + self._placed(LAST, found)
        number, lists = rows.layout.number[name], rows.lists
        return [
            [number, 0, lists.number(PLACE, members + self._shift(weight)[members]), *cells, COMPLETE, 0, 0]
            for weight in TABLES
            for members, cells in self._members(weight)
        ]

    def _members(self, weight: str) -> list[tuple[Ints, list[int]]]:
        """Lists (the GPUs that have a slice of a table, told on first stages; the lists of the sum's cells that are of
        it)."""
        lists = self.rows.lists
        whole = lists.whole(f"z{FIRST}")
        return [(members, [lists.number("j", [share]), whole]) for share, members in self.of.members(weight)]

    def _summed(self) -> Template:
        """Returns the template that sums up both gradients."""
        rows, name = self.rows, f"d{FIRST}"
        needs = rows.gradients(FIRST, self.totals[FIRST], True)
        needs += self._placed(LAST, rows.gradients(LAST, self.totals[LAST], True))
        formulas: tuple[int, ...] = ()
        ops = Rows()
        if self.totals[LAST].max() >= 0:
            formulas = (rows.layout.labels.index(name),)
            for (_, last), cells, _ in self._pairs():
                ops.append(operation_row(COMPUTE, formulas[0], (last, -1), cells, "compute"))
        ops += self._sent_everywhere(bool(formulas)) if self._is_everywhere else self._halves(bool(formulas))
        return Template(
            "sum_tables", self.layout, Operations.of(ops), formulas, Items.of(needs), Items.of(self._sums())
        )

    def _pairs(self) -> Iterator[tuple[tuple[int, int], list[int], tuple[Ints, Ints]]]:
        """Yields (the GPUs of a first and of a last stage that are the homes of shards of a slice, lists of cells that
        are of these, both halves of the shards)."""
        of, lists = self.of, self.rows.lists
        for share, row in enumerate(of.home(FIRST).reshape(of.slices(FIRST)[1], -1)):
            for gpu in np.unique(row).tolist():
                mine = np.flatnonzero(row == gpu)
                cells = [lists.number("j", [share]), lists.number(f"z{FIRST}", mine)]
                middle = (len(mine) + 1) // 2
                yield (gpu, gpu + int(self._to_last[gpu])), cells, (mine[:middle], mine[middle:])

    def _halves(self, summed: bool) -> Rows:
        """Returns what makes half of each sum on a first stage, half on a last one, and sends both to both. summed:
        whether there is a gradient of last stages."""
        number, lists = self.rows.layout.number[f"d{FIRST}"], self.rows.lists
        moves, sends = Rows(), Rows()
        for pair, cells, halves in self._pairs():
            if not summed:
                sends.append(operation_row(SEND, number, pair, cells, "gradients"))
                continue
            for half, ends in zip(halves, (pair, pair[::-1]), strict=True):
                if len(half):
                    some = [cells[0], lists.number(f"z{FIRST}", half)]
                    moves.append(operation_row(MOVE, number, ends[::-1], some, "gradients"))
                    sends.append(operation_row(SEND, number, ends, some, "gradients"))
        return moves + sends

    def _sent_everywhere(self, summed: bool) -> Rows:
        """Returns what makes each sum on a first stage, gathers it between these, and sends it to last stages. summed:
        as of `_halves`."""
        number, found = self.rows.layout.number[f"d{FIRST}"], Rows()
        for pair, cells, _ in self._pairs() if summed else ():
            found.append(operation_row(MOVE, number, pair[::-1], cells, "gradients"))
        found += self.rows.gathered_sums(FIRST)
        for members, cells in self._members(LAST):
            for gpu in members.tolist():
                ends = gpu, gpu + int(self._to_last[gpu])
                found.append(operation_row(SEND, number, ends, cells, "gradients"))
        return found
