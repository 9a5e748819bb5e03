"""Standing: ratios, means and intervals of hand-made records, and what cannot be compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.record.test_rows import RING, run_of, start
from zbench.record.interval import interval
from zbench.record.record import Run, read
from zbench.standing.__main__ import main, standing_table, together
from zbench.standing.cells import Cell, cells_by_world, gain


def cell(seconds: list[float], bound: float = 1.0, digest: str = "a", full: bool = False) -> Cell:
    return Cell(tuple(seconds), (bound,) * len(seconds), (digest,) * len(seconds), full)


def test_an_interval_is_student_s() -> None:
    """Of 1, 2, 3: mean 2, deviation 1, t of two degrees of freedom 4.303."""
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half == pytest.approx(4.303 / np.sqrt(3), rel=1e-3)
    assert interval([5.0, 7.0]) == (6.0, None)


def test_gain_is_the_geometric_mean_over_workloads() -> None:
    mine = {"one": cell([1.0] * 3), "two": cell([1.0] * 3)}
    other = {"one": cell([2.0] * 3), "two": cell([8.0] * 3)}
    assert gain(mine, other) == pytest.approx((4.0, 1.0))
    other["two"] = cell([8.0] * 2)
    mine["two"] = cell([1.0] * 2)
    assert gain(mine, other) == (pytest.approx(4.0), None)


def test_gain_leaves_out_what_did_not_fit_and_needs_something_left() -> None:
    mine = {"one": cell([1.0]), "two": cell([1.0], full=True)}
    found = gain(mine, {"one": cell([2.0]), "two": cell([9.0])})
    assert found is not None
    assert found[0] == pytest.approx(2)
    assert gain({"two": cell([1.0], full=True)}, {"two": cell([2.0])}) is None


def test_gain_over_pairs_has_an_interval_of_pairs() -> None:
    """Batches differ by ten times, the two systems by just twice on each: the interval is a point."""
    found = gain({"w": cell([1.0, 10.0, 3.0])}, {"w": cell([2.0, 20.0, 6.0])})
    assert found == pytest.approx((2.0, 1.0))


def test_other_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="different batches of w"):
        gain({"w": cell([1.0])}, {"w": cell([1.0], digest="b")})


def test_the_nearest_to_the_bound_comes_first() -> None:
    systems = {"slow": {"w": cell([4.0] * 3)}, "fast": {"w": cell([2.0] * 3)}}
    one = standing_table("here", systems, "slow")
    assert one.columns == ("system", "w", "mean", "x slow")
    assert one.rows == (
        ("fast", "0.500 ±0.000", "0.500", "2.00 (2.00-2.00)"),
        ("slow", "0.250 ±0.000", "0.250", "1.00 (1.00-1.00)"),
    )
    assert [str(cell) for cell in one.rich().columns[0].cells] == ["fast", "slow"]


def test_markdown_has_a_line_a_system() -> None:
    lines = standing_table("here", {"one": {"w": cell([4.0])}}, "one").markdown().splitlines()
    assert lines[2:] == [
        "| system | w | mean | x one |",
        "|---|---|---|---|",
        "| one | 0.250 | 0.250 | 1.00 |",
    ]


def test_all_tables_together() -> None:
    """The mean of what fits, starred where something does not; the speed-up is over the cells of both."""
    found = {
        ("small", "m", "simulated"): {"nominal": {"a": {"w": cell([2.0])}, "b": {"w": cell([4.0])}}},
        ("large", "m", "simulated"): {"nominal": {"a": {"w": cell([8.0])}, "b": {"w": cell([8.0], full=True)}}},
    }
    one = together(found, "b")
    assert one.columns == ("system", "small", "large", "all", "x b")
    assert one.rows == (
        ("a", "0.500", "0.125", "0.250", "2.00"),
        ("b", "0.250", "0.000 *", "0.250 *", "1.00"),
    )


def test_who_fits_one_workload_only_is_not_first() -> None:
    systems = {
        "short": {"v": cell([1.0]), "w": cell([1.0], full=True)},
        "both": {"v": cell([2.0]), "w": cell([1.5])},
    }
    assert [row[0] for row in standing_table("here", systems, "both").rows] == ["both", "short"]


def test_what_was_measured_has_a_table_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The records of the desk: the same steps measured and simulated; who is compared has to be in them."""
    path = str(Path(__file__).parents[2] / "results" / "paper" / "desk_systems.jsonl")
    found = cells_by_world(read(path)[0])
    assert [kind for _, _, kind in found] == [
        "measured, executor desk_attention",
        "simulated, executor simulated_attention",
    ]
    measured, simulated = (worlds["nominal"]["nodewise"] for worlds in found.values())
    assert measured.keys() == simulated.keys()
    assert all(measured[name].seconds != simulated[name].seconds for name in measured)
    for arguments, said in ((["--over", "nobody"], "--over is 'nobody'; the records have"), (["--over", "ring"], "")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["standing", path, *arguments])
            assert main() == (2 if said else 0)
        assert said in capsys.readouterr().err


def test_each_simulated_executor_has_a_table_of_its_own() -> None:
    """Whole steps and attention with the rest beside it are two clocks, whose seconds are not each other's."""

    def one(run: str, name: str, target: str, seconds: float) -> Run:
        made = run_of(start(run, RING, executor={"_target_": target}), seconds, seconds)
        made.start["config"]["choices"]["executor"] = name
        made.start["facts"]["simulated"] = True
        return made

    attention = one("a", "simulated_attention", "zbench.simulator.estimate.step.StepEstimate", 2.0)
    whole = one("b", "simulated", "zbench.simulated.executor.Simulated", 3.0)
    for runs in ([attention, whole], [whole, attention]):
        found = {kind: cells["nominal"] for (_, _, kind), cells in cells_by_world(runs).items()}
        assert found.keys() == {"simulated", "simulated, executor simulated_attention"}
        seconds = {kind: cell.seconds for kind, of in found.items() for cell in next(iter(of.values())).values()}
        assert seconds == {"simulated": (3.0, 3.0), "simulated, executor simulated_attention": (2.0, 2.0)}
    assert [kind for _, _, kind in cells_by_world([attention])] == ["simulated, executor simulated_attention"]


def test_runs_of_other_settings_have_tables_of_their_own() -> None:
    def one(run: str, system: dict[str, str], **changes: Any) -> Run:
        made = run_of(start(run, system, **changes), 2.0, 4.0)
        made.start["facts"]["simulated"] = True
        return made

    runs = [
        one("a", RING),
        one("b", RING, seed=1),
        one("c", RING, tokens_per_gpu=9),
        one("d", RING, steps=3),
        one("e", RING, sources="other"),
        one("f", RING),
    ]
    found = cells_by_world(runs)
    assert len(found) == 5  # the last is the first again
    assert {place[3:] for place in found} == {
        ("tokens_per_gpu 8", "seed 0", "steps 2", "sources s"),
        ("tokens_per_gpu 8", "seed 1", "steps 2", "sources s"),
        ("tokens_per_gpu 9", "seed 0", "steps 2", "sources s"),
        ("tokens_per_gpu 8", "seed 0", "steps 3", "sources s"),
        ("tokens_per_gpu 8", "seed 0", "steps 2", "sources other"),
    }
    assert len(cells_by_world(runs, mix_sources=True)) == 4
    assert {place[3:] for place in cells_by_world([runs[0], runs[5]])} == {()}
