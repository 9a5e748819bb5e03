"""Rows from records; speed-ups only over the same batches."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.record.test_record import end_line, start_line, step_line
from zbench.record.record import Line, Run
from zbench.record.rows import GROUPS, label, rows

RING, MINE = {"_target_": "zbench.systems.ring.Ring"}, {"_target_": "mine.Mine"}


def start(run: str, system: dict[str, str], time: str = "1", sources: str = "s", **config: Any) -> Line:
    whole = {
        "system": system,
        "workload": {"mu": 1},
        "cluster": {"num_nodes": 4},
        "model": {},
        "executor": {},
        "seed": 0,
        "tokens_per_gpu": 8,
        "steps": 2,
        "planners_see": "world",
        "free_groups": [],
        "world": {"_target_": "zbench.describe.worlds.World"},
        "mask": "causal",
        "choices": {**{group: f"the_{group}" for group in GROUPS}, "world": "nominal"},
        "changes": {"cluster": {"num_nodes": 16}},
        **config,
    }
    return {
        **start_line(run, config=whole, time=time, baseline={"name": "ring", "system": RING}),
        "fingerprint": {"sources": sources},
    }


def run_of(start: Line, *seconds: float, batch: str = "b", **changes: Any) -> Run:
    steps = [
        step_line(start["run"], number, seconds=value, batch=f"{batch}{number}", **changes)
        for number, value in enumerate(seconds)
    ]
    return Run(start, steps, end_line(start["run"]), "r.jsonl", 1)


def speedups(*runs: Run) -> list[float | None]:
    return [row["speedup"] for row in rows(runs)]


def test_a_row_holds_what_was_asked_for() -> None:
    needed = {
        "run",
        "system",
        "workload",
        "cluster",
        "model",
        "executor",
        "seed",
        "steps",
        "status",
        "tokens_per_second",
        "step_seconds",
        "mfu",
        "nic_utilization",
        "nic_utilization_min",
        "nic_utilization_max",
        "imbalance",
        "exposed_communication",
        "plan_seconds",
        "peak_bytes",
        "bound_ratio",
        "speedup",
        "out_of_memory",
        "baseline",
        "mfu_convention",
    }
    (row,) = rows([run_of(start("a", RING), 2.0, 4.0)])
    assert needed <= set(row)
    assert row["cluster"] == "the_cluster num_nodes=16"
    assert (row["steps"], row["status"], row["step_seconds"], row["baseline"]) == (2, "finished", 3.0, "ring")


@pytest.mark.parametrize(
    ("choice", "changed", "told"),
    [
        ("hpz", {}, "hpz"),
        ("hpz", {"window": 2}, "hpz"),
        ("hpz", {"degrees.weights": 2}, "nested:2,2,2,world"),
        (None, {}, "nested:2,2,2,world"),  # a record from before there were such choices
    ],
)
def test_degrees_are_told_by_the_choice_that_has_them(choice: str | None, changed: dict[str, Any], told: str) -> None:
    changes = {"model": {"num_layers": 3, "sharding": "nested:2,2,2,world"}, "sharding": changed}
    line = start("a", RING, choices={"model": "tiny", "sharding": choice}, changes=changes)
    assert label(line, "model") == f"tiny num_layers=3 sharding={told}"


def test_label_without_changes() -> None:
    assert label(start("a", RING), "system") == "the_system"


def test_speedup_over_the_baseline_and_of_the_baseline() -> None:
    assert speedups(run_of(start("a", RING), 6.0, 6.0), run_of(start("b", MINE), 2.0, 4.0)) == [1.0, 2.0]


def test_an_interrupted_run_is_compared_over_the_steps_it_has() -> None:
    assert speedups(run_of(start("a", RING), 6.0, 100.0), run_of(start("b", MINE), 2.0))[1] == 3.0


@pytest.mark.parametrize(
    "baseline",
    [
        run_of(start("a", RING), 6.0, 6.0, batch="other"),
        run_of(start("a", RING), 6.0),
        run_of(start("a", RING, sources="older"), 6.0, 6.0),
        run_of(start("a", RING, seed=1), 6.0, 6.0),
        run_of(start("a", RING, cluster={"num_nodes": 5}), 6.0, 6.0),
        run_of(start("a", {**RING, "received_kv": "keep"}), 6.0, 6.0),
        run_of(start("a", RING), 6.0, 6.0, out_of_memory=True),
    ],
    ids=["batches", "fewer", "sources", "seed", "cluster", "system", "memory"],
)
def test_what_is_not_the_baseline_on_the_same_batches_gives_no_speedup(baseline: Run) -> None:
    assert speedups(baseline, run_of(start("b", MINE), 2.0, 2.0))[1] is None


def test_a_baseline_by_another_version_of_a_package_gives_no_speedup() -> None:
    ring, mine = start("a", RING), start("b", MINE)
    ring["fingerprint"]["packages"] = {"peer": "1"}
    for version, gain in (("1", 3.0), ("2", None)):
        mine["baseline"]["packages"] = {"peer": version}
        assert speedups(run_of(ring, 6.0), run_of(mine, 2.0))[1] == gain


def test_no_baseline_no_speedup() -> None:
    alone = start("b", MINE)
    alone["baseline"] = None
    (_, row) = rows([run_of(start("a", RING), 6.0), run_of(alone, 2.0)])
    assert (row["speedup"], row["baseline"]) == (None, None)


def test_of_several_baselines_the_last_before_the_run_counts() -> None:
    runs = [run_of(start(name, RING, time=name), seconds) for name, seconds in (("1", 2.0), ("2", 4.0), ("4", 8.0))]
    assert speedups(*runs, run_of(start("3", MINE, time="3"), 2.0))[3] == 2.0
    assert speedups(run_of(start("0", MINE, time="0"), 2.0), *runs)[0] == 1.0


def test_out_of_memory_is_a_verdict_in_place_of_figures() -> None:
    (row,) = rows([run_of(start("a", RING), 2.0, out_of_memory=True)])
    assert (row["tokens_per_second"], row["speedup"], row["out_of_memory"]) == (None, None, True)
    assert row["verdict"].startswith("out of memory: needs")


def gains(*runs: Run, simulated: bool = False) -> list[Any]:
    for run in runs:
        run.start["facts"]["simulated"] = simulated
    return [tuple(row[f"speedup{end}"] for end in ("_low", "_high", "_told")) for row in rows(runs)]


def test_a_measured_speedup_is_told_where_its_interval_leaves_out_1() -> None:
    """Ratios 2, 2 and 8: logarithms have mean ln 32 / 3, t of 2 degrees of freedom is 4.303."""
    ring = run_of(start("a", RING), 6.0, 6.0, 6.0)
    alike, (low, high, told) = gains(ring, run_of(start("b", MINE), 3.0, 3.0, 2.9))
    assert alike == (None, None, True)  # the baseline over itself
    assert (1.9 < low < 18 / 8.9 < high < 2.2, told) == (True, True)
    _, (low, high, told) = gains(ring, run_of(start("b", MINE), 3.0, 3.0, 9.0))
    assert (low < 1 < high, told) == (True, False)
    half = 4.3027 * np.std(np.log([2, 2, 6 / 9]), ddof=1) / np.sqrt(3)
    assert (low, high) == pytest.approx((18 / 15 * np.exp(-half), 18 / 15 * np.exp(half)), rel=1e-4)


def test_of_two_measured_steps_no_speedup_is_told_and_of_simulated_ones_it_is() -> None:
    runs = run_of(start("a", RING), 6.0, 6.0), run_of(start("b", MINE), 1.0, 1.0)
    assert gains(*runs)[1] == (None, None, False)
    assert gains(*runs, simulated=True)[1] == (None, None, True)
    assert gains(run_of(start("b", MINE), 1.0))[0] == (None, None, None)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=3, max_size=8))
def test_the_interval_has_the_speedup_in_it_and_turns_with_it(pairs: list[tuple[float, float]]) -> None:
    mine, ring = zip(*pairs, strict=True)
    forward, back = (
        rows([run_of(start("a", RING), *b), run_of(start("b", MINE), *a)])[1] for a, b in ((mine, ring), (ring, mine))
    )
    assert forward["speedup_low"] * (1 - 1e-9) <= forward["speedup"] <= forward["speedup_high"] * (1 + 1e-9)
    assert forward["speedup_low"] == pytest.approx(1 / back["speedup_high"])
