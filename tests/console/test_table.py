"""Tables for people: nothing is cut off at any width, and a file has a line a run."""

import io
import re
import sys
from typing import Any

import pytest

from tests.record.test_iterations import FIRST
from tests.record.test_rows import MINE, RING, run_of, start
from zbench.console.table import print_comparison, print_run
from zbench.record.rows import Row, rows

LONG = {
    "choices": {
        "system": "hybrid_dp_megatron",
        "workload": "longtail_128k",
        "cluster": "a800_4x8",
        "model": "llama_7b",
        "executor": "simulated",
        "world": "nominal",
    }
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def runs(systems: int, simulated: bool = True, workloads: int = 1, seconds: float = 2.0) -> list[Row]:
    """ring, and systems with ever longer names, on each of the workloads."""
    found = []
    for workload in range(workloads):
        for system in range(systems):
            choices = {**LONG["choices"], "workload": f"workload_number_{workload}"}
            choices["system"] = "ring" if system == 0 else "hybrid_dp_megatron"[: 3 + system]
            changes = {"system": {"partition": "paper"} if system == 4 else {}}
            one = start(
                f"{workload}.{system}",
                MINE if system else RING,
                choices=choices,
                time=f"{system}",
                workload={"of": workload},
                changes=changes,
            )
            one["facts"] |= {"simulated": simulated}
            found.append(run_of(one, *(seconds + system for _ in range(4)), loss=3.25))
    return rows(found)


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, show: Any, *arguments: Any) -> list[str]:
    out = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out)
    show(*arguments)
    monkeypatch.undo()
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()


