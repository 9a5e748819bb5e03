"""Steps that were broken on purpose: the proof and the unrolled walk agree, and what is accepted comes out right."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import MODEL, execute, fault, plan_of
from zbench.correctness.steps.mutate import KINDS, step_mutant
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.plans.plan import Plan
from zbench.step.operations import COLUMN_NAMES, COMPUTE, DROP, GATHER, QUEUES, REDUCE, SEND, Operations
from zbench.step.passes.build import whole_step
from zbench.step.template import GONE, Items, Step

THREE = replace(MODEL, num_layers=3)
CASES = (
    (1, 2, 1, "3", "none", 1, "carry"), (2, 2, 1, "3", "full", 1, "carry"), (1, 4, 2, "2", "selective", 2, "keep"),
    (2, 2, 2, "1", "elementwise", 2, "regather"), (1, 3, 1, "none", "full", 1, "keep"),
)  # fmt: skip
# Of each case; some thousand others found no disagreement and nothing wrong that was accepted (docs/step.md).
MUTANTS = 2 * len(KINDS)


@cache
def case(number: int) -> tuple[Step, list[Plan], int]:
    degree, ranks, inner, zero, recompute, batches, mode = CASES[number]
    made = [([7, 1], 0), ([2, 9], 2)][:batches]
    plans = [plan_of(lengths, ranks, 4 // degree, mode, inner, first) for lengths, first in made]
    return whole_step(THREE, plans, degree, zero, 1, recompute), plans, degree


@pytest.mark.parametrize("number", range(len(CASES)))
def test_unbroken_steps_are_right_both_ways(number: int) -> None:
    step, _, _ = case(number)
    assert fault(step) == ""
    assert unrolled_fault(step) == ""


@pytest.mark.parametrize("number", range(len(CASES)))
def test_mutants(number: int) -> None:
    step, plans, degree = case(number)
    rng = np.random.default_rng(number)
    rejected = accepted = 0
    for at in range(MUTANTS):
        broken = step_mutant(step, KINDS[at % len(KINDS)], rng)
        if broken is None:
            continue
        told = fault(broken)
        assert bool(told) == bool(unrolled_fault(broken)), (KINDS[at % len(KINDS)], told)
        if told:
            rejected += 1
        else:
            accepted += 1
            assert execute(broken, plans, degree, THREE) < 1e-12
    assert rejected > accepted > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_operation_in_a_queue_of_another_kind_is_rejected(number: int) -> None:
    """Each queue that there is, for every kind of operation of every template."""
    step, _, _ = case(number)
    tried = set()
    for which, template in enumerate(step.templates):
        rows = template.operations.table
        kinds, firsts = np.unique(rows[:, 0], return_index=True)
        for kind, at in zip(kinds.tolist(), firsts.tolist(), strict=True):
            for queue in range(len(QUEUES)) if kind != DROP else ():
                changed = rows.copy()
                changed[at, COLUMN_NAMES.index("queue")] = queue
                made = replace(template, operations=Operations.of(changed.tolist()))
                broken = replace(step, templates=(*step.templates[:which], made, *step.templates[which + 1 :]))
                told, computes = fault(broken), queue == QUEUES.index("compute")
                right = computes if kind == COMPUTE else not computes and QUEUES[queue] != "host"
                assert bool(told) == bool(unrolled_fault(broken)) == (not right), (template.name, at, queue, told)
                assert right or f"template {template.name}, operation {at} (" in told
                assert right or " takes " in told
                tried.add((kind, right))
    assert {(COMPUTE, False), (SEND, False), (GATHER, False), (REDUCE, False), (SEND, True)} <= tried


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_two_operations_of_one_queue_in_each_others_place(number: int) -> None:
    """What is not there yet is told, which is all that an order can do: every operation follows what it uses, so no
    queue locks another. Where it makes no difference, the step comes out right."""
    step, plans, degree = case(number)
    rng, rejected = np.random.default_rng(number), 0
    for _ in range(12):
        if (broken := step_mutant(step, "order", rng)) is not None:
            told = fault(broken)
            assert bool(told) == bool(unrolled_fault(broken)), told
            assert told or execute(broken, plans, degree, THREE) < 1e-12
            rejected += bool(told)
    assert rejected > 0


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_contract_that_says_something_else_is_rejected(number: int) -> None:
    """A contract is proven against: without an entry, with another count, or with one that nothing makes."""
    step, _, _ = case(number)
    rng = np.random.default_rng(number)
    for which, template in enumerate(step.templates):
        for name in ("needs", "leaves"):
            items = getattr(template, name)
            if not len(items):
                continue
            at = int(rng.integers(len(items)))
            others = np.delete(np.arange(len(items)), at)
            counted = replace(items, count=items.count.copy())
            counted.count[at] += 1
            for changed in (items.take(others), counted):
                made = replace(template, **{name: changed})
                templates = (*step.templates[:which], made, *step.templates[which + 1 :])
                assert fault(replace(step, templates=templates)), (template.name, name, at)


@pytest.mark.parametrize("number", [0, 4])
def test_an_order_that_is_another_is_rejected_unless_it_is_right(number: int) -> None:
    """An instance too few, too many or in another place; what is left right are parts that have nothing in common."""
    step, plans, degree = case(number)
    order = step.order
    for at in range(len(order)):
        assert fault(replace(step, order=order[:at] + order[at + 1 :])), at
        assert fault(replace(step, order=(*order, order[at]))), at
        swapped = [*order[: at - 1], order[at], order[at - 1], *order[at + 1 :]] if at else list(order[::-1])
        broken = replace(step, order=tuple(swapped))
        told = fault(broken)
        assert bool(told) == bool(unrolled_fault(broken)), at
        assert told or execute(broken, plans, degree, THREE) < 1e-12, at
    assert "is computed" in fault(replace(step, num_layers=4))


@pytest.mark.parametrize("name", ["begins", "ends"])
def test_layers_from_which_on_something_begins_or_ends(name: str) -> None:
    """An entry is of the layers from its own on; layers before it then have nothing."""
    step, _, _ = case(0)
    items = getattr(step, name)
    what = step.layouts[0].tensors[items.tensor[0]].name
    for layer in (1, 2):
        rows = items.rows()
        rows[0][1] = layer
        told = fault(replace(step, **{name: Items.of(rows)}))
        assert told
        assert unrolled_fault(replace(step, **{name: Items.of(rows)}))
        assert what in told
        assert "layer 0" in told
    every = items.rows()
    both = replace(
        step, **{name: Items.of([*every, *([row[0], 2, *row[2:]] for row in every if row[0] == every[0][0])])}
    )
    assert (fault(both), unrolled_fault(both)) == ("", "")  # the same from layer 2 on, told twice
    for layer, word in ((-1, "is from layer -1 on"), (3, "is from layer 3 on"), (9, "has a layer that is too far")):
        rows = items.rows()
        rows[0][1] = layer
        assert fault(replace(step, **{name: Items.of(rows)})).startswith(f"{name} entry 0, of {what}, {word}")
    gone = [*items.rows(), [int(items.tensor[0]), 1, GONE, -1, -1, 0, 0, 0]]
    lacking = replace(step, **{name: Items.of(gone)})
    assert "layer 1" in fault(lacking)
    assert unrolled_fault(lacking)
    assert is_read_as_written(lacking)


def test_layouts_of_one_form_share_what_is_found_of_it() -> None:
    """Batches of a model differ in how indices are cut, and not in names and formulas."""
    one, other = (whole_step(THREE, [plan_of(lengths, 2, 4)]).layouts[0] for lengths in ([7, 1], [5, 3, 1]))
    assert one.form is other.form
    assert one.index["t"].sizes.tolist() != other.index["t"].sizes.tolist()
    assert one.form is not whole_step(THREE, [plan_of([7, 1], 2, 4)], recompute="full").layouts[0].form
