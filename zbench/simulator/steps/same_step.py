"""Steps that are the same but for which tokens attend to which: as a ring's are from batch to batch.

Of such steps operations, what they wait for, bytes and memory are the same; computes of attention alone take other
seconds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from zbench.plans.plan import WAITS, Plan
from zbench.step.layout import StepLayout
from zbench.step.template import Items, Step, Template


def is_same(one: tuple[Step, Sequence[Plan]], other: tuple[Step, Sequence[Plan]]) -> bool:
    """Returns whether two steps, each with the plans of its micro-batches, are the same but for which tokens attend to
    which."""
    (step, plans), (like, known) = one, other
    waits = [[[getattr(plan, name) for name in WAITS] for plan in side] for side in (plans, known)]
    return (
        _shape(step) == _shape(like)
        and waits[0] == waits[1]
        and all(map(_same_layout, step.layouts, like.layouts))
        and all(map(_same_template, step.templates, like.templates))
        and _same_items(step.begins, like.begins)
        and _same_items(step.ends, like.ends)
    )


def _shape(step: Step) -> tuple[Any, ...]:
    """Returns what steps have to have in common before arrays are compared."""
    sizes = step.num_gpus, step.num_hosts, step.num_layers, step.leading, len(step.layouts), len(step.templates)
    lists = tuple((len(one.lists), len(one.lists.parts)) for one in step.layouts)
    operations = tuple(len(one.operations) for one in step.templates)
    return sizes, lists, operations, step.same_layouts, step.encodings, step.stages, step.order


def _same_layout(one: StepLayout, like: StepLayout) -> bool:
    """Returns whether layouts have the same lists, sizes and homes; what meets may differ."""
    lists, known = one.lists, like.lists
    return one is like or (
        one.form is like.form
        and lists.indices == known.indices
        and all(np.array_equal(getattr(lists, name), getattr(known, name)) for name in ("of", "offsets", "parts"))
        and all(np.array_equal(a.sizes, b.sizes) for a, b in zip(one.indices, like.indices, strict=True))
        and all(np.array_equal(a.part, b.part) for a, b in zip(one.maps, like.maps, strict=True))
        and all(
            a is b or (a.unit == b.unit and np.array_equal(a.home, b.home) and _same_amounts(a.amounts, b.amounts))
            for a, b in zip(one.tensors, like.tensors, strict=True)
        )
    )


def _same_amounts(one: Any, like: Any) -> bool:
    return one is like or (one is not None and like is not None and np.array_equal(one, like))


def _same_template(one: Template, like: Template) -> bool:
    return (one.name, one.layout, one.formulas) == (like.name, like.layout, like.formulas) and (
        np.array_equal(one.operations.table, like.operations.table)
        and _same_items(one.needs, like.needs)
        and _same_items(one.leaves, like.leaves)
    )


def _same_items(one: Items, like: Items) -> bool:
    return np.array_equal(one.table, like.table)
