"""A step's text reads back to the same step, and a fault in it is one sentence with line and column."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.steps import MODEL, plan_of
from zbench.step.lists import PartLists, read_spans, span_text
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step
from zbench.step.reading.scanner import TextFault
from zbench.step.template import Step
from zbench.step.text import step_text

STEP = whole_step(MODEL, [plan_of([5, 3], 2, 2)], 2, "3", 1, "full")
LINES = step_text(STEP).splitlines()


def parts(lists: PartLists, column: np.ndarray) -> list[object]:
    """Lists as parts, as the numbers of equal ones may differ."""
    return [None if which < 0 else (lists.index_of(which), lists[which].tolist()) for which in column.tolist()]


def same(one: Step, other: Step) -> None:
    """Everything of two steps is equal, but for the numbers of lists."""
    assert (one.num_gpus, one.num_hosts, one.num_layers) == (other.num_gpus, other.num_hosts, other.num_layers)
    assert (one.order, one.encodings) == (other.order, other.encodings)
    for a, b in zip(one.templates, other.templates, strict=True):
        assert (a.name, a.layout, a.formulas) == (b.name, b.layout, b.formulas)
        first, second = (step.layouts[a.layout].lists for step in (one, other))
        for name in ("list0", "list1", "list2", "via"):
            assert parts(first, getattr(a.operations, name)) == parts(second, getattr(b.operations, name))
        for name in ("kind", "what", "src", "layer", "queue", "version", "encoding"):
            assert getattr(a.operations, name).tolist() == getattr(b.operations, name).tolist()
        for mine, theirs in ((a.needs, b.needs), (a.leaves, b.leaves)):
            for name in ("places", "list0", "list1"):
                assert parts(first, getattr(mine, name)) == parts(second, getattr(theirs, name))
            for name in ("tensor", "layer", "count", "version", "hops"):
                assert getattr(mine, name).tolist() == getattr(theirs, name).tolist()
    for a, b in zip(one.layouts, other.layouts, strict=True):
        assert (a.formulas, a.aliases, a.labels) == (b.formulas, b.aliases, b.labels)
        for kind in ("indices", "maps", "relations", "tensors"):
            assert str(getattr(a, kind)) == str(getattr(b, kind))


@settings(max_examples=6, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), ranks=st.integers(1, 3), degree=st.integers(1, 2),
    zero=st.sampled_from(("none", "1", "2", "3")), recompute=st.sampled_from(("none", "full")),
)  # fmt: skip
def test_a_step_reads_back(lengths: list[int], ranks: int, degree: int, zero: str, recompute: str) -> None:
    step = whole_step(MODEL, [plan_of(lengths, ranks, 4 // degree)], degree, zero, 1, recompute)
    text = step_text(step)
    found = read_step(text)
    same(step, found)
    assert step_text(found) == text
    assert prove_step(found) == prove_step(step)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 12)))
def test_spans_read_back(chosen: set[int]) -> None:
    numbers = np.array(sorted(chosen), np.int64)
    assert read_spans(span_text(numbers, 13), 13).tolist() == numbers.tolist()


@pytest.mark.parametrize(
    ("line", "changed", "told"),
    [
        (1, "step of two layers", r"line 1, column 9: it has 'two' where it takes the number of layers"),
        (1, "layout", r"line 1, column 1: a step begins with a line such as: step of 2 layers"),
        (
            1,
            "step of 2 layers on 2000000000 GPUs and 0 host memories",
            r"line 1, column 1: it has 2 layers on 2,000,000,000",
        ),
        (
            1,
            "step of 1000000 layers on 2 GPUs and 0 host memories",
            r"a step has at most 65,536 layers, and 1,048,576 GPUs",
        ),
        (3, "  index t of batch: 3 x", r"line 3, column 23: the line goes on with 'x' where it ends"),
        (3, "  index t of batch: 0 3", r"line 3, column 21: index t has a part of size 0"),
        (3, "  index t of batch: 3 -4", r"line 3, column 23: index t has a part of size -4; parts have at least 1"),
    ],
)
def test_a_fault_has_line_and_column(line: int, changed: str, told: str) -> None:
    with pytest.raises(TextFault, match=told):
        read_step("\n".join([*LINES[: line - 1], changed, *LINES[line:]]))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  tensor x[t]: copy", "  tensor x[t]: cpy", "column 16: it has 'cpy,' where it takes copy or sum or state"),
        ("  tensor x[t]: copy", "  tensor x[r]: copy", "column 12: there is no index r"),
        (
            "  tensor g1: state, layer, 12 bytes",
            "  tensor g1: state, layer, -8 bytes",
            "column 28: a value has -8 bytes; it takes at least 1",
        ),
        ("  formula x[t] = w[t]", "  formula x[t] = w[t", "column 21: the formula has its end where it takes , or ]"),
        ("  formula x[t] = w[t]", "  formula x[t] = ww[t]", "column 18: there is no tensor ww in this layout"),
        (
            "  tensor x[t]: copy, border, 12 bytes, home 0 1",
            "  tensor x[t]: copy, border, 12 bytes, home 0 9",
            "column 47: it has 9 where it takes 4 numbers from 0 to 3",
        ),
        (
            "  tensor x[t]: copy, border, 12 bytes, home 0 1",
            "  tensor x[t]: copy, border, 12 bytes, home 0",
            "column 45: it has 3 numbers where it takes 4 numbers from 0 to 3",
        ),
        (
            "template embedding of layout 0",
            "template embedding of layout 7",
            "column 30: there is no layout 7; it takes 0",
        ),
        ("  makes w x", "  makes w xx", "column 11: there is no formula xx"),
        ("compute: compute z[", "compute: compute zz[", "column 20: there is no formula zz"),
        ("compute: compute z[", "compote: compute z[", "column 3: no line begins with 'compote'"),
        (
            "play forward for layers 0 to 1",
            "play forward for layers 0 to 99999999",
            "column 1: forward is for layers 0 to 99,999,999",
        ),
        ("play forward for", "play foreward for", "column 6: there is no template foreward"),
        ("  needs x[*] at home", "  needs x[0-9] at home", "column 11: it has parts '0-9'"),
        ("  needs x[*] at home", "  needs x[*] at hole", "column 17: it has 'hole' where it takes parts"),
        ("  needs x[*] at home", "  needs x[*] at home, age 1", "column 23: it has 'age' where it takes complete"),
    ],
)
def test_a_fault_in_the_middle(old: str, new: str, told: str) -> None:
    line = next(at for at, words in enumerate(LINES) if words.strip().startswith(old.strip()))
    changed = LINES[line].replace(old.strip(), new.strip(), 1)
    with pytest.raises(TextFault) as error:
        read_step("\n".join([*LINES[:line], changed, *LINES[line + 1 :]]))
    assert str(error.value).startswith(f"line {line + 1}, {told}")


def test_a_text_that_is_cut_anywhere_is_a_fault_or_unproven() -> None:
    begin = max(at for at, line in enumerate(LINES) if line.startswith("  formula"))
    for size in (0, *range(begin, len(LINES), 40)):
        try:
            step = read_step("\n".join(LINES[:size]))
        except TextFault as error:
            assert str(error).startswith("line ")  # noqa: PT017 - both outcomes are right, neither is a crash
            continue
        with pytest.raises(ValueError, match=r"formula|needs|ends|template"):
            prove_step(step)


@pytest.mark.parametrize("seed", range(4))
def test_any_broken_character_is_a_sentence(seed: int) -> None:
    """A character in between is a fault with line and column, or a step that is another one."""
    rng = np.random.default_rng(seed)
    for at in rng.choice(len(LINES), 12, replace=False).tolist():
        place = int(rng.integers(len(LINES[at])))
        changed = LINES[at][:place] + str(rng.choice(list("?]9,x-"))) + LINES[at][place:]
        try:
            read_step("\n".join([*LINES[:at], changed, *LINES[at + 1 :]]))
        except TextFault as error:
            assert " column " in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("line", "changed", "told"),
    [
        ("  slot s of t", "", "there is no index or slot s"),
        ("ends wq", "{0}\n{0}", r"^the end of the step needs wq of layer 0: .* names wq\[.*\] .*twice"),
        ("begins wq", "{0}\n{0}", r"^instance .* needs wq of layer 0: .* names wq\[.*\] .*twice"),
        ("ends wq", "{0}, version 2147483648", "it has 2,147,483,648 where it takes a number of at most 2,147,483,647"),
        ("template", "layout\n{0}", "column 1: the text ends, and layout 1 has no tensor"),
        ("play", "{0}\nplay forward for layer 7", r"\(template forward\) is for layer 7; the step has 2"),
    ],
)
def test_a_fault_that_is_no_fault_of_a_word(line: str, changed: str, told: str) -> None:
    at = next(at for at, words in enumerate(LINES) if words.startswith(line))
    words = changed.format(LINES[at])
    with pytest.raises(ValueError, match=told):
        prove_step(read_step("\n".join([*LINES[:at], words, *LINES[at + 1 :]])))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("times", [0, 2])
def test_a_line_that_is_left_out_or_doubled_is_a_sentence(times: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for at in rng.choice(len(LINES), 16, replace=False).tolist():
        with suppress(TextFault, StepError):  # any other error is a crash
            prove_step(read_step("\n".join([*LINES[:at], *[LINES[at]] * times, *LINES[at + 1 :]])))
