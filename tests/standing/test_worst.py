"""A system's worst cells: beside whom, what counts as won, and layouts of their own told apart."""

import pytest

from tests.record.test_rows import RING, run_of, start
from tests.standing.test_standing import cell
from zbench.standing.cells import Cell
from zbench.standing.worst import Beside, beside, worst


def laid(seconds: list[float], layout: str) -> Cell:
    one = cell(seconds)
    return Cell(one.seconds, one.bound, one.digests, one.out_of_memory, layout)


SYSTEMS = {
    "mine": {"a": cell([2.0] * 3), "b": cell([2.0] * 3), "c": cell([2.0] * 3, full=True)},
    "near": {"a": cell([1.99] * 3), "b": cell([1.0] * 3, full=True), "c": cell([1.0] * 3)},
    "far": {"a": cell([9.0] * 3), "b": cell([1.0, 2.0, 1.0])},
    "static_best": {"a": laid([1.0] * 3, "tensor_parallel=8"), "b": laid([3.0] * 3, "tensor_parallel=8")},
}


def test_the_fastest_other_that_fits_memory_counts() -> None:
    found = beside({"nominal": SYSTEMS}, "here", "mine", layouts=False)
    assert [(one.workload, one.other) for one in found] == [("a", "near"), ("b", "far")]
    assert found[0].ratio == pytest.approx(0.995)
    assert found[1].ratio == pytest.approx(4 / 6)


def test_a_cell_is_won_within_its_interval() -> None:
    assert Beside("", "", "", 0.99, None).won
    assert not Beside("", "", "", 0.98, None).won
    assert not Beside("", "", "", 0.98, 1.005).won
    assert Beside("", "", "", 0.98, 1.02).won


def test_the_worst_come_first_and_other_layouts_are_told_beside() -> None:
    sheet = worst({("here", "m", "simulated"): {"nominal": SYSTEMS}}, "mine")
    assert sheet.title == (
        "mine beside the fastest other system: 2 cells, 1 below 0.99 of it, 0 of them beyond the 95% interval over "
        "batches; geometric mean 0.81, 0.67 to 0.99. By another layout another system is faster in 1, beyond the "
        "interval in 1; least 0.50"
    )
    assert [row[1:3] for row in sheet.rows] == [("b", "far"), ("a", "near")]
    assert [row[4] for row in sheet.rows] == ["within the interval", "yes"]
    assert [row[5] for row in sheet.rows] == ["", "static_best (tensor_parallel=8) 0.50 (0.50-0.50)"]


def test_without_cells_the_title_says_so() -> None:
    sheet = worst({("here", "m", "simulated"): {"nominal": {"mine": SYSTEMS["mine"]}}}, "mine")
    assert (sheet.title, sheet.rows) == ("mine beside the fastest other system: no cells", ())


def test_a_run_s_layout_is_what_it_chose_otherwise() -> None:
    run = run_of(start("a", RING), 2.0)
    run.start["config"] |= {"parallel": {"tensor_parallel": 1}, "sharding": {"strategy": "zero3"}}
    run.start["chosen"] = {"model": {"tensor_parallel": 2, "sharding": "zero3"}, "keys": {}, "words": ""}
    assert Cell.of(run).layout == "tensor_parallel=2"
    del run.start["chosen"]
    assert Cell.of(run).layout == ""
