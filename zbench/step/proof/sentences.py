"""Sentences about a fault: the template, the operation, the item with its layer, and the place."""

from dataclasses import dataclass

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
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

    def left(self, op: int, item: tuple[int, int, int, int], count: int) -> str:
        """Returns the sentence about a sum that is left behind. op: what added to it last, -1 if nothing did."""
        what = self.item(*item)
        return self.at(op, f"adds to {what}, which has {count} contributions that nothing takes or reads")

    def walked(self, fault: Ints) -> str:
        """Returns the sentence about a walk's fault."""
        code, op, tensor, layer, place, cell, have, want, _ = fault.tolist()
        what = self.item(tensor, layer, place, cell)
        name = self.layout.tensors[tensor].name
        return self.at(
            op,
            {
                rules.MISSING: f"uses {what} before an earlier operation brought it there",
                rules.TWICE: f"brings {what}, which is there already",
                rules.INCOMPLETE: f"reads {what} with {have} of {want} contributions",
                rules.NOTHING: f"moves {what}, to which nothing was added",
                rules.AFTER_READ: f"adds to or takes {what}, which was read already",
                rules.VERSION: f"sees {what} after update {have}; it names update {want}",
                rules.NO_SUM: f"moves {name}, which is no sum: copies and state are sent",
                rules.NO_LAYER: f"computes with {what}, and there is no such layer",
                rules.NO_HOME: f"gathers or reduces {what.rpartition(' on ')[0]}, which has no home",
            }[code],
        )
