"""Markdown of rows: what a cell holds, what stands above the tables, and that no failure looks like a figure."""

from pathlib import Path
from typing import Any

import pytest

from tests.compare.test_compare import call
from tests.record.test_record import end_line, step_line, write
from tests.record.test_rows import MINE, RING, run_of, start
from zbench.compare.pivot import FIGURES, TIME, check_figures, pivot
from zbench.record.record import Run
from zbench.record.rows import Row, rows


def named(run: str, system: str, workload: str, cluster: str = "c", **config: Any) -> Any:
    choices = {
        "system": system,
        "workload": workload,
        "cluster": cluster,
        "model": "m",
        "executor": "simulated",
        "world": "nominal",
    }
    kind = RING if system == "ring" else MINE
    made = start(
        run, kind, workload={"name": workload}, cluster={"name": cluster}, choices=choices, changes={}, **config
    )
    made["facts"]["simulated"] = True
    return made


def both(workload: str, seconds: float, cluster: str = "c", **changes: Any) -> list[Run]:
    """Ring in 6 s a step and mine in `seconds`."""
    return [
        run_of(named(f"r{workload}{cluster}", "ring", workload, cluster), 6.0, 6.0),
        run_of(named(f"m{workload}{cluster}", "mine", workload, cluster), seconds, seconds, **changes),
    ]


def lines(found: list[Row], *names: str) -> list[str]:
    return pivot(found, names).splitlines()


def test_systems_stand_down_and_workloads_across() -> None:
    found = lines(rows([*both("w", 2.0), *both("v", 3.0)]), "speedup", "step_seconds")
    assert found[2:] == [
        "| | w | v |",
        "|---|---|---|",
        "| ring | 1.00, 6 s | 1.00, 6 s |",
        "| mine | 3.00, 2 s | 2.00, 3 s |",
    ]


def test_what_all_runs_share_is_told_once_and_the_rest_by_table() -> None:
    found = lines(rows([*both("w", 2.0), *both("w", 3.0, "d")]), "speedup")
    assert found[0].startswith("model m, executor simulated, tokens_per_gpu 8, seed 0, baseline ring, 2 steps. Cells: ")
    assert [line for line in found if line.startswith("**")] == ["**cluster c**", "**cluster d**"]
    assert [line for line in found if "mine" in line] == ["| mine | 3.00 |", "| mine | 2.00 |"]


def test_out_of_memory_takes_the_figures_place_and_says_in_how_many_steps() -> None:
    runs = both("w", 2.0)
    runs[1].steps[1]["out_of_memory"] = True
    assert lines(rows(runs), *FIGURES)[-1] == "| mine | out of memory in 1 of 2 |"


def test_a_failed_run_says_why_and_a_missing_one_is_a_dash() -> None:
    failed = run_of(named("x", "fails", "w"))
    failed = Run(failed.start, [], {**end_line("x"), "status": "failed", "message": "step 0: too long"}, "r.jsonl", 1)
    found = lines(rows([*both("w", 2.0), *both("v", 2.0)[:1], failed]), "speedup")
    assert "| mine | 3.00 | - |" in found
    assert "| fails | failed | - |" in found
    assert found[-1] == "- fails on w: step 0: too long"


def test_a_figure_that_cannot_be_said_is_a_dash() -> None:
    alone = run_of(named("x", "mine", "w"), 2.0)
    assert lines(rows([alone]), "speedup", "step_seconds")[-1] == "| mine | -, 2 s |"


def test_why_nothing_tells_what_nics_send_for_is_told() -> None:
    """A table that asks for it says why executors that count attention's messages alone have a dash."""
    runs = both("w", 2.0)
    for run in runs:
        run.start["config"]["choices"]["executor"] = "torch_attention"
    told = "A dash of executor torch_attention: what NICs send for is not told apart, as messages of parameters' and"
    assert told in pivot(rows(runs), ["nic_gradients"])
    assert "executor=torch" in pivot(rows(runs), ["nic_gradients"])
    assert "A dash" not in pivot(rows(runs), ["nic_utilization"])
    assert "A dash" not in pivot(rows(both("w", 2.0)), ["nic_gradients"])


