"""Gradients of a layer in pieces, between experts' messages of the layer that is next in a backward.

Experts' messages come first, and gradients where none is on its way: some pieces while tokens are with their experts,
some beside attention, and what is over after the stage's backward. Lina (USENIX ATC 2023, arXiv 2210.17223) cuts
gradients into pieces of one size for that, FSMoE (ASPLOS 2025, arXiv 2501.10714) chooses how much goes where; how many
pieces that are is zbench.simulated.gradient_order. What is first is said by the order in a queue, so that pieces are in
the queue of experts' messages: one stream has both, as FSMoE's has.

A built step has a template that reduces a layer's gradients by themselves (zbench.step.passes.buckets), after each
layer's backward. Here a part of its operations and of its contract becomes the next layer's backward's, the rest stays
a template that is played in the end. The layer of a stage that is done last has none after it, and is reduced whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zbench.describe.expert_schedule import GradientPieces
from zbench.step.layers import of_experts
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import COMPUTE, QUEUES, Operations
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.template import Instance, Items, Step, Template

Row = list[int]  # an operation or an entry of a contract, with the columns of either in their order
_QUEUE = QUEUES.index("experts")
_DONE_BEFORE = 1  # the offset of the layer that is before another one in a backward


def with_gradients_between(step: Step, parameters: ShardedParameters, pieces: GradientPieces | None) -> Step:
    """Returns a step in which gradients are reduced between experts' messages; where no message goes to other GPUs'
    experts, or no pieces are given, the step itself. parameters: those that it was built of, cut in as many pieces."""
    if pieces is None:
        return step
    tables = [
        ListTable.of(layout.lists, {one.name: len(one) for one in layout.indices}, step.num_places)
        for layout in step.layouts
    ]
    templates = list(step.templates)
    reduces = [one.name.split(".")[0] == "reduce" for one in templates]
    pairs = {
        one.template: other.template
        for one, other in zip(step.order, step.order[1:], strict=False)
        if reduces[other.template]
    }
    rests: dict[int, int] = {}
    for backward, reduction in pairs.items():
        layout = templates[backward].layout
        cut = _PieceCut(step.layouts[layout], tables[layout], parameters, pieces)
        if cut.gaps(templates[backward]) is not None:
            rests[backward] = len(templates)
            templates += [cut.rest(templates[reduction])] if cut.is_over else []
            templates[backward] = cut.backward(templates[backward], templates[reduction])
    order = _order(step.order, rests, pairs, len(templates) > len(step.templates))
    layouts = tuple(replace(layout, lists=table.lists()) for layout, table in zip(step.layouts, tables, strict=True))
    return replace(step, layouts=layouts, templates=tuple(templates), order=tuple(order))


def _order(order: Sequence[Instance], rests: dict[int, int], pairs: dict[int, int], is_over: bool) -> list[Instance]:
    """Returns an order in which the layers of a stage's backward follow one another, and reductions of what is over
    follow these. rests: by the template of a backward that was changed, that of what is over; pairs: the template that
    reduces a layer."""
    found, at = list[Instance](), 0
    while at < len(order):
        one = order[at]
        if one.template not in rests:
            found.append(one)
            at += 1
            continue
        end = at
        while end < len(order) and order[end].template in (one.template, pairs[one.template]):
            end += 2
        count, last = (end - at) // 2, order[end - 1]
        found.append(replace(one, repeats=count))
        if is_over and count > 1:
            found.append(replace(last, template=rests[one.template], layer=last.layer + 1, repeats=count - 1))
        found.append(last)
        at = end
    return found


@dataclass(frozen=True)
class _PieceCut:
    """The pieces of a micro-batch's gradients. lists: gets those of pieces."""

    layout: StepLayout
    lists: ListTable
    parameters: ShardedParameters
    pieces: GradientPieces

    @property
    def is_over(self) -> bool:
        """Whether something is reduced after the backward."""
        return self.pieces.inside + self.pieces.beside < self.pieces.count

    @property
    def _between(self) -> range:
        """The pieces that are reduced in the next layer's backward."""
        return range(self.pieces.inside + self.pieces.beside)

    @property
    def _over(self) -> range:
        return range(self.pieces.inside + self.pieces.beside, self.pieces.count)

    def gaps(self, template: Template) -> tuple[int, int] | None:
        """Returns the operations after which nothing is on its way to experts, and nothing from there; None where no
        message goes both ways."""
        rows: list[Row] = template.operations.table.tolist()
        made = {
            self.layout.number[one.tensor]
            for row in rows
            if row[0] == COMPUTE and of_experts(self.layout.formulas[row[1]])
            for one in self.layout.formulas[row[1]].results
        }
        sent = [at for at, row in enumerate(rows) if row[0] != COMPUTE and row[8] == _QUEUE]
        home = [at for at in sent if rows[at][1] in made]
        out = [at for at in sent if home and at < home[0]]
        return (out[-1] + 1, sent[-1] + 1) if out else None

    def backward(self, template: Template, whole: Template) -> Template:
        """Returns a layer's backward with pieces of the gradients of the layer before it. whole: reduces all of a
        layer's."""
        found = self.gaps(template)
        assert found is not None, "whoever asks looks for gaps first"
        (first, second), rows = found, template.operations.table.tolist()
        inside = self._reductions(whole, range(self.pieces.inside))
        beside = self._reductions(whole, self._between[self.pieces.inside :])
        rows = [*rows[:first], *inside, *rows[first:second], *beside, *rows[second:]]
        needs, leaves = whole.needs.rows(), whole.leaves.rows()
        reduced = [*self._some(leaves, self._between, 3), *self._some(needs, self._over, 3)]
        return replace(
            template,
            operations=Operations.of(rows),
            needs=Items.of(template.needs.rows() + [_of_before(row, 1) for row in needs]),
            leaves=Items.of(template.leaves.rows() + [_of_before(row, 1) for row in reduced]),
        )

    def rest(self, whole: Template) -> Template:
        """Returns the template that reduces what is over of a layer's gradients. whole: reduces all of it."""
        needs = [*self._some(whole.leaves.rows(), self._between, 3), *self._some(whole.needs.rows(), self._over, 3)]
        rows = self._some(whole.operations.table.tolist(), self._over, 4)
        name = whole.name.replace("reduce", "reduce_rest")
        return replace(whole, name=name, operations=Operations.of(rows), needs=Items.of(needs))

    def _reductions(self, whole: Template, pieces: range) -> list[Row]:
        """Returns the reductions of some pieces of the layer before, in experts' queue."""
        rows: list[Row] = whole.operations.table.tolist()
        groups = [range(one, one + 1) for one in pieces] if self.pieces.apart else [pieces]
        found = [_of_before(row, 7) for group in groups for row in self._some(rows, group, 4)]
        return [[*row[:8], _QUEUE, *row[9:]] for row in found]

    def _some(self, rows: Sequence[Row], pieces: range, column: int) -> list[Row]:
        """Returns operations or entries for the cells of some pieces, none where there are none. column: of the first
        list of their cells."""
        found = []
        for row in rows:
            tensor = row[1] if column == 4 else row[0]
            name, shards = self.layout.tensors[tensor].name, row[column + 1]
            piece = self.parameters.pieces_of(name.removeprefix("d"))
            if shards < 0:
                found += [row] if int(piece[0]) in pieces else []
                continue
            cells = self.lists.rows[shards]
            some = cells[(piece[cells] >= pieces.start) & (piece[cells] < pieces.stop)]
            if len(some):
                number = self.lists.number(f"z{name.removeprefix('d')}", some)
                found.append([*row[: column + 1], number, *row[column + 2 :]])
        return found


def _of_before(row: Row, column: int) -> Row:
    """Returns an operation or an entry of the layer that was done before. column: of its offset to a layer."""
    return [*row[:column], row[column] + _DONE_BEFORE, *row[column + 1 :]]
