"""Sentences about a fault: the template, the operation, the item with its layer, and the place."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.units import with_noun
from zbench.step.form import READ
from zbench.step.layout import StepLayout
from zbench.step.lists import span_text
from zbench.step.operations import COMPUTE, GATHER, REDUCE
from zbench.step.proof import item_rules as rules
from zbench.step.template import Step, Template
from zbench.step.text import operation_text


def item_name(step: Step, layout: StepLayout, tensor: int, layer: int, place: int, cell: int) -> str:
    """Returns what an item is called: kv[3,0] of layer +1 on GPU 5."""
    one = layout.tensors[tensor]
    parts = divmod(cell, layout.shape(tensor)[1])
    axes = f"[{','.join(str(part) for part in parts[: len(one.axes)])}]" if one.axes else ""
    of = "" if one.layers == "none" else f" of layer {layer:+d}" if layer else " of the layer"
    return f"{one.name}{axes}{of} on {step.place(place)}"


@dataclass(frozen=True)
class Sentence:
    """Makes sentences about a template of a step."""

    step: Step
    template: Template

    @property
    def layout(self) -> StepLayout:
        return self.step.layouts[self.template.layout]

    def item(self, tensor: int, layer: int, place: int, cell: int) -> str:
        """Returns what an item is called."""
        return item_name(self.step, self.layout, tensor, layer, place, cell)

    def at(self, op: int, word: str) -> str:
        """Returns the sentence about an operation, or about the template where it is -1."""
        if op < 0:
            return f"template {self.template.name}: {word}"
        shown = operation_text(self.step, self.template, op)
        return f"template {self.template.name}, operation {op} ({shown}) {word}"

    def number(self, op: int, column: str, right: str) -> str:
        """Returns the sentence about a column of an operation that has a number out of range."""
        value = int(getattr(self.template.operations, column)[op])
        return f"template {self.template.name}, operation {op}: {column} is {value}; it takes {right}"

    def contract(self, word: str) -> str:
        """Returns the sentence about the contract."""
        return f"template {self.template.name} {word}"

    @property
    def played(self) -> str:
        """The end of a sentence that says for which layers the template is played."""
        layers = sorted({layer for one in self.step.order for layer in one.layers if self._plays(one.template)})
        if not layers:
            return "; it is played for no layer"
        return f"; it is played for {'layers' if len(layers) > 1 else 'layer'} {span_text(np.array(layers), 0)}"

    def _plays(self, template: int) -> bool:
        return 0 <= template < len(self.step.templates) and self.step.templates[template] is self.template

    def misplaced(self, op: int, word: str) -> str:
        """Returns the sentence about an operation in a queue of another kind."""
        row = self.template.operations.table[op].tolist()
        kind, tensor, place = row[0], row[1], row[2]
        if kind == COMPUTE:
            tensor, cell = self._result(row[1], [self._first(which) for which in row[4:7]])
        else:
            cell = max(self._first(row[4]), 0) * self.layout.shape(tensor)[1] + max(self._first(row[5]), 0)
        if kind in (GATHER, REDUCE):
            home = int(self.layout.tensors[tensor].home[cell])
            place = home if home >= 0 else self._first(row[3])
        return self.at(op, f"has {self.item(tensor, row[7], place, cell)} {word}{self.played}")

    def computed_twice(self, op: int, other: int, parts: Sequence[int]) -> str:
        """Returns the sentence about an operation that computes what another did. parts: of the formula's slots."""
        formula, place = int(self.template.operations.what[op]), int(self.template.operations.src[other])
        what = f"computes {self.layout.labels[formula]} for {self._parts(formula, parts)} a second time"
        return self.at(op, f"{what}, after operation {other} on {self.step.place(place)}{self.played}")

    def not_computed(self, formula: int, parts: Sequence[int]) -> str:
        """Returns the sentence about parts of a formula's slots that no operation computes."""
        tensor, cell = self._result(formula, parts)
        home = int(self.layout.tensors[tensor].home[cell])
        what = f"{self._parts(formula, parts)} of {self.layout.labels[formula]} is computed by no operation"
        item = self.item(tensor, 0, home, cell).rpartition(" on ")[0]
        where = f"is at home on {self.step.place(home)}" if home >= 0 else "has no home"
        return self.at(-1, f"{what}; {item} {where}{self.played}")

    def _parts(self, formula: int, parts: Sequence[int]) -> str:
        """Returns parts of a formula's slots in words; -1: of any."""
        slots = self.layout.formulas[formula].slots
        words = [f"part {part} of {slot}" for part, slot in zip(parts, slots, strict=False) if part >= 0]
        return ", ".join(words) or "its only part"

    def _result(self, formula: int, parts: Sequence[int]) -> tuple[int, int]:
        """Returns (tensor, cell) of the first result of a formula, for parts of its slots; -1: any, the first."""
        bound, layout = self.layout.bound, self.layout
        rows = bound.rows[bound.offsets[formula] : bound.offsets[formula + 1]].tolist()
        _, tensor, _, *axes = next(row for row in rows if row[0] != READ)
        at = [max(parts[slot], 0) if slot >= 0 else 0 for slot in axes[::2]]
        first, second = (
            part if which < 0 else int(layout.maps[which].part[part])
            for part, which in zip(at, axes[1::2], strict=True)
        )
        return tensor, first * layout.shape(tensor)[1] + second

    def _first(self, which: int) -> int:
        """Returns the first part of a list, -1 if there is none."""
        return int(self.layout.lists[which][0]) if which >= 0 and len(self.layout.lists[which]) else -1

    def left(self, op: int, item: tuple[int, int, int, int], count: int) -> str:
        """Returns the sentence about a sum that is left behind. op: what added to it last, -1 if nothing did."""
        what = self.item(*item)
        told = f"adds to {what}, which has {with_noun(count, 'contribution')} that nothing takes or reads"
        return self.at(op, told + self.played)

    def walked(self, fault: Ints) -> str:
        """Returns the sentence about a walk's fault."""
        code, op, tensor, layer, place, cell, have, want, _ = fault.tolist()
        what = self.item(tensor, layer, place, cell)
        name = self.layout.tensors[tensor].name
        told = {
            rules.MISSING: f"uses {what}, which no earlier operation brought there",
            rules.TWICE: f"brings {what}, which is there already",
            rules.INCOMPLETE: f"reads {what} with {have} of {want} contributions",
            rules.NOTHING: f"moves {what}, to which nothing was added",
            rules.AFTER_READ: f"adds to or takes {what}, which was read already",
            rules.VERSION: f"sees {what} after update {have}; it names update {want}",
            rules.NO_SUM: f"moves {name}, which is no sum: copies and state are sent",
            rules.NO_LAYER: f"computes with {what}, and there is no such layer",
            rules.NO_HOME: f"gathers or reduces {what.rpartition(' on ')[0]}, which has no home",
        }[code]
        return self.at(op, told + self.played)
