"""Ranges over worlds, the order that survives them and the pairs that turn, against numbers by hand."""

from itertools import combinations
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.standing.test_standing import cell
from zbench.standing.cells import Cell
from zbench.standing.ranges import Reversal, over_worlds, reversals, scores, surviving_order, uncounted
from zbench.standing.survival import ALL, Survival, gain_words, in_line, of_one_world, turned_words

Seconds = dict[str, dict[str, dict[str, float]]]  # world -> system -> workload

# On v: a over b is 2, 1.5 and 0.5; on w 8, 6 and 2. Geometric means 4, 3 and 1: level in "third".
SEEN: Seconds = {
    "nominal": {"a": {"v": 1.0, "w": 1.0}, "b": {"v": 2.0, "w": 8.0}},
    "second": {"a": {"v": 1.0, "w": 1.0}, "b": {"v": 1.5, "w": 6.0}},
    "third": {"a": {"v": 2.0, "w": 1.0}, "b": {"v": 1.0, "w": 2.0}},
}


def worlds_of(seconds: Seconds) -> dict[str, dict[str, dict[str, Cell]]]:
    return {
        world: {system: {on: cell([value]) for on, value in cells.items()} for system, cells in systems.items()}
        for world, systems in seconds.items()
    }


def test_a_range_is_the_least_and_the_greatest_of_geometric_means() -> None:
    found = over_worlds(worlds_of(SEEN), "a", "b")
    assert found is not None
    assert (found.least, found.greatest) == (pytest.approx(1), pytest.approx(4))
    assert (found.least_world, found.greatest_world) == ("third", "nominal")
    other = over_worlds(worlds_of(SEEN), "b", "a")
    assert other is not None
    assert (other.least, other.greatest) == (pytest.approx(1 / 4), pytest.approx(1))


def test_without_other_worlds_there_is_no_range() -> None:
    assert over_worlds(worlds_of({"nominal": SEEN["nominal"]}), "a", "b") is None
    assert over_worlds(worlds_of({"second": SEEN["second"], "third": SEEN["third"]}), "a", "b") is None


def test_a_world_that_lacks_a_workload_or_memory_is_in_no_range_and_named() -> None:
    worlds = worlds_of(SEEN)
    del worlds["third"]["a"]["v"]
    found = over_worlds(worlds, "a", "b")
    assert found is not None
    assert (found.least, found.greatest) == (pytest.approx(3), pytest.approx(4))
    assert uncounted(worlds, "b") == ["a in third"]
    worlds["second"]["a"]["v"] = cell([1.0], full=True)
    assert over_worlds(worlds, "a", "b") is None
    assert uncounted(worlds, "b") == ["a in second", "a in third"]


def test_worlds_of_other_batches_are_refused() -> None:
    worlds = worlds_of(SEEN)
    worlds["third"] = {name: {"v": cell([1.0], digest="z"), "w": cell([1.0], digest="z")} for name in "ab"}
    with pytest.raises(ValueError, match="world third saw other batches of v than the nominal one"):
        over_worlds(worlds, "a", "b")


def test_a_pair_that_turns_is_named_with_its_worlds() -> None:
    on_v = reversals(scores(worlds_of(SEEN), ["v"]))
    assert on_v == [Reversal("a", "b", pytest.approx(2.0), {"third": pytest.approx(0.5)})]
    assert turned_words(on_v[0]) == "a over b is 2.00, and 0.50 in third"
    assert (
        turned_words(Reversal("a", "b", 1.0, {"x": 0.9961, "y": 0.994}))
        == "a over b is 1.00, and 0.9961 in x, 0.99 in y"
    )
    assert reversals(scores(worlds_of(SEEN), ["w"])) == []
    assert reversals(scores(worlds_of(SEEN), ["v", "w"])) == []  # level in one world: nobody is behind


def test_worlds_that_turn_a_pair_stand_in_the_order_of_how_far() -> None:
    found = {"nominal": {"a": 0.0, "b": 0.1}, "x": {"a": 0.0, "b": -0.1}, "y": {"a": 0.0, "b": -0.3}}
    (turn,) = reversals(found)
    assert list(turn.worlds) == ["y", "x"]
    assert surviving_order(found) == [["a", "b"]]