def test_time_is_every_part_that_some_run_has_and_sums_to_the_step() -> None:
    found = rows(both("w", 2.0))
    ring, mine = (dict(row) for row in found)
    ring |= {"time_attention": 0.25, "time_waiting_rank": 0.5, "time_end": 0.25}
    mine |= {"time_attention": 1.0, "time_waiting_rank": 0.0, "time_end": 0.0}
    told = lines([ring, mine], TIME, "step_seconds")
    assert "attention, share of the step that goes to waiting for another rank, share" in told[0]
    assert told[-2:] == ["| ring | 25.0%, 50.0%, 25.0%, 6 s |", "| mine | 100.0%, 0.0%, 0.0%, 2 s |"]
    with pytest.raises(ValueError, match=r"^--pivot is time; none of these runs has an account of its steps' seconds"):
        pivot(found, [TIME])


def test_micro_batches_are_a_mean_over_steps() -> None:
    run = run_of(named("x", "mine", "w"), 2.0, 2.0)
    run.steps[0]["num_micro_batches"], run.steps[1]["num_micro_batches"] = 2, 3
    assert lines(rows([run]), "micro_batches")[-1] == "| mine | 2.5 |"


def test_of_several_runs_of_a_kind_the_last_counts() -> None:
    again = run_of(named("again", "mine", "w", time="2"), 1.0, 1.0)
    assert lines(rows([*both("w", 2.0), again]), "speedup")[-1] == "| mine | 6.00 |"


def worlds(seconds: dict[str, float]) -> list[Run]:
    """Ring in 6, 6 and 6 s a step in every world, and mine in a world's seconds."""
    found = []
    for name, value in seconds.items():
        config = {"world": {"_target_": "zbench.describe.worlds.World", "latency": len(found) + 1}}
        for run in both("w", value):
            start = {**run.start, "run": f"{run.start['run']}{name}", "config": {**run.start["config"], **config}}
            start["config"]["choices"] = {**start["config"]["choices"], "world": name}
            found.append(run_of(start, *[run.steps[0]["seconds"]] * 3))
    return found


def test_of_worlds_the_nominal_one_stands_with_its_range() -> None:
    """6 / 2, with 6 / 4 and 6 / 1.5 in other worlds."""
    found = lines(rows(worlds({"nominal": 2.0, "slow": 4.0, "fast": 1.5})), "speedup", "step_seconds")
    assert found[0].endswith(
        "In brackets: (95 % interval over batches) [least - greatest over worlds nominal, slow, fast]."
    )
    assert [line for line in found if line.startswith("|")][2:] == [
        "| ring | 1.00 [1.00 - 1.00], 6 s |",
        "| mine | 3.00 (3.00 - 3.00) [1.50 - 4.00], 2 s |",
    ]
    assert not [line for line in found if "**" in line]


def test_of_one_world_that_is_not_nominal_it_is_told_and_without_the_nominal_one_each_has_a_table() -> None:
    (head, *_) = lines(rows(worlds({"slow": 4.0})), "speedup")
    assert head.startswith("cluster c, model m, executor simulated, world slow, tokens_per_gpu 8")
    found = lines(rows(worlds({"slow": 4.0, "fast": 1.5})), "speedup")
    assert [line for line in found if line.startswith("**")] == ["**world slow**", "**world fast**"]
    assert [line for line in found if line.startswith("| mine")] == ["| mine | 1.50 |", "| mine | 4.00 |"]


