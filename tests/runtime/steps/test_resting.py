"""The items that a step begins with, on the places that they are on."""

from dataclasses import replace

import pytest

from tests.helpers.steps import MODEL, pipeline_plans
from zbench.runtime.steps.resting import items_on
from zbench.step.passes.build import whole_step
from zbench.step.template import Step

FOUR = replace(MODEL, num_layers=4)


def step_of(zero: str) -> Step:
    """Pipelines of two stages of two GPUs, and of one of one."""
    return whole_step(FOUR, pipeline_plans([(2, 2), (1, 1)], [[(5, 0), (3, 1)]], 5), zero=zero)


def cells_on(step: Step, name: str, layer: int) -> dict[int, set[tuple[int, int]]]:
    """The cells of a tensor of a layer on every place."""
    found: dict[int, set[tuple[int, int]]] = {}
    for tensor, at, places, first, second in items_on(step, step.begins, range(5)):
        if (step.layouts[0].tensors[tensor].name, at) == (name, layer):
            for place in places:
                mine = {(a, b) for a in first for b in second}
                assert not mine & found.setdefault(place, set())
                found[place] |= mine
    return found


@pytest.mark.parametrize(("layer", "stage"), [(0, (0, 1)), (1, (0, 1)), (2, (2, 3)), (3, (2, 3))])
def test_what_is_of_a_layer_is_on_the_stages_that_have_it(layer: int, stage: tuple[int, int]) -> None:
    step = step_of("none")
    found = cells_on(step, "wq", layer)
    assert sorted(found) == [*stage, 4]
    slices = [{share for share, _ in found[place]} for place in (*stage, 4)]
    assert slices == [{0}, {1}, {0, 1}]
    assert sorted(cells_on(step, "sg1", layer)) == [*stage, 4]


def test_shards_are_on_one_place_each_and_the_head_is_on_last_stages() -> None:
    step = step_of("1")
    for name, layer, places in (("swd", 3, {2, 3, 4}), ("wh", 0, {2, 3, 4}), ("we", 0, {0, 1, 4})):
        found = cells_on(step, name, layer)
        assert set(found) == places
        every = [cell for cells in found.values() for cell in cells]
        assert len(every) == len(set(every))


def test_places_that_are_not_asked_for_are_left_out() -> None:
    step = step_of("none")
    every, some = (list(items_on(step, step.begins, places)) for places in (range(5), (3,)))
    assert {place for _, _, places, *_ in some for place in places} == {3}
    assert sum(3 in places for _, _, places, *_ in every) == len(some)