def test_the_order_that_survives_has_groups_of_pairs_that_turn() -> None:
    """c is last everywhere, a and b change places, d is first."""
    found = {"nominal": {"c": 9.0, "b": 2.0, "a": 1.0, "d": 0.0}, "x": {"c": 9.0, "b": 1.0, "a": 2.0, "d": 0.5}}
    assert surviving_order(found) == [["d"], ["a", "b"], ["c"]]
    assert in_line(surviving_order(found)) == "d > (a, b) > c"
    assert [(turn.ahead, turn.behind) for turn in reversals(found)] == [("a", "b")]


def test_systems_that_are_level_are_in_one_group_and_turn_only_where_they_part() -> None:
    level = {"nominal": {"a": 0.0, "b": 0.0}, "x": {"a": 1.0, "b": 1.0}}
    assert (surviving_order(level), reversals(level)) == ([["a", "b"]], [])
    parted = {**level, "y": {"a": 1.0, "b": 1.5}}
    (turn,) = reversals(parted)
    assert (turn.nominal, list(turn.worlds)) == (1.0, ["y"])


@given(
    st.lists(st.lists(st.integers(0, 4).map(float), min_size=4, max_size=4), min_size=1, max_size=4),
)
def test_an_order_survives_exactly_where_no_pair_turns(rows: list[list[float]]) -> None:
    """By brute force over pairs: across groups everybody is ahead in every world, and no cut is missing."""
    names = ["nominal", *(f"w{number}" for number in range(1, len(rows)))]
    found = {world: dict(zip("abcd", row, strict=True)) for world, row in zip(names, rows, strict=True)}
    groups = surviving_order(found)
    assert sorted(name for group in groups for name in group) == list("abcd")
    for one, other in combinations(range(len(groups)), 2):
        for world in found.values():
            assert max(world[name] for name in groups[one]) < min(world[name] for name in groups[other])
    flat = [name for group in groups for name in group]
    cuts = {sum(map(len, groups[:number])) for number in range(1, len(groups))}
    for cut in set(range(1, 4)) - cuts:
        assert any(max(w[name] for name in flat[:cut]) >= min(w[name] for name in flat[cut:]) for w in found.values())
    turned = {frozenset((turn.ahead, turn.behind)) for turn in reversals(found)}
    for pair in combinations("abcd", 2):
        signs = {(world[pair[0]] > world[pair[1]]) - (world[pair[0]] < world[pair[1]]) for world in found.values()}
        nominal = found["nominal"][pair[0]] == found["nominal"][pair[1]]
        assert (frozenset(pair) in turned) == ({1, -1} <= signs or (nominal and len(signs) > 1))


def test_what_survives_is_told_for_all_workloads_and_each() -> None:
    seen = {world: {**systems, "c": {"v": 50.0}} for world, systems in SEEN.items()}
    found = Survival.of("here", worlds_of(seen), "b", {"nominal": "nominal", "second": "twice", "third": "thrice"})
    assert found.orders == {ALL: [["a", "b"]], "v": [["a", "b"], ["c"]], "w": [["a"], ["b"]]}
    assert [len(turned) for turned in found.turned.values()] == [0, 1, 0]
    assert found.left_out == ["c"]
    assert list(found.gains) == ["a", "b", "c"]
    ratio, factor, over_all = found.gains["a"]
    assert (ratio, factor) == (pytest.approx(sqrt(2 * 8)), None)
    assert gain_words(ratio, factor, over_all) == "4.00 [1.00-4.00]"
    assert gain_words(4.0, 2.0, over_all) == "4.00 (2.00-8.00) [1.00-4.00]"
    assert found.gains["c"][0] == pytest.approx(2 / 50)


def test_places_of_one_world_are_named() -> None:
    many, one = worlds_of(SEEN), {"nominal": worlds_of(SEEN)["nominal"]}
    places = {("c", "m", "simulated"): many, ("c", "m window=0", "simulated"): one, ("d", "m", "simulated"): {**many}}
    del places["d", "m", "simulated"]["nominal"]
    assert of_one_world(places) == ["m window=0 on c, simulated", "m on d, simulated"]
