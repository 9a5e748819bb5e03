"""Proves a step correct before anything runs it.

1. Layouts are sound (zbench.step.proof.layout_rules), and operations and contracts name what is there (ranges).
2. Every formula of every template computes each combination of parts exactly once (zbench.step.proof.coverage).
3. From what a template's contract needs, its operations make what it leaves: copies are there before they are read
   and are not made twice, sums have all contributions when they are read, stay as they are from then on, and none is
   left behind, state is seen in the versions that are named (zbench.step.proof.item_rules).
4. In the order of instances every contract finds what it needs, no more and no less; every formula is computed once
   for every layer of every micro-batch; what is there at the end is what the step says (zbench.step.proof.order).

Contracts are an input: they are proven against, and not derived from the operations that they are about.
"""

from dataclasses import dataclass

from zbench.step.proof.layout_rules import layout_fault
from zbench.step.proof.order import order_fault
from zbench.step.proof.pipelines import stages_fault
from zbench.step.proof.ranges import Owners, items_fault
from zbench.step.proof.tables import walk_tables, whole_counts
from zbench.step.proof.template_rules import Looked, template_fault
from zbench.step.template import Step


class StepError(ValueError):
    """A step must not run; the message names the template, the operation, the item and its place."""


@dataclass(frozen=True)
class Proven:
    """The counts of a proof. touches: of items by operations of all templates, each once. hops: by tensor, how often
    values were encoded with loss where they are read."""

    touches: int
    hops: dict[str, int]


def prove_step(step: Step) -> Proven:
    """Returns what the proof counted if a step is correct.

    Raises:
        StepError: the first rule broken.
    """
    first = step.same_layouts
    for number, layout in enumerate(step.layouts):
        if first[number] == number:
            _hold(layout_fault(step, layout), f"layout {number}: ")
    _hold(stages_fault(step))
    names = [template.name for template in step.templates]
    if not step.layouts or len(set(names)) < len(names):
        raise StepError("a step has at least one layout, and templates with different names")
    owned = {number: Owners.in_layout(step.layouts[number]) for number in set(first)}
    owners = [owned[number] for number in first]
    for name, items in (("begins", step.begins), ("ends", step.ends)):
        _hold(items_fault(step.layouts[0], items, owners[0], step.num_layers), f"{name} ")
    counts = whole_counts(step)
    walked = {number: walk_tables(step, step.layouts[number], counts[number]) for number in set(first)}
    tables = [walked[number] for number in first]
    hops = {tensor.name: 0 for tensor in step.layouts[0].tensors}
    looked: list[Looked] = []
    alike: dict[tuple[int, ...], Looked] = {}  # of templates that say the same of a layout that is the same
    for template in step.templates:
        if not 0 <= template.layout < len(step.layouts):
            raise StepError(f"template {template.name} is of layout {template.layout}; there are {len(step.layouts)}")
        formulas = set(template.formulas)
        known = range(len(step.layouts[template.layout].formulas))
        if len(formulas) < len(template.formulas) or not formulas <= set(known):
            raise StepError(f"template {template.name} makes a formula twice, or one that its layout has not")
        said = (template.operations, template.formulas, template.needs, template.leaves)
        key = (first[template.layout], *map(id, said))
        if key not in alike:
            broken, found = template_fault(step, template, tables[template.layout], owners[template.layout])
            _hold(broken)
            assert found is not None  # there is one where there is no fault
            alike[key] = found
        found = alike[key]
        looked.append(found)
        for tensor, most in zip(step.layouts[template.layout].tensors, found.hops.tolist(), strict=True):
            hops[tensor.name] = max(hops.get(tensor.name, 0), most)
    for tensor in step.layouts[0].tensors:
        if tensor.hops != hops[tensor.name]:
            read = f"its values are encoded with loss {hops[tensor.name]} times where they are read"
            raise StepError(f"tensor {tensor.name} has hops {tensor.hops}; {read}")
    _hold(order_fault(step, tables, looked))
    return Proven(sum(one.touches for one in looked), hops)


def _hold(fault: str, where: str = "") -> None:
    """Raises StepError if there is a fault."""
    if fault:
        raise StepError(where + fault)