@pytest.mark.parametrize("columns", [40, 80, 120, 250])
@pytest.mark.parametrize(("systems", "workloads"), [(1, 1), (2, 1), (5, 1), (5, 3), (18, 2)])
@pytest.mark.parametrize("simulated", [True, False])
def test_a_comparison_fits_its_terminal_and_nothing_is_cut_off(
    columns: int, systems: int, workloads: int, simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = runs(systems, simulated, workloads)
    lines = on_terminal(monkeypatch, columns, print_comparison, found)
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert "…" not in text
    cells = [line.split() for line in lines]
    for row in found:
        wanted = [row["system"].split()[0], f"{row['tokens_per_second']:,.0f}"]
        assert any(all(word in line for word in wanted) for line in cells), wanted
        assert row["workload"] in text
    if columns != 120:  # where it depends on the names
        assert ("Left out in" in text) == (columns < 120)


def test_two_narrow_tables_have_the_same_figures_and_their_settings_above(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = on_terminal(monkeypatch, 80, print_comparison, runs(2, workloads=2))
    assert [line for line in lines if line.startswith("workload ")] == [
        "workload workload_number_0",
        "workload workload_number_1",
    ]
    heads = [line for line in lines if line.startswith("system")]
    assert heads[0] == heads[1]
    assert [line.split()[-1] for line in lines if line.startswith("hybr")] == ["x"] * 2


def test_a_run_out_of_memory_is_named_as_its_table_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = runs(2, workloads=2)
    found[2]["verdict"] = "out of memory: needs 81.0 of 80.0 GiB"
    for one in found:
        one["baseline"] = None
    system = found[2]["system"]
    lines = on_terminal(monkeypatch, 80, print_comparison, found)
    assert f"workload workload_number_1, {system}: out of memory: needs 81.0 of 80.0 GiB" in " ".join(lines)
    assert not [line for line in lines if line.startswith("run ")]
    print_comparison(found)
    out = capsys.readouterr().out
    assert f"run 3, {system}: out of memory: needs 81.0 of 80.0 GiB\n" in out
    for text in (" ".join(lines), out):
        assert "baseline null" in text
        assert "None" not in text


def test_runs_of_which_no_step_counts_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(start("a", RING), 1.0, 2.0)
    for step in run.steps:
        step["valid"] = False
    found = rows([run])
    told = "no figures, as none of 2 steps counts: the machine was too busy"
    print_run(found)
    assert capsys.readouterr().out == f"{found[0]['system']}: {told}\n"
    print_comparison(found)
    assert f"run 1, {found[0]['system']}: {told}\n" in capsys.readouterr().out


def test_what_is_no_terminal_has_a_line_a_run_and_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_comparison(runs(5, simulated=False, workloads=3))
    lines = capsys.readouterr().out.splitlines()
    assert "\x1b" not in "".join(lines)
    (head,) = [line for line in lines if line.startswith("run")]
    for title in ("tokens/s", "NIC utilisation", "planning, ms", "peak memory, GiB", "speed-up", "95 % interval"):
        assert title in head
    table = [line.split() for line in lines if line[:1].isdigit()]
    assert [line[0] for line in table] == [str(number) for number in range(1, 16)]
    assert "partition=paper" in table[4]
    assert "Left out" not in "".join(lines)


def test_the_systems_of_a_run_stand_side_by_side_without_explanations_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = runs(2)
    lines = on_terminal(monkeypatch, 80, print_run, found)
    assert max(map(len, lines)) <= 80
    assert any("NIC utilisation" in line and line.count("%") == 6 for line in lines)
    assert "share of communication" not in "".join(lines)
    print_run(found)
    assert "share of communication not hidden" in capsys.readouterr().out


def test_a_run_of_which_no_step_counts_has_a_name_and_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(start("a", RING), 6.0, 6.0)
    for step in run.steps:
        step["valid"] = False
    print_run(rows([run]))
    out = capsys.readouterr().out
    assert "the_system" in out
    assert "tokens/s" not in out


def test_a_measured_speedup_that_cannot_be_told_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    ring, mine = start("a", RING), start("b", MINE)
    for line in (ring, mine):
        line["facts"] |= {"simulated": False}
    found = rows([run_of(ring, 6.0, 6.0), run_of(mine, 3.0, 3.0)])
    print_run(found)
    assert "? the_system: too few steps to tell (fewer than 3 that count)." in capsys.readouterr().out
    print_comparison(rows([run_of(ring, 6.0, 6.0, 6.0), run_of(mine, 3.0, 3.0, 9.0)]))
    out = capsys.readouterr().out
    assert "1.20 x ?" in out
    assert "?: too few steps to tell: fewer than 3, or the 95 % interval of the speed-up has 1 in it." in out


def test_runs_of_other_sources_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(rows([run_of(start("a", RING), 2.0), run_of(start("b", RING, sources="newer"), 2.0)]))
    head, *lines = capsys.readouterr().out.splitlines()
    assert "sources" not in head
    assert [line.split()[2] for line in lines[:1] + lines[2:4]] == ["sources", "s", "newer"]


def test_what_a_sweep_said_stands_in_place_of_what_simulation_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(runs(2), ["SIMULATED on [here]."])
    out = capsys.readouterr().out
    assert "SIMULATED on [here]." in out
    assert "Runs of executor simulated" not in out


def test_a_row_tells_what_seconds_go_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks, with waits after what computes, the most first; a part of less than 1 % is left out."""
    spent = {"attention": [0.5, 0.3], "linear": [1.0, 1.2], "waiting_link": [0.1, 0.3], "end": [0.38, 0.18]}
    spent |= {"optimizer": [0.01, 0.01]}
    one = run_of(start("a", None), 2.0)
    one.steps[0]["seconds_for"] = spent
    lines = on_terminal(monkeypatch, 160, print_run, rows([one]))
    (at,) = [at for at, line in enumerate(lines) if "seconds go to" in line]
    found = [line.split("│")[-2].strip() for line in lines[at : at + 4]]
    assert found == ["linear 55%", "attention 20%", "waits: end 14%", "waits: link 10%"]
    compared = "\n".join(on_terminal(monkeypatch, 400, print_comparison, rows([one])))
    assert "linear 55%, attention 20%; waits: end 14%, link 10%" in compared
    assert not [line for line in on_terminal(monkeypatch, 160, print_run, runs(1)) if "seconds go to" in line]


def test_iterations_of_rollouts_have_a_column_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows([run_of(start(name, RING, time=name), 2.0, 2.0, rollouts=FIRST) for name in "ab"])
    print_comparison(found)
    out = capsys.readouterr().out.splitlines()
    titles = next(line for line in out if line.startswith("run"))
    assert [name for name in ("reshard, s", "generate, s", "score, s", "train, s") if name in titles] == [
        "reshard, s",
        "generate, s",
        "score, s",
        "train, s",
    ]
    assert max(map(len, out[:4])) < 220
    assert any(line.startswith("Left out: ") and "stages, tokens/s" in line for line in out)
