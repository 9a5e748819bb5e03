"""Attention by slices of its queries, beside the exchange of its output projection (CommFuse's query-split attention).

Attends of a forward are cut by whose queries they have, and go through a segment with the projection of these: a GPU
attends with the queries of one other GPU of its group, projects what comes of it and sends its sums, while it attends
with the next one's; its own come last.

Attends that are cut go one by one to a slice's end, so only those are that wait for the same things anyway: the last
ones, back to one whose keys came from elsewhere. Queries that are complete before them are projected and sent ahead.
Attends with queries of other groups stay where they are, as others wait for them. A backward's are not cut: they would
start more kernels and add keys' gradients more often, which takes longer than the gather that they would hide.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zbench.step.index import Relation
from zbench.step.operations import COMPUTE, DROP, MOVE, SEND
from zbench.step.passes.overlap.segments import ExchangeSegment, Row, SegmentFinder, SegmentFormula

Cut = dict[int, list[int]]  # of each GPU, the positions among rows of its attends that are cut


class AttentionCut(NamedTuple):
    """The attends that a group's segment has with it. segments: in place of it, one after another. cut, drops: the
    positions among the operations before it of these attends, and of drops of what they read, which come after the
    segments."""

    segments: tuple[ExchangeSegment, ...]
    cut: frozenset[int] = frozenset()
    drops: frozenset[int] = frozenset()


def queries_apart(relation: Relation) -> Relation:
    """Returns a relation of which an operation may name any parts of the first index, not whole groups alone."""
    count = np.diff(relation.offsets)[relation.first_group]
    ends = np.concatenate([[0], np.cumsum(count)])
    at = np.repeat(relation.offsets[relation.first_group] - ends[:-1], count) + np.arange(ends[-1])
    parts = np.arange(len(relation.first_group))
    return replace(relation, first_group=parts, offsets=ends, partners=relation.partners[at])


def with_attention(
    finder: SegmentFinder, segments: Sequence[ExchangeSegment], before: Sequence[Row]
) -> tuple[list[ExchangeSegment], list[Row], list[Row]]:
    """Returns the segments of a run of operations with attends of those before it, what is left there, and what has to
    come after the segments."""
    rows = AttentionRows(finder, before)
    found = [rows.cut_for(one) for one in segments]
    drops = frozenset[int]().union(*(one.drops for one in found))
    gone = drops.union(*(one.cut for one in found))
    return (
        [one for turn in range(2) for every in found for one in every.segments[turn : turn + 1]],
        [row for at, row in enumerate(before) if at not in gone],
        [before[at] for at in sorted(drops)],
    )


@dataclass(frozen=True)
class AttentionRows:
    """Operations before a segment, and the attends among them that are cut by its slices."""

    finder: SegmentFinder
    rows: Sequence[Row]

    def cut_for(self, segment: ExchangeSegment) -> AttentionCut:
        """Returns a segment with the last attends before it, where it projects and reduces what they make."""
        projects = any(self._is_projection(segment, one) for one in segment.matmuls)
        if not projects or segment.gathers or segment.over_tokens:
            return AttentionCut((segment,))
        cut: Cut = {gpu: self._last(gpu, segment) for gpu in segment.members}
        every = [at for some in cut.values() for at in some]
        if not every:
            return AttentionCut((segment,))
        queries = np.unique(np.concatenate([self.finder.lists.rows[self.rows[at][4]] for at in every]))
        early, late = (
            replace(segment, slices=[[at[np.isin(at, queries) == cuts] for at in own] for own in segment.slices])
            for cuts in (False, True)
        )
        late = replace(late, matmuls=(*self._formulas(cut), *segment.matmuls))
        since = {gpu: min(some) for gpu, some in cut.items() if some}
        drops = (at for gpu, one in since.items() for at in self._on[gpu] if at > one and self.rows[at][0] == DROP)
        return AttentionCut((early, late), frozenset(every), frozenset(drops))

    def _last(self, gpu: int, segment: ExchangeSegment) -> list[int]:
        """Returns the last attends on a GPU that are cut."""
        found: list[int] = []
        for at in reversed(self._on[gpu]):
            row = self.rows[at]
            if row[0] == COMPUTE:
                apart, own = self._home(segment, row[4])
                if not self._attends(row) or not (apart or own):
                    break
                if apart:
                    continue
                found.append(at)
                if not self._home(segment, row[6])[1]:
                    break
            elif row[0] == MOVE and row[2] == gpu and not self._home(segment, row[4])[0]:
                break
        return found[::-1]

    @cached_property
    def _on(self) -> Mapping[int, list[int]]:
        """The positions of the operations that a GPU computes, drops, sends or gets."""
        found: dict[int, list[int]] = defaultdict(list)
        for at, row in enumerate(self.rows):
            for gpu in {row[2], row[3]} if row[0] in (SEND, MOVE) else {row[2]}:
                found[gpu].append(at)
        return found

    def _home(self, segment: ExchangeSegment, number: int) -> tuple[bool, bool]:
        """Returns whether none, and whether all, of a list's parts are at home in a segment's group."""
        homes = self.finder.layout.tensors[self.finder.layout.number["x"]].home[self.finder.lists.rows[number]]
        inside = (homes >= segment.members[0]) & (homes <= segment.members[-1])
        return not inside.any(), bool(inside.all())

    def _attends(self, row: Row) -> bool:
        """Returns whether a compute is an attend."""
        relation = self.finder.layout.formulas[row[1]].relation
        return relation is not None and relation[0] == "visible"

    def _is_projection(self, segment: ExchangeSegment, matmul: SegmentFormula) -> bool:
        """Returns whether a formula adds what attends make to what is reduced."""
        outputs = {self.finder.layout.number[one] for one in ("o", "o~") if one in self.finder.layout.number}
        return segment.adds(matmul) and any(tensor in outputs for tensor, _ in matmul.reads)

    def _formulas(self, cut: Cut) -> Iterator[SegmentFormula]:
        """Yields the attends as formulas of a segment: the first ones of all GPUs, the second ones, and so on."""
        for turn in range(max(map(len, cut.values()))):
            on = {gpu: self.rows[every[turn]] for gpu, every in cut.items() if turn < len(every)}
            formula = self.finder.layout.formulas[next(iter(on.values()))[1]]
            yield SegmentFormula(formula, on, frozenset(), frozenset(), 4)
