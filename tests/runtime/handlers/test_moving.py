"""What rests on places between two steps, and what has to move for the next one: without processes."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import chain

import pytest
import torch

from tests.helpers.steps import MODEL, pipeline_plans, plan_of
from zbench.runtime.clocks.step_times import StepTimes
from zbench.runtime.clocks.times import NoClock
from zbench.runtime.handlers.context import NO_WORDS
from zbench.runtime.handlers.formats import WHOLE, base_name
from zbench.runtime.handlers.machine import BatchParts, StepMachine
from zbench.runtime.handlers.messages import GlooMessages
from zbench.runtime.handlers.moving import Moved, changed
from zbench.runtime.handlers.optimizer import NoUpdate
from zbench.runtime.handlers.resting import Resting
from zbench.runtime.kernels.kernels import Matmul
from zbench.runtime.steps.instructions import holders
from zbench.runtime.steps.tokens import tokens_of
from zbench.step.passes.build import whole_step
from zbench.step.passes.own_plans import parts_of_layouts
from zbench.step.switch_law import switch_bytes

FOUR = replace(MODEL, num_layers=4, num_kv_heads=4, hidden=7, element_bytes=8, lse_bytes=8)
SHAPES = ((), ((1, 1),) * 4, ((2, 2),), ((2, 1), (1, 2)), ((4, 1),), ((1, 3), (1, 1)), ((2, 1), (1, 1)))


@cache
def rests(number: int, zero: str) -> tuple[Resting, Resting]:
    """What a step of some pipelines on four GPUs begins with and ends with; without shapes, an ordinary step."""
    shapes = list(SHAPES[number])
    plans = pipeline_plans(shapes, [[(3, 0)]], 4) if shapes else [plan_of([9, 3], 4, 4)]
    step = whole_step(FOUR, plans, zero=zero)
    cpu = torch.device("cpu")
    messages = GlooMessages([], cpu, StepTimes(NoClock()))
    machine = StepMachine(FOUR, cpu, Matmul(), messages, NoUpdate())
    parts = BatchParts(0, step.layouts[0], machine, tokens_of(parts_of_layouts(plans, FOUR, 1))[0], NO_WORDS)
    return tuple(Resting(step, holders(step), parts, items) for items in (step.begins, step.ends))


def moves(before: Resting, after: Resting, key: tuple[str, int, int]) -> Moved:
    sides = [[(one[0], rest.spans(key[0], one)) for one in rest.pieces[key]] for rest in (before, after)]
    return Moved.of(*sides)


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_spans_are_the_elements_of_cells(number: int) -> None:
    _, rest = rests(number, "1")
    axes = dict(zip("hgdfvck", (4, 4, 4, 8, 12, 7, 2), strict=True))
    for key, pieces in rest.pieces.items():
        name = base_name(key[0])
        size = [axes[letter] for letter in WHOLE[name]]
        whole = torch.arange(int(torch.tensor(size).prod())).view(size)
        seen = Counter[int]()
        for piece in pieces:
            elements = list(chain.from_iterable(range(*span) for span in rest.spans(key[0], piece)))
            assert elements == rest.parts.slices.cells(name, whole, *piece[1:]).reshape(-1).tolist()
            seen.update(elements)
        assert seen.keys() == set(range(whole.numel()))  # all of a parameter is somewhere


@pytest.mark.parametrize("zero", ["none", "1"])
def test_bytes_are_the_law_s_and_each_wanted_element_comes_from_who_has_it(zero: str) -> None:
    for first in range(len(SHAPES)):
        for second in range(len(SHAPES)):
            (_, before), (after, _) = rests(first, zero), rests(second, zero)
            moving, sizes = changed(before, after), [[0, 0] for _ in range(4)]
            assert (first != second) == bool(moving)
            for key in moving:
                moved, unit = moves(before, after, key), 24 if key[0] not in WHOLE else 8
                got: dict[int, set[int]] = {place: set() for place in range(4)}
                for (src, dst), atoms in moved.pairs.items():
                    elements = set(chain.from_iterable(range(*moved.atoms[atom]) for atom in atoms))
                    assert elements <= elements_on(before, key, src)
                    assert not elements & got[dst]
                    got[dst] |= elements
                    if src != dst:
                        sizes[src][0] += unit * len(elements)
                        sizes[dst][1] += unit * len(elements)
                assert all(got[place] == elements_on(after, key, place) for place in range(4))
            assert [tuple(one) for one in sizes] == switch_bytes(before.step, after.step)


def elements_on(rest: Resting, key: tuple[str, int, int], place: int) -> set[int]:
    spans = chain.from_iterable(rest.spans(key[0], one) for one in rest.pieces[key] if one[0] == place)
    return set(chain.from_iterable(range(*span) for span in spans))


def test_an_element_that_many_have_is_asked_of_each_in_turn() -> None:
    """Places 3 and 4 lack what 0, 1 and 2 have; place 1 keeps what it has."""
    have, all_of_it = [(place, [(0, 6)]) for place in range(3)], [(0, 4), (4, 6)]
    found = Moved.of(have, [(1, [(0, 6)]), (3, all_of_it), (4, [(4, 6)])])
    assert found.atoms == [(0, 4), (4, 6)]
    assert found.pairs == {(0, 3): [0, 1], (1, 1): [0, 1], (1, 4): [1]}