def test_what_planners_know_keeps_ranges_apart() -> None:
    known = worlds({"nominal": 2.0, "slow": 4.0})
    unknown = worlds({"nominal": 2.0, "slow": 6.0})
    for run in unknown:
        run.start["config"]["planners_see"] = "nominal"
    found = lines(rows([*known, *unknown]), "speedup")
    assert [line for line in found if line.startswith("**")] == ["**planners world**", "**planners nominal**"]
    assert [line for line in found if line.startswith("| mine")] == [
        "| mine | 3.00 (3.00 - 3.00) [1.50 - 3.00] |",
        "| mine | 3.00 (3.00 - 3.00) [1.00 - 3.00] |",
    ]


def test_a_run_that_did_not_finish_or_saw_other_batches_is_in_no_range() -> None:
    runs = worlds({"nominal": 2.0, "slow": 4.0, "fast": 1.5})
    runs[5] = Run(runs[5].start, runs[5].steps, {**end_line(), "run": runs[5].start["run"], "status": "failed"})
    (row,) = [row for row in rows(runs) if (row["system"], row["world"]) == ("mine", "nominal")]
    assert (row["speedup_least"], row["speedup_greatest"], row["worlds"]) == (1.5, 3.0, 2)
    runs[3].steps[0]["batch"] = runs[2].steps[0]["batch"] = "another"
    (row,) = [row for row in rows(runs) if (row["system"], row["world"]) == ("mine", "nominal")]
    assert (row["speedup_least"], row["worlds"]) == (None, None)


def test_every_figure_is_one_of_a_row() -> None:
    (row,) = rows([run_of(named("x", "ring", "w"), 2.0)])
    assert set(FIGURES) <= set(row)


def test_an_unknown_figure_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="--pivot is 'speed'; it takes figures separated by commas, of speedup, mfu"):
        check_figures(["mfu", "speed"])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    line = named("a", "ring", "w")
    write(path, {**line, "facts": {**line["facts"], "simulated": True}}, step_line("a"), end_line("a"))
    assert call(monkeypatch, path, "--pivot", "speedup,mfu") == 0
    out = capsys.readouterr().out
    assert "SIMULATED" in out
    assert "| ring | 1.00, " in out
    assert call(monkeypatch, path, "--pivot", "nope") == 2
    assert "--pivot is 'nope'" in capsys.readouterr().err


def test_runs_of_other_settings_or_sources_have_tables_of_their_own() -> None:
    runs = [
        *both("w", 2.0),
        run_of(named("x", "mine", "w", steps=3), 3.0, 3.0, 3.0),
        run_of(named("y", "mine", "w", sources="newer"), 4.0, 4.0),
    ]
    found = lines(rows(runs), "step_seconds")
    assert [line for line in found if line.startswith("**")] == [
        "**steps 2, sources s**",
        "**steps 3, sources s**",
        "**steps 2, sources newer**",
    ]
    assert [line for line in found if "mine" in line] == ["| mine | 2 s |", "| mine | 3 s |", "| mine | 4 s |"]


def test_a_speedup_that_cannot_be_told_has_a_question_mark() -> None:
    assert "| mine | 3.00 ? |" in lines(measured(both("w", 2.0)), "speedup")
    assert "A speed-up with ?: too few steps to tell." in lines(measured(both("w", 2.0)), "speedup")[0]
    assert "?" not in pivot(measured(both("w", 2.0)), ["step_seconds"])


def measured(runs: list[Run]) -> list[Row]:
    for run in runs:
        run.start["facts"]["simulated"] = False
    return rows(runs)


def test_runs_in_rounds_are_told_of_beside_what_they_lost() -> None:
    found = both("w", 2.0, loss=2.5)
    assert "synchronous" not in lines(rows(found), "tokens_per_second")[0]
    found[1].start["facts"]["synchronous"] = False
    told = lines(rows(found), "tokens_per_second", "loss")
    assert "Runs in rounds (sync) are not synchronous: tokens/s of theirs compare at equal loss alone." in told[0]
    assert told[-1] == "| mine | 50, 2.5000 |"
