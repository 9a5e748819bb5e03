"""The updates that a run's last step has left, as a step of their own.

Where CPUs update across steps, a step ends with gradients in host memory, and what is updated with them comes before
the next step's forward. After the last step nothing follows: these updates are played by themselves, and end with every
parameter as often updated as there were steps, and no gradient.
"""

from dataclasses import replace
from itertools import takewhile

from zbench.step.passes.memory.host_updates import FIRST
from zbench.step.passes.memory.resting_step import KeptLayout
from zbench.step.passes.parameters.tied_tables import has_two_tables
from zbench.step.passes.parameters.weights import TABLES
from zbench.step.template import COMPLETE, Items, Step, Template

Rows = list[list[int]]


def begun_gradients(step: Step) -> set[tuple[str, int]]:
    """Returns the parameters, by name and layer (0 of those that are of no layer), whose gradients a step begins with
    in host memory; of two tables that gradient is one."""
    tensors = step.layouts[0].tensors
    found = {
        (tensors[row[0]].name[1:], layer)
        for row, first, last in step.resting(step.begins)
        if row[5] == COMPLETE
        for layer in range(first, last + 1)
    }
    both = {(name, 0) for name in TABLES}
    return found | both if found & both and has_two_tables(step) else found


def last_update(step: Step) -> Step:
    """Returns the step that comes after a run's last one. step: one that begins with gradients in host memory, as the
    last one has left them.

    Raises:
        ValueError: it begins with none.
    """
    first = list(takewhile(lambda one: _updates_first(step.templates[one.template]), step.order))
    if not first:
        raise ValueError("the step begins without gradients, so that nothing is left to update")
    used = list(dict.fromkeys(one.template for one in first))
    numbers = list(dict.fromkeys([0, *(step.templates[one].layout for one in used)]))
    made = [[step.templates[one] for one in used if step.templates[one].layout == number] for number in numbers]
    kept = [KeptLayout.of(step, number, mine) for number, mine in zip(numbers, made, strict=True)]
    templates = [step.templates[one] for one in used]
    return replace(
        step,
        layouts=tuple(one.layout for one in kept),
        templates=tuple(kept[at].template(one, at) for one in templates for at in [numbers.index(one.layout)]),
        order=tuple(replace(one, template=used.index(one.template)) for one in first),
        begins=kept[0].items(step.begins),
        ends=kept[0].items(_ends(step)),
    )


def _updates_first(template: Template) -> bool:
    return template.name.split(".")[0].endswith(FIRST)


def _ends(step: Step) -> Items:
    """Returns what a step begins with after its first updates, by ranges of layers, without gradients."""
    tensors, begun = step.layouts[0].tensors, begun_gradients(step)
    names = {one.name for one in tensors}
    at: dict[int, dict[int, Rows]] = {}  # by tensor and layer
    for row, first, last in step.resting(step.begins):
        name = tensors[row[0]].name
        if row[5] == COMPLETE:
            continue
        weight = name if f"s{name}" in names else name[1:]
        for layer in range(first, last + 1):
            version = int((weight, layer) in begun)
            at.setdefault(row[0], {}).setdefault(layer, []).append([*row[2:6], version, row[7]])
    found = Rows()
    for tensor, by_layer in at.items():
        before = Rows()
        for layer, rows in sorted(by_layer.items()):
            found += [[tensor, layer, *one] for one in rows] if rows != before else []
            before = rows
    return Items.of(found)
