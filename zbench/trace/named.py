"""The name of an operation of a whole step in traces, simulated and measured alike, and what is said of it. Pure: no
torch."""

from collections.abc import Sequence

from zbench.simulator.steps.computes.terms import MATMULS
from zbench.step.formula import Formula
from zbench.step.layers import without_counts
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, GATHER, KINDS, PURPOSE_OF, QUEUES, REDUCE
from zbench.step.passes.rounds.outer_step import SHARE
from zbench.step.template import Template
from zbench.trace.file import Event
from zbench.trace.words import tensor_words

TokenLists = tuple[tuple[int, ...], ...]  # of parts of tokens, a list each
_COMPUTES = {"attend": "attend", "adam": "optimizer", "outer": "optimizer", "take": "optimizer"}
_TOGETHER = ("parameters", "gradients")  # whose collectives have those of a layer together
_IN_ROUNDS = {"parameters": "outer parameters", "gradients": "averages"}  # what these carry where a round ends


def named_operation(template: Template, layout: StepLayout, row: Sequence[int], layer: int) -> tuple[str, Event]:
    """Returns (the name of an operation's events, what they say of it): a compute is an attend, a matmul, the optimizer
    or elementwise work, and has the name of what it makes; a message has that of what it carries.

    row: the operation's columns (zbench.step.operations). layer: of its instance.
    """
    made = layout.formulas[row[1]].results[0].tensor if row[0] == COMPUTE else layout.tensors[row[1]].name
    args: Event = {
        "micro_batch": template.layout,
        "template": template.name,
        "layer": layer + int(row[7]),
        "pass": _pass_of(template.name, layout, made),
    }
    if row[0] == COMPUTE:
        formula = layout.formulas[row[1]]
        return _name_of_compute(formula, layout, row[1]), args | {"formula": str(formula)}
    args["for"] = QUEUES[int(PURPOSE_OF[row[0], row[8]])]
    words = tensor_words(made, layout.number)
    if row[0] in (GATHER, REDUCE):  # a layer's parameters, or gradients, go together: the tensor is the first of them
        if args["for"] in _TOGETHER:
            words = _IN_ROUNDS[args["for"]] if SHARE in layout.number else args["for"]
        if words == "gradients":  # the head's have the loss with them
            args["pass"] = "backward"
        return f"{KINDS[row[0]]} {words}", args
    return words, args


def token_lists(layout: StepLayout, row: Sequence[int]) -> TokenLists:
    """Returns the parts of tokens that an attend or a message of attention is about, a list each: of an attend those
    that ask, and those whose keys they see. () of other operations, which are about all tokens that a GPU has."""
    if row[0] == COMPUTE:
        formula = layout.formulas[row[1]]
        if not formula.terms[0].function.startswith("attend"):
            return ()
        named = [int(row[4 + formula.slots.index(slot)]) for slot in ("t", "s") if slot in formula.slots]
    else:
        of_tokens = QUEUES[row[8]] == "attention" and layout.tensors[row[1]].axes[:1] == ("t",)
        named = [int(row[4])] if of_tokens else []
    return tuple(tuple(layout.lists[one].tolist()) for one in named)


def _name_of_compute(formula: Formula, layout: StepLayout, number: int) -> str:
    """Returns the name of a formula's computes. A sum's contributions have the number of theirs from the second on."""
    made = formula.results[0].tensor
    function = without_counts(formula.terms[0].function).partition("_d")[0]
    if function == "attend":
        again = ", recomputed" if made.endswith("~") else ""
        return f"attend {'backward' if formula.terms[0].function.endswith('_d') else 'forward'}{again}"
    multiplies = function in MATMULS and (bool(function) or any(len(one.operands) > 1 for one in formula.terms))
    kind = "matmul" if multiplies else _COMPUTES.get(function, "elementwise")
    contribution = layout.labels[number].partition(".")[2] if formula.action == "+=" else ""
    return f"{kind} {tensor_words(made, layout.number)}" + (f", contribution {contribution}" if contribution else "")


def _pass_of(template: str, layout: StepLayout, made: str) -> str:
    """Returns the pass that an operation is of. template: its name. made: what it makes or moves, which may be a
    gradient, as in the head, which has its loss and the gradients of that together. A round's end is the optimizer's.
    """
    if template.startswith("optimizer") or SHARE in layout.number:
        return "optimizer"
    is_gradient = made.startswith("d") and made[1:] in layout.number
    return "backward" if is_gradient or "backward" in template else "forward"
