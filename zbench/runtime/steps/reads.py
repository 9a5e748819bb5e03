"""Tells which sequences each GPU computes with in a step, so that it has to have their words. Pure."""

from collections.abc import Sequence

import numpy as np

from zbench.describe.arrays import Flags
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.operations import COMPUTE
from zbench.step.template import Step


def sequences_read(step: Step, tokens: Sequence[TokenParts], count: int) -> Flags:
    """Returns which sequences GPUs compute with, bool [GPUs, sequences]. tokens: of every micro-batch. count: of the
    batch's sequences."""
    found = np.zeros((step.num_places, count), bool)
    for instance in step.order:
        template = step.templates[instance.template]
        if template.layout >= len(tokens):  # of what all micro-batches have in common
            continue
        layout, of = step.layouts[template.layout], tokens[template.layout]
        inside = np.zeros((len(of.sizes), count), bool)
        inside[of.part, of.numbers[of.seq]] = True
        slot = [one.slots.index("t") if "t" in one.slots else -1 for one in layout.formulas]
        rows = template.operations.table
        named = {
            (src, lists[slot[what]])
            for kind, what, src, _, *lists in rows.tolist()
            if kind == COMPUTE and slot[what] >= 0
        }
        for layer in instance.layers:
            where = step.where(instance.place, layer)
            for src, number in named:
                found[where[src]] |= inside[layout.lists[number]].any(axis=0)
    return found[: step.num_gpus]
