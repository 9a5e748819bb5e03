"""The search for a mapping of models to GPUs, against enumeration of everything."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest

from zbench.placement.layout import ModelLayout, ModelPlacement, PlacedSet, StageTimes
from zbench.placement.mapping import MappingSearch, set_partitions

MEMORY = 100.0
Drawn = dict[tuple[str, int], list[ModelLayout]]


@dataclass
class Offer:
    """A layout that takes at least a share of its seconds, until it is priced."""

    known: ModelLayout
    share: float
    priced: bool = field(default=False)

    @property
    def parts(self) -> tuple[Callable[[], object], ...]:
        return (self._price,)

    def least(self) -> StageTimes:
        return tuple((1.0 if self.priced else self.share) * one for one in self.known.seconds)

    def layout(self) -> ModelLayout | None:
        assert self.priced
        return self.known if self.known.kept + self.known.extra <= MEMORY else None

    def _price(self) -> None:
        self.priced = True


def drawn(models: str, sizes: list[int], seed: int) -> Drawn:
    """Layouts with any bytes and seconds, three for each model and size."""
    rng = np.random.default_rng(seed)
    found: Drawn = {}
    for model, size in product(models, sizes):
        values = rng.random((3, 5)).round(2) * [80 / size, 40, 9, 9, 9]
        found[model, size] = [ModelLayout(float(a), float(b), tuple(map(float, rest))) for a, b, *rest in values]
    return found


def least_of(layouts: Drawn, share: float = 1.0) -> dict[tuple[str, int], StageTimes]:
    return {
        key: tuple(share * min(column) for column in zip(*(one.seconds for one in every), strict=True))
        for key, every in layouts.items()
    }


def search(models: str, gpus: int, sizes: list[int], layouts: Drawn, share: float = 1.0) -> MappingSearch:
    least = least_of(layouts, share)
    keeps = {one: min(a.kept * size for size in sizes for a in layouts[one, size]) for one in models}
    offers = {key: [Offer(one, share) for one in every] for key, every in layouts.items()}
    return MappingSearch(
        gpus, sizes, MEMORY, lambda *key: offers[key], lambda *key: least[key], lambda model: keeps[model]
    )


def every_seconds(models: str, gpus: int, sizes: list[int], layouts: Drawn) -> float:
    """The least seconds of everything there is: each model in one of as many numbered sets, each set with any size,
    each model with any layout."""
    best = float("inf")
    for where in product(range(len(models)), repeat=len(models)):
        sets = sorted(set(where))
        for given in product(sizes, repeat=len(sets)):
            if sum(given) > gpus:
                continue
            size = dict(zip(sets, given, strict=True))
            for chosen in product(*(layouts[model, size[at]] for model, at in zip(models, where, strict=True))):
                stages = [0.0, 0.0, 0.0]
                for at in sets:
                    mine = [one for one, its in zip(chosen, where, strict=True) if its == at]
                    if sum(one.kept for one in mine) + max(one.extra for one in mine) > MEMORY:
                        break
                    for stage in range(3):
                        stages[stage] = max(stages[stage], sum(one.seconds[stage] for one in mine))
                else:
                    best = min(best, sum(stages))
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [1.0, 0.7, 0.0])
def test_the_search_finds_what_enumeration_of_everything_finds(seed: int, share: float) -> None:
    models, gpus, sizes = "abc", 4, [1, 2, 3, 4]
    layouts = drawn(models, sizes, seed)
    found = search(models, gpus, sizes, layouts, share).best(set_partitions(models))
    expected = every_seconds(models, gpus, sizes, layouts)
    assert (found.seconds if found else float("inf")) == pytest.approx(expected, rel=1e-12)


def test_there_are_as_many_partitions_as_bells_numbers() -> None:
    assert [len(list(set_partitions("abcde"[:count]))) for count in range(1, 6)] == [1, 2, 5, 15, 52]
    assert len({frozenset(map(frozenset, one)) for one in set_partitions("abcd")}) == 15


def test_a_set_needs_the_gpus_that_hold_what_its_models_keep() -> None:
    layouts = {(model, size): [ModelLayout(120 / size, 0, (1.0, 1.0, 1.0))] for model in "ab" for size in (1, 2, 4)}
    of = search("ab", 4, [1, 2, 4], layouts)
    assert (of.fewest(("a",)), of.fewest(("a", "b"))) == (2, 4)
    found = of.best(set_partitions("ab"))
    assert found is not None
    assert [(one.models, one.gpus) for one in found.sets] == [(("a",), 2), (("b",), 2)]
    assert search("ab", 2, [1, 2], layouts).best(set_partitions("ab")) is None


def test_models_of_a_set_take_turns_and_sets_do_not() -> None:
    one, other = ModelLayout(1, 5, (1.0, 2.0, 0.0)), ModelLayout(2, 7, (0.0, 3.0, 4.0))
    assert PlacedSet(("a", "b"), 4, (one, other)).seconds == (1.0, 5.0, 4.0)
    apart = ModelPlacement((PlacedSet(("a",), 2, (one,)), PlacedSet(("b",), 2, (other,))))
    assert apart.stages == (1.0, 3.0, 4.0)
    assert PlacedSet(("a", "b"), 4, (one, other)).fits(10)
    assert not PlacedSet(("a", "b"), 4, (one, other)).fits(9.9)


def test_a_layout_that_keeps_more_is_taken_only_where_it_has_room() -> None:
    small, large = ModelLayout(10, 0, (2.0, 2.0, 2.0)), ModelLayout(60, 0, (1.0, 1.0, 1.0))
    layouts = {(model, 1): [small, large] for model in "ab"}
    found = search("ab", 1, [1], layouts).best([(("a", "b"),)])
    assert found is not None
    assert found.stages == (3.0, 3.0, 3.0)  # one of them large, which cannot be both


def test_what_cannot_be_the_fastest_is_not_priced() -> None:
    fast, slow = ModelLayout(10, 0, (1.0, 1.0, 1.0)), ModelLayout(10, 0, (9.0, 9.0, 9.0))
    of = search("a", 1, [1], {("a", 1): [slow, fast]}, 0.5)
    assert of.best([(("a",),)]) is not None
    assert [isinstance(one, Offer) and one.priced for one in of.offers("a", 1)] == [False, True]
