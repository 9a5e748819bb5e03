"""The handler of computes: reads the operands of a formula, computes all of its parts at once, and writes results."""

from typing import Any

import torch
from torch import Tensor

from zbench.runtime.handlers.context import Context
from zbench.runtime.handlers.formats import Fields, base_name, product_axes
from zbench.runtime.handlers.functions import FUNCTIONS, merge_of
from zbench.runtime.handlers.machine import BatchParts
from zbench.runtime.handlers.store import Slab, Store
from zbench.runtime.steps.instructions import Cells, Compute, Parts
from zbench.step.formula import Formula, Reference, Term
from zbench.step.layers import EVERY_COUNT
from zbench.step.passes.router.seats import SEATS


def compute(one: Compute, parts: BatchParts, store: Store, layer: int) -> None:
    """Computes a formula on a place. layer: of the instance."""
    formula = parts.layout.formulas[one.formula]
    if parts.is_update(one):
        _update(one, parts, store, layer)
        return
    slots = parts.slots(one)
    at = parts.contexts.of(slots)
    read = iter(one.reads)
    operands = [
        [_read(ref, next(read), parts, slots, (store, layer)) for ref in term.operands] for term in formula.terms
    ]
    parts.machine.messages.times.notes.operands()
    terms = [_term(term, formula, at, fields) for term, fields in zip(formula.terms, operands, strict=True)]
    if formula.results[0].tensor == SEATS:
        parts.machine.choices[parts.number, layer, one.writes[0].first] = operands[0][0][0], terms[0][0][0]
    if formula.results[0].tensor in EVERY_COUNT:
        assert parts.counted is not None, "there are counts where rows are counted"
        parts.counted.note(layer, one.writes[0], terms[0][0][0])
    logits = at.logits.take()
    store.weigh(logits)
    values = terms[0] if len(terms) == 1 else [(sum((one[0][0] for one in terms[1:]), start=terms[0][0][0]),)]
    for ref, cells, value in zip(formula.results, one.writes, values, strict=True):
        _write(formula, ref, cells, value, parts, slots, (store, layer))
    store.weigh(logits)


def _read(ref: Reference, cells: Cells, parts: BatchParts, slots: dict[str, Parts], of: tuple[Store, int]) -> Fields:
    """Returns the fields of an operand."""
    store, layer = of[0], of[1] + cells.layer
    found = store.read(parts.key(cells.tensor, layer), parts.format(cells.tensor, layer), cells.first, cells.second)
    if parts.slices.are_cut[cells.tensor] and len(ref.axes) == 1:  # with both axes cells are meant as they lie
        (axis,) = ref.axes
        return (parts.slices.read(ref.tensor, found[0], cells.first, slots[axis.slot]),)
    return found


def _term(term: Term, formula: Formula, at: Context, operands: list[Fields]) -> list[Fields]:
    """Returns the fields that a term has for each result."""
    if term.function:
        found: Any = FUNCTIONS[term.function](at, *operands)
        if len(formula.results) > 1:
            return list(found)
        return [found if isinstance(found, tuple) else (found,)]
    plain = [fields[0] for fields in operands]
    if len(plain) == 1:
        return [(plain[0],)]
    sides = ",".join(product_axes(one.tensor) for one in term.operands)
    return [(torch.einsum(f"{sides}->{product_axes(formula.results[0].tensor)}", *plain),)]


def _write(
    formula: Formula,
    ref: Reference,
    cells: Cells,
    value: Fields,
    parts: BatchParts,
    slots: dict[str, Parts],
    of: tuple[Store, int],
) -> None:
    """Writes a copy, or adds to a sum."""
    store, layer = of[0], of[1] + cells.layer
    tensor, lies = parts.layout.tensors[cells.tensor], parts.format(cells.tensor, layer)
    key = parts.key(cells.tensor, layer)
    if parts.slices.are_cut[cells.tensor] and len(ref.axes) == 1:
        (axis,) = ref.axes
        name = base_name(tensor.name)
        value = (parts.slices.written(name, value[0], cells.first, slots[axis.slot]),)
    # A parameter's gradient is computed in the activations' dtype and summed, and sent, in the wide one.
    value = tuple(one.to(dtype) for one, (_, dtype) in zip(value, lies.fields, strict=True))
    slab = Slab.of(lies, cells.first, cells.second, value)
    if formula.action == "=":
        store.put(key, slab)
    else:
        store.add(key, slab, merge_of(tensor.name, tensor.merge))


def _update(one: Compute, parts: BatchParts, store: Store, layer: int) -> None:
    """Updates a parameter and its state, of what was there before; a state without the parameter itself, as outer
    momentum is, follows it. A parameter that is as wide as in its state is a copy, as the step's account has both."""
    weight, state, gradient = (
        (parts.key(cells.tensor, layer + cells.layer), parts.formats[cells.tensor], cells.first, cells.second)
        for cells in one.reads
    )
    given: Tensor = store.read(*gradient)[0]
    old, kept = store.read(*weight)[0], store.read(*state)
    parts.machine.messages.times.notes.operands()
    after = parts.machine.update(weight[0][:2], kept if len(kept) > 1 else (old, *kept), given)
    for cells, fields in zip(one.writes, ((after[0].to(old.dtype, copy=True),), after[-len(kept) :]), strict=True):
        key = parts.key(cells.tensor, layer + cells.layer)
        store.put(key, Slab.of(parts.formats[cells.tensor], cells.first, cells.second, fields), over=True)
