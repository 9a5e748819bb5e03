"""The rule of layers: every formula is computed once for every layer of every micro-batch."""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED
from zbench.step.layout import StepLayout
from zbench.step.template import Step
from zbench.step.tensor import FOLLOWING, LEADING


def computed_fault(step: Step, order: Ints) -> str:
    """Returns a formula that is not computed once for every layer of every micro-batch, "" if there is none. order:
    int64 [instances, ...], of each its template, first layer, repeats and stride.

    What updates state is left to versions: a step may have several rounds. A formula of one kind of layers is computed
    for these. Of formulas that are alternatives each layer has one, and of what is made again a layer that is not
    recomputed has nothing. A sum that is there before the step may have no further contribution in it; the step's end
    says what there is of it.
    """
    forms = [layout.form for layout in step.layouts]
    begins = np.cumsum([0, *(len(form.formulas) for form in forms)])
    made = [(begins[one.layout], formula) for one in step.templates for formula in one.formulas]
    alternatives = np.concatenate([form.alternatives for form in forms])
    ends = np.cumsum([0, *(len(one.formulas) for one in step.templates)])
    formulas = np.array(made, np.int64).reshape(-1, 2).sum(axis=1)
    first = alternatives + np.repeat(begins[:-1], np.diff(begins))
    done, totals = _times(order, first[formulas], ends, len(first), step.num_layers)
    each = np.concatenate([form.each_layer for form in forms])
    updates = np.concatenate([form.updates for form in forms])
    due = np.concatenate([_layers_due(step, layout) for layout in step.layouts])
    optional = np.concatenate([form.is_optional for form in forms])
    if begun := {step.layouts[0].tensors[at].name for at in step.begins.tensor[step.begins.count != 0].tolist()}:
        optional |= np.array([one.results[0].tensor in begun for form in forms for one in form.formulas], np.bool_)
    once = np.where(each, due.sum(axis=1), 1)
    wrong = (each & (done != due).any(axis=1)) | (totals != once)
    wrong[optional] = ((done > due).any(axis=1) | (totals > once))[optional]
    wrong &= ~updates & (first == np.arange(len(first)))
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    number = int(np.searchsorted(begins, at, side="right")) - 1
    layers = np.flatnonzero(done[at] != due[at]) if each[at] else np.zeros(0, np.int64)
    where = f"layer {layers[0]}" if len(layers) else "the step"
    count = done[at, layers[0]] if len(layers) else totals[at]
    often = "once" if not len(layers) or due[at, layers[0]] else "at all, as it is of another kind"
    label = forms[number].labels[at - begins[number]]
    return f"micro-batch {number}: formula {label} is computed {count} times for {where}, not {often}"


def _layers_due(step: Step, layout: StepLayout) -> Ints:
    """Returns how often each formula is computed for each layer, 1 or 0, int64 [formulas, layers]: for those of its
    kind."""
    due = np.ones((len(layout.formulas), max(step.num_layers, 1)), np.int64)
    for at, kind in enumerate(layout.kinds):
        if kind == LEADING:
            due[at, step.leading :] = 0
        elif kind == FOLLOWING:
            due[at, : step.leading] = 0
    return due


@nb.njit(**ENTERED)
def _times(order, made, ends, count, num_layers):  # type: ignore[no-untyped-def]
    """Returns how often each of so many formulas is computed for each layer, int64 [formulas, layers], and in all.
    made, ends: the formulas of every template. One of which an instance has two alternatives is counted once."""
    done, totals = np.zeros((count, max(num_layers, 1)), np.int64), np.zeros(count, np.int64)
    counted = np.full(count, -1, np.int64)
    for number in range(len(order)):
        template, layer, repeats, stride = order[number, 0], order[number, 1], order[number, 2], order[number, 3]
        for formula in made[ends[template] : ends[template + 1]]:
            if counted[formula] == number:
                continue
            counted[formula] = number
            totals[formula] += repeats
            for turn in range(repeats):
                at = layer + turn * stride
                if 0 <= at < num_layers:
                    done[formula, at] += 1
    return done, totals
