"""The dynamic programme against trying everything, and that more memory never makes a stage slower."""

from itertools import pairwise, product
from math import inf

import numpy as np
import pytest

from zbench.cost.by_layer.programme import LayerProgramme, LayerTable


def drawn(seed: int) -> LayerTable:
    """A table of up to five strategies in up to three layouts."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    return LayerTable(
        rng.uniform(1, 4, count),
        rng.integers(1, 12, count),
        rng.integers(0, 6, count),
        rng.integers(0, 3, count),
        float(rng.choice([0.0, 0.3, 5.0])),
        rng.integers(0, 4, count),
    )


def seconds_of(table: LayerTable, chosen: tuple[int, ...]) -> float:
    changes = sum(table.layout[a] != table.layout[b] for a, b in pairwise(chosen))
    return float(table.seconds[list(chosen)].sum()) + int(changes) * table.change


def bytes_of(table: LayerTable, chosen: tuple[int, ...], loss: int = 0) -> int:
    """With a layer at work, or the loss, but not both."""
    index = list(chosen)
    beside = int(table.working[index].max())
    if loss:
        beside = max(beside, loss + int(table.at_loss[index].max()))
    return int(table.bytes[index].sum()) + beside


def tried(table: LayerTable, layers: int, room: int, loss: int) -> float:
    every = product(range(len(table.seconds)), repeat=layers)
    return min((seconds_of(table, one) for one in every if bytes_of(table, one, loss) <= room), default=inf)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_found_is_what_trying_everything_finds(seed: int) -> None:
    table = drawn(seed)
    for room in (4, 12, 20, 33, 80):
        programme = LayerProgramme(table, room, 1)
        for layers, taken, loss in ((1, 0, 0), (2, 3, 2), (4, 0, 0), (4, 7, 1), (3, 0, 4), (4, 0, 9)):
            seconds, chosen = programme.best(layers, taken, loss)
            assert seconds == pytest.approx(tried(table, layers, room - taken, loss), abs=1e-12)
            if chosen:
                assert len(chosen) == layers
                assert bytes_of(table, chosen, loss) <= room - taken
                assert seconds_of(table, chosen) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_more_memory_is_never_slower_whatever_the_unit(seed: int) -> None:
    table = drawn(seed)
    for unit in (1, 3):
        found = [LayerProgramme(table, room, unit).best(6)[0] for room in range(0, 90, 5)]
        assert all(after <= before for before, after in pairwise(found))
        assert found[0] == inf
        assert found[-1] < inf


def test_rounding_never_takes_more_than_there_is() -> None:
    """Units of 4 bytes: an excess of 5 counts as 8, and layers of the least bytes count as they are."""
    none = np.array([0, 0])
    table = LayerTable(np.array([1.0, 2.0]), np.array([10, 5]), none, none, 0.0, none)
    assert LayerProgramme(table, 15, 4).best(3) == (6.0, (1, 1, 1))
    assert LayerProgramme(table, 22, 4).best(3) == (6.0, (1, 1, 1))
    assert LayerProgramme(table, 23, 4).best(3)[0] == 5.0


def test_a_change_of_layout_is_made_where_it_pays() -> None:
    seconds, size = np.array([1.0, 2.0]), np.array([3, 1])
    for change, wanted in ((0.5, 6.5), (2.0, 8.0)):
        none = np.array([0, 0])
        table = LayerTable(seconds, size, none, np.array([0, 1]), change, none)
        assert LayerProgramme(table, 8, 1).best(4)[0] == wanted


def test_a_layer_at_work_is_not_beside_the_loss() -> None:
    """A strategy that needs 6 at work fits where the loss needs 6: 12 would not, and with 3 at the loss 9 would not."""
    one = np.array([1])
    table = LayerTable(np.array([1.0]), one, 6 * one, 0 * one, 0.0, 0 * one)
    assert LayerProgramme(table, 8, 1).best(2, 0, 6) == (2.0, (0, 0))
    assert LayerProgramme(table, 7, 1).best(2, 0, 6)[0] == inf
    gathered = LayerTable(np.array([1.0]), one, 6 * one, 0 * one, 0.0, 3 * one)
    assert LayerProgramme(gathered, 8, 1).best(2, 0, 6)[0] == inf
    assert LayerProgramme(gathered, 11, 1).best(2, 0, 6) == (2.0, (0, 0))
    assert LayerProgramme(gathered, 8, 1).best(2) == (2.0, (0, 0))  # on a stage without a loss
