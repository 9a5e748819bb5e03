"""A critical path's track in a trace: its events are the path's operations, one after another, in the list's words."""

from itertools import pairwise

import pytest

from tests.simulator.steps.test_breakdown import CASES
from zbench.critical.drawn import TRACK, path_events
from zbench.critical.path import critical_path
from zbench.critical.told import path_operations, path_rows, written_numbers
from zbench.simulator.steps.play import play_layers


@pytest.mark.parametrize("name", ["zeppelin", "stages"])
def test_events_are_the_path_s_operations_one_after_another(name: str) -> None:
    """On a process of its own; each begins to the nanosecond where the one before it ends, and the last ends with the
    step. By name they take as long as the list's rows."""
    step, plans, cost = CASES[name]()
    program, timeline = play_layers(step, plans, cost)
    path, cluster = critical_path(program, timeline), cost.gpus.cluster
    written = list(path_events(program, timeline, cluster))
    names, found = written[:3], written[3:]
    assert {one["pid"] for one in written} == {cluster.num_nodes}
    assert [one["args"].get("name") for one in names] == [TRACK, None, TRACK]
    assert found[0]["ts"] == 0
    for before, one in pairwise(found):
        assert one["ts"] == pytest.approx(before["ts"] + before["dur"], abs=1e-6)
    assert found[-1]["ts"] + found[-1]["dur"] == pytest.approx(1e6 * timeline.done.max(), abs=1e-3)
    told = [(row.name, row.reasons, written_numbers(row.gpus)) for row in path_operations(program, path)]
    assert [(one["name"], one["args"]["waited for"], one["args"]["GPUs"]) for one in found] == told
    rows = path_rows(program, path)
    for kind in {row.name for row in rows}:
        seconds = sum(row.seconds for row in rows if row.name == kind)
        drawn = [one["dur"] for one in found if one["name"] == kind]
        assert sum(drawn) == pytest.approx(1e6 * seconds, abs=1e-3 * len(drawn))


def test_many_numbers_are_told_by_how_many() -> None:
    assert written_numbers(frozenset({0, 1, 2, 5})) == "0-2 5"
    assert written_numbers(frozenset(range(0, 28, 2))) == "14 of 0-26"
    assert written_numbers(frozenset()) == ""
