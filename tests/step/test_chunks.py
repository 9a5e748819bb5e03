"""The feed-forward and the loss by chunks of tokens: proven, exact, one chunk at a time, and gone after it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import MODEL, execute, fault, pipeline_plans, plan_of
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.model import Model
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.passes.recompute import LEVELS
from zbench.step.template import Step

FOUR = replace(MODEL, num_kv_heads=4)


def chunked(mlp: int | str, loss: int | str = "whole") -> Model:
    return replace(FOUR, mlp_chunk_tokens=mlp, loss_chunk_tokens=loss)


def made(step: Step, template: str) -> list[tuple[str, int]]:
    """What the first GPU computes in a template, in order: the first result, and its tokens."""
    one = next(one for one in step.templates if one.name == template)
    layout, ops = step.layouts[one.layout], one.operations
    found = []
    for at in np.flatnonzero((ops.kind == COMPUTE) & (ops.src == 0)).tolist():
        formula = layout.formulas[ops.what[at]]
        columns = (ops.list0, ops.list1, ops.list2)
        parts = layout.lists[int(columns[formula.slots.index("t")][at])]
        result = formula.results[0]
        name = f"{result.tensor}'" if result.after else result.tensor
        found.append((name, int(layout.index["t"].sizes[parts].sum())))
    return found


# (lengths, ranks, degree, level, tokens of chunks of the feed-forward and of the loss, micro-batches)
CASES = [
    ([23, 1, 7, 2, 5, 3], 2, 2, "chunked", 3, 4, 1),
    ([23, 1, 7, 2, 5, 3], 4, 1, "full", 5, 100, 1),
    ([9, 2], 2, 1, "none", 1, 1, 2),
    ([9, 2], 1, 2, "selective", 4, 3, 2),
    ([1, 2], 4, 1, "chunked", 1, "auto", 1),  # a GPU without a token
    ([13], 1, 4, "chunked", 2, 2, 1),  # chunks of a token for some of a group, and of none for others
    ([6, 6], 2, 1, "elementwise", 100, "whole", 1),
]


@pytest.mark.parametrize(("lengths", "ranks", "degree", "level", "mlp", "loss", "batches"), CASES)
def test_exact_and_as_many_bytes(
    lengths: list[int], ranks: int, degree: int, level: str, mlp: int, loss: int | str, batches: int
) -> None:
    model = chunked(mlp, loss)
    plans = [plan_of(lengths, ranks, 4 // degree, first=at * len(lengths)) for at in range(batches)]
    step = whole_step(model, plans, degree, "1", 1, level)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model) < 1e-12
    assert stated_bytes(step) == stated_bytes(whole_step(FOUR, plans, degree, "1", 1, level))


def test_pipelines_exact() -> None:
    """Stages, and pipelines side by side, whose groups have chunks of their own."""
    plans = pipeline_plans([(2, 2), (1, 1)], [[(5, 0), (3, 1)], [(4, 0)]], 5)
    side_by_side = whole_step(chunked(2, 2), plans, zero="1", recompute="chunked")
    assert fault(side_by_side) == ""
    assert execute(side_by_side, plans, 1, chunked(2, 2)) < 1e-12
    plans = [plan_of([5, 3], 2, 4)]
    stages = whole_step(chunked(2), plans, 1, "3", 1, "full", stages=2)
    assert fault(stages) == ""
    assert execute(stages, plans, 1, chunked(2)) < 1e-12


def test_one_chunk_after_another() -> None:
    """Of 8 tokens at most 3 at a time: three chunks, of 2, 3 and 3 tokens, through all of the feed-forward."""
    step = whole_step(chunked(3, 4), [plan_of([8], 1, 4)], 1, "none", 1, "chunked")
    there = made(step, "forward")
    assert there[:6] == [(name, 8) for name in ("n", "q", "kv", "o", "a", "y")]
    assert there[6:] == [(name, size) for size in (2, 3, 3) for name in ("m", "z", "u", "b", "x'")]
    back = ("m~", "z~", "u~", "du", "dwd", "dz", "dm", "dwz", "dy", "dg2")
    assert made(step, "backward")[:30] == [(name, size) for size in (2, 3, 3) for name in back]
    head = ("c", "l", "loss", "dc", "dwh", "dx", "dgl")
    assert made(step, "head") == [(name, 4) for _ in range(2) for name in head]


def test_selective_makes_again_before() -> None:
    step = whole_step(chunked(4), [plan_of([8], 1, 4)], 1, "none", 1, "selective")
    again, gradients = ("m~", "z~", "u~"), ("du", "dwd", "dz", "dm", "dwz", "dy", "dg2")
    assert made(step, "backward")[:17] == [
        *((name, 8) for name in again),
        *((name, 4) for _ in range(2) for name in gradients),
    ]


def test_a_group_s_exchanges_stay_whole() -> None:
    """What the gradients read is gathered before the chunks; of norms each GPU makes all its own tokens."""
    plans = [plan_of([9], 1, 2)]
    step = whole_step(chunked(4), plans, 2, "none", 1, "chunked")
    whole = whole_step(FOUR, plans, 2, "none", 1, "chunked")
    counts = [[int((one.operations.kind != COMPUTE).sum()) for one in of.templates] for of in (step, whole)]
    assert counts[0] == counts[1]
    assert made(step, "backward")[0] == ("m~", 5)
    assert [size for name, size in made(step, "backward") if name == "z~"] == [2, 3, 4]


@pytest.mark.parametrize("level", LEVELS)
def test_as_many_tokens_as_there_are_is_the_whole_of_it(level: str) -> None:
    plans = [plan_of([5, 3], 2, 4)]
    one, other = (whole_step(model, plans, 1, "none", 1, level) for model in (chunked(100, 100), FOUR))
    for mine, theirs in zip(one.templates, other.templates, strict=True):
        assert len(mine.operations) == len(theirs.operations)
