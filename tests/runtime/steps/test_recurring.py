"""Instructions that are kept are those that would be made, and are made anew for all that changes them."""

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.runtime.steps.test_compiler import CASES, PIPELINES, programs_of, step_of
from zbench.runtime.steps.instructions import Programs, holders
from zbench.runtime.steps.recurring import KeptPrograms
from zbench.step.template import Encoding, Step


def kept(store: KeptPrograms, step: Step, process: int = 0) -> Programs:
    """Returns the programs of a step as a process gets it, which is anew, from another process."""
    return store.of(pickle.loads(pickle.dumps(step)), process, holders(step))


def same(one: Programs, other: Programs) -> int:
    """How many programs of two steps are the same object."""
    return sum(any(mine is its for its in other.values()) for mine in one.values())


@pytest.mark.parametrize("case", CASES)
def test_steps_with_as_many_parts_have_the_same_instructions(case: tuple[int, int, str, str, int]) -> None:
    """One store for all processes: each has its own instructions, and other lengths change none."""
    first, store = step_of(*case), KeptPrograms()
    other = step_of(*case, longer=1)
    sizes = [step.layouts[0].index["t"].sizes for step in (first, other)]
    assert len(sizes[0]) == len(sizes[1])
    assert sizes[0].sum() < sizes[1].sum()
    for process in range(first.num_gpus):
        made = kept(store, first, process)
        assert made == programs_of(first, process)
        again = kept(store, other, process)
        assert again == programs_of(other, process)
        assert same(made, again) == len(made)


def test_pipelines_that_differ_have_their_own() -> None:
    store = KeptPrograms()
    for step in (step_of(*CASES[0]), PIPELINES, step_of(*CASES[1])):
        for process in range(step.num_gpus):
            assert kept(store, step, process) == programs_of(step, process)


def moved(step: Step) -> Step:
    """Every tensor is at home on the next GPU."""
    layouts = [
        replace(one, tensors=tuple(replace(t, home=(t.home + 1) % step.num_gpus) for t in one.tensors))
        for one in step.layouts
    ]
    return replace(step, layouts=tuple(layouts))


def encoded(step: Step) -> Step:
    ops = [replace(one.operations, encoding=one.operations.encoding * 0) for one in step.templates]
    templates = [replace(one, operations=of) for one, of in zip(step.templates, ops, strict=True)]
    return replace(step, templates=tuple(templates), encodings=(Encoding("fp8", 8, True, 4),))


def coarser(step: Step) -> Step:
    """Returns the step with an encoding of fewer bits a value, and nothing else changed."""
    return replace(encoded(step), encodings=(Encoding("fp4", 4, True, 4),))


def left(step: Step) -> Step:
    """Nothing is left by any template, so all is forgotten."""
    nothing = [replace(one, leaves=one.leaves.take(one.leaves.tensor < 0)) for one in step.templates]
    return replace(step, templates=tuple(nothing))


def in_turn(step: Step) -> Step:
    """Lists of several parts lose the last one."""
    lists = step.layouts[0].lists
    short = lists.parts.copy()
    short[lists.offsets[1:-1] - 1] = short[lists.offsets[:-2]]
    return replace(step, layouts=(replace(step.layouts[0], lists=replace(lists, parts=short)), *step.layouts[1:]))


@pytest.mark.parametrize("change", [moved, encoded, coarser, left, in_turn])
def test_what_changes_instructions_is_seen(change: Callable[[Step], Step]) -> None:
    step, store = step_of(*CASES[0]), KeptPrograms()
    kept(store, step)
    if change is coarser:
        kept(store, encoded(step))
    other = change(step)
    assert programs_of(other, 0) != programs_of(step, 0)
    assert kept(store, other) == programs_of(other, 0)


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    one, other = step_of(*CASES[0]), step_of(*CASES[2])
    size = sum(len(program.instructions) for program in programs_of(one, 0).values())
    store = KeptPrograms(most=size)
    first = kept(store, one)
    assert same(first, kept(store, one)) == len(first)
    kept(store, other)
    assert kept(store, one) == first
    assert same(first, kept(store, one)) < len(first)
