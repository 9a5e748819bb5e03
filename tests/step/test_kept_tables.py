"""Tables that no batch changes are made once, and the step of a batch is the same whichever were built before it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, fault, plan_of
from zbench.describe.degrees import ShardDegrees
from zbench.describe.model import Model
from zbench.step.lists import PLACE
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters import kept_tables
from zbench.step.passes.parameters import zero as parameters
from zbench.step.passes.parameters.kept_tables import KeptTables
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step
from zbench.step.text import step_text

DEEP = replace(MODEL, num_layers=4)
# Batches of which some leave GPUs without tokens, have several sequences, or several micro-batches, some alike.
BATCHES = ([[7]], [[1]], [[5, 2], [7]], [[3], [3], [4]], [[1], [6]], [[7]])


def steps_of(model: Model, batches: Sequence[list[list[int]]], degree: int, how: dict[str, Any]) -> list[Step]:
    return [
        whole_step(model, [plan_of(lengths, 2, 4 // degree, first=9 * at) for at, lengths in enumerate(one)], **how)
        for one in batches
    ]


@pytest.mark.parametrize(
    ("model", "how"),
    [
        *((DEEP, {"zero": zero, "window": window}) for zero in ("none", "1", "2", "3") for window in (0, 2)),
        (DEEP, {"zero": "3", "degree": 2, "recompute": "full"}),
        (DEEP, {"zero": "2", "degree": 2, "stages": 2}),
        (DEEP, {"zero": ShardDegrees(2, 2, 2, 0)}),
        (EXPERTS, {"zero": "3", "experts": ExpertParallel(2)}),
    ],
)
def test_a_step_is_the_same_after_others(model: Model, how: dict[str, Any]) -> None:
    degree = int(how.get("degree", 1))
    after_others = steps_of(model, BATCHES, degree, how)
    assert [fault(one) for one in after_others] == [""] * len(BATCHES)
    for batch, step in zip(BATCHES, after_others, strict=True):
        parameters._kept.cache_clear()
        assert step_text(steps_of(model, [batch], degree, how)[0]) == step_text(step)


def test_later_steps_make_no_table_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of(DEEP, BATCHES[:1] * 2, 1, {})
    made = list[object]()
    monkeypatch.setattr(KeptTables, "_kept", lambda tables, key, most, found: made.append(key) or found)
    (step,) = steps_of(DEEP, BATCHES[-1:], 1, {})
    assert (made, fault(step)) == ([], "")


def kept() -> KeptTables:
    return KeptTables({PLACE})


def test_a_table_that_names_a_list_of_its_batch_is_made_anew() -> None:
    tables, sizes = kept(), {PLACE: 4, "t": 3}
    lists = tables.begin(sizes)
    row = [[0, 0, lists.number(PLACE, [2]), lists.number("t", [1]), -1, 0, 0, 0]]
    assert tables.of(lists, "key", lambda: [row])[0].tolist() == row
    tables.learn(lists)
    assert (tables.lists.owners, tables.begin(sizes).begun) == ([PLACE], 1)
    lists = tables.begin(sizes)
    other = [[0, 0, lists.number(PLACE, [2]), lists.number("t", [0]), -1, 0, 0, 0]]
    assert tables.of(lists, "key", lambda: [other])[0].tolist() == other
    only = [[0, 0, lists.number(PLACE, [2]), -1, -1, 0, 0, 0]]
    (first,) = tables.of(lists, "of places", lambda: [only])
    assert tables.of(lists, "of places", lambda: [[]])[0] is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_a_table_is_of_no_batch_that_began_before_its_lists_were_known() -> None:
    tables, sizes = kept(), {PLACE: 4}
    early, lists = tables.begin(sizes), tables.begin(sizes)
    lists.number(PLACE, [3])
    tables.learn(lists)
    late = tables.begin(sizes)
    tables.of(late, "key", lambda: [[[0, 0, 0, -1, -1, 0, 0, 0]]])
    assert early.number(PLACE, [1]) == 0
    assert tables.of(early, "key", lambda: [[[0, 0, -1, -1, -1, 5, 0, 0]]])[0].tolist() == [[0, 0, -1, -1, -1, 5, 0, 0]]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_tables, "MOST_LISTS", 2)
    monkeypatch.setattr(kept_tables, "MOST_NUMBERS", 30)
    tables, sizes = kept(), {PLACE: 4}
    lists = tables.begin(sizes)
    for place in range(4):
        lists.number(PLACE, [place])
        tables.of_numbers(place, lambda: [np.zeros((1, 8), np.int64)])
    tables.learn(lists)
    assert (len(tables.lists.rows), sorted(tables._made, key=str)) == (2, [3])
    tables.of_numbers("too large", lambda: [np.zeros((4, 8), np.int64)])
    assert sorted(tables._made, key=str) == [3]
