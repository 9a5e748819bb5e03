"""Proves a step correct before anything runs it.

1. Layouts are sound (zbench.step.proof.layout_rules), operations and contracts name what is there (ranges), and each
   operation is in a queue of its kind (queues).
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
from zbench.step.proof.ranges import Owners, resting_fault
from zbench.step.proof.tables import walk_tables, whole_counts
from zbench.step.proof.template_rules import templates_fault
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
    owned = {number: Owners.in_layout(step.layouts[number]) for number in dict.fromkeys(first)}
    for name, items in (("begins", step.begins), ("ends", step.ends)):
        _hold(resting_fault(step, items, owned[0]), f"{name} ")
    counts = whole_counts(step)
    tables = {number: walk_tables(step, step.layouts[number], counts[number]) for number in owned}
    fitting, unfit = _fitting(step)
    places, of_layouts = _places(step, fitting)
    looked, broken = {}, []
    for number, mine in of_layouts.items():
        templates = [step.templates[one] for one in mine]
        which, fault, looked[number] = templates_fault(step, templates, tables[number], owned[number])
        if fault:
            broken.append((mine[which], fault))
    _hold(min(broken)[1] if broken else unfit)
    hops = {tensor.name: 0 for tensor in step.layouts[0].tensors}
    for number, found in looked.items():
        for tensor, most in zip(step.layouts[number].tensors, found.hops.tolist(), strict=True):
            hops[tensor.name] = max(hops.get(tensor.name, 0), most)
    for tensor in step.layouts[0].tensors:
        if tensor.hops != hops[tensor.name]:
            read = f"its values are encoded with loss {hops[tensor.name]} times where they are read"
            raise StepError(f"tensor {tensor.name} has hops {tensor.hops}; {read}")
    _hold(order_fault(step, tables[0], [(looked[number], at) for number, at in places]))
    return Proven(sum(int(looked[number].touches[at]) for number, at in places), hops)


def _fitting(step: Step) -> tuple[int, str]:
    """Returns how many templates, the first ones, are of a layout that there is and make formulas that it has, each
    once; and what is wrong with the next one, "" if there is none."""
    for number, template in enumerate(step.templates):
        if not 0 <= template.layout < len(step.layouts):
            return (
                number,
                f"template {template.name} is of layout {template.layout}; it takes 0 to {len(step.layouts) - 1}",
            )
        formulas, known = set(template.formulas), range(len(step.layouts[template.layout].formulas))
        if len(formulas) < len(template.formulas) or not formulas <= set(known):
            return number, f"template {template.name} makes a formula twice, or one that its layout has not"
    return len(step.templates), ""


def _places(step: Step, count: int) -> tuple[list[tuple[int, int]], dict[int, list[int]]]:
    """Returns, for each of the first templates, its layout and its place among those of it that are looked at; and
    these, by layout. Of templates that say the same of a layout that is the same, the first one is looked at."""
    places, mine = list[tuple[int, int]](), dict[int, list[int]]()
    alike: dict[tuple[int, ...], tuple[int, int]] = {}
    for number, template in enumerate(step.templates[:count]):
        layout = step.same_layouts[template.layout]
        said = (template.operations, template.formulas, template.needs, template.leaves)
        key = (layout, *map(id, said))
        if key not in alike:
            alike[key] = layout, len(mine.setdefault(layout, []))
            mine[layout].append(number)
        places.append(alike[key])
    return places, mine


def _hold(fault: str, where: str = "") -> None:
    """Raises StepError if there is a fault."""
    if fault:
        raise StepError(where + fault)
