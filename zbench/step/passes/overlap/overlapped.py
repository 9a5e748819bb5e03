"""A built step with the exchanges of its tensor-parallel groups beside their matmuls."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from zbench.describe.arrays import Ints
from zbench.describe.exchanges import ASYNC_TP, NONE, QUERY_SPLIT, RING, SLICED, ExchangeOverlap
from zbench.step.index import Relation
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import GATHER, SEND, Operations
from zbench.step.passes.overlap.async_tp import async_tp
from zbench.step.passes.overlap.commfuse import commfuse
from zbench.step.passes.overlap.query_split import queries_apart, with_attention
from zbench.step.passes.overlap.segments import ExchangeSegment, Row, SegmentFinder, groups_of
from zbench.step.passes.overlap.sliced import sliced
from zbench.step.template import Step, Template


def with_exchanges(step: Step, overlap: ExchangeOverlap, at_a_time: Sequence[Ints]) -> Step:
    """Returns a step in which exchanges of hidden states and their gradients, of layers, go as `overlap` says; where
    there are none, as with groups of one GPU, the step itself. In layers with experts these are attention's; what
    experts exchange with tokens' homes stays as it is. at_a_time: of each layout, in how many chunks of memory each
    GPU's tokens are, int64 [GPUs].

    Slices end where parts of t do: a step that is built for them (zbench.step.passes.parts) has some that do.
    """
    if overlap.method == NONE:
        return step
    tables = [
        ListTable.of(layout.lists, {one.name: len(one) for one in layout.indices}, step.num_places)
        for layout in step.layouts
    ]
    templates = [
        _changed(one, step.layouts[one.layout], (tables[one.layout], at_a_time[one.layout]), overlap)
        for one in step.templates
    ]
    layouts = [replace(layout, lists=table.lists()) for layout, table in zip(step.layouts, tables, strict=True)]
    if overlap.method == QUERY_SPLIT:
        layouts = [replace(one, relations=tuple(map(_apart, one.relations))) for one in layouts]
    return replace(step, layouts=tuple(layouts), templates=tuple(templates))


def _apart(relation: Relation) -> Relation:
    """Returns a relation, that of queries and keys told of each part of queries."""
    return queries_apart(relation) if relation.name == "visible" else relation


def _changed(template: Template, layout: StepLayout, cut: tuple[ListTable, Ints], overlap: ExchangeOverlap) -> Template:
    """Returns a template with its segments as `overlap` says. cut: the table of lists, which gets those of slices, and
    the chunks of memory of each GPU."""
    rows: list[Row] = template.operations.table.tolist()
    lists, chunks = cut
    finder = SegmentFinder(layout, lists, groups_of(layout, rows), overlap.count, chunks)
    runs = [(is_part, list(run)) for is_part, run in groupby(rows, finder.is_part)]
    found: list[list[Row]] = [[], *(run for _, run in runs)]  # so that there is something before each
    for at, (is_part, run) in enumerate(runs, start=1):
        segments, after = finder.of_run(run) if is_part else None, list[Row]()
        if segments is not None and overlap.method == QUERY_SPLIT:
            segments, found[at - 1], after = with_attention(finder, segments, found[at - 1])
        if segments is not None:
            found[at] = [row for one in segments for row in _operations(one, overlap)] + after
    return replace(template, operations=Operations.of([row for run in found for row in run]))


def _operations(segment: ExchangeSegment, overlap: ExchangeOverlap) -> list[Row]:
    """Returns the operations of a segment, and of those of its chunks that follow it."""
    if not segment.later:
        return _of_one(segment, overlap)
    every = [row for one in (segment, *segment.later) for row in _of_one(one, overlap)]
    return sorted(every, key=lambda row: row[0] not in (GATHER, SEND))


def _of_one(segment: ExchangeSegment, overlap: ExchangeOverlap) -> list[Row]:
    if overlap.method == SLICED:
        return sliced(segment)
    if overlap.method == ASYNC_TP:
        return async_tp(segment)
    return commfuse(segment, overlap.transfers == RING)
