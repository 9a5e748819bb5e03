"""zbench advise on four small GPUs: what is told follows from what was played, and mistakes are one sentence."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zbench.advise import find as finding
from zbench.advise.__main__ import advise
from zbench.advise.advice import Advice
from zbench.advise.candidate import PinnedSystem, settle
from zbench.advise.find import question_values
from zbench.advise.play import play
from zbench.advise.question import read_question
from zbench.advise.told import answer_lines
from zbench.api.words import run_sub_command
from zbench.console.signals import stop_in
from zbench.interfaces import study
from zbench.report.advice import COLUMNS, advice_told, is_advice
from zbench.run.chosen import choices_folder

LENGTHS = (300, 200, 100, 60, 30, 10)
TINY = ("cluster=local_2x2", "model=tiny", "tokens_per_gpu=128", "steps=3", "systems=usp,ring")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("advise") / "lengths.txt"
    found.write_text("".join(f"{length}\n" for length in LENGTHS))
    return str(found)


@pytest.fixture(scope="module", autouse=True)
def small_samples() -> Iterator[None]:
    """Settings are chosen by fewer batches than a user's are: that takes most of the time, and is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "DRAWN", 100)
        patch.setattr(study, "PLAYED", 4)
        yield


@pytest.fixture(scope="module")
def answer(path: str) -> dict[str, Any]:
    """The whole answer for Megatron-LM, as --json prints it."""
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(map(str, words))))
        assert advise([path, *TINY, "framework=megatron", "sharding.window=1", "--json"]) == 0
    found: dict[str, Any] = json.loads(said[-1])
    return found


def test_the_fastest_is_fastest_and_its_gain_is_over_the_baseline_on_the_same_batches(answer: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in answer["systems"]}
    assert set(rows) == {"static_best", "usp", "ring"}
    assert answer["fastest"] == min(rows, key=lambda name: rows[name]["step_seconds"])
    assert answer["simulated"] is True
    assert answer["complete"] is True
    for row in rows.values():
        assert row["speedup"] == pytest.approx(rows["static_best"]["step_seconds"] / row["step_seconds"])
        assert row["tokens_per_second"] == pytest.approx(128 * 4 / row["step_seconds"])
        assert row["tokens_per_second_low"] < row["tokens_per_second"] < row["tokens_per_second_high"]
    slow = rows["ring"]
    assert slow["speedup_low"] < slow["speedup"] < slow["speedup_high"]
    assert 0 < slow["bound_ratio"] < 1


def test_figures_are_those_of_a_run_with_the_same_settings(path: str, answer: dict[str, Any]) -> None:
    from zbench.api.functions import plan, simulate
    from zbench.workloads.lengths_file import LengthsFile

    workload = LengthsFile(seed=0, tokens=512, path=path, context_limit=300)
    seconds = [
        simulate(plan(workload.batch(number).lengths, cluster="local_2x2", model="tiny", system="ring")).seconds
        for number in range(3)
    ]
    row = next(row for row in answer["systems"] if row["name"] == "ring")
    assert row["step_seconds"] == pytest.approx(sum(seconds) / 3, rel=1e-12)


def test_every_world_has_a_fastest_and_ranges_are_over_them(answer: dict[str, Any]) -> None:
    worlds = {one["world"]: one for one in answer["worlds"]}
    assert "latency_3" in worlds
    assert "nominal" not in worlds
    assert all(one["fastest"] and one["deployed"] for one in worlds.values())
    for row in answer["deploy"]["options"]:
        assert row["speedup_least"] <= row["speedup"] <= row["speedup_greatest"]
        assert {row["least_in"], row["greatest_in"]} <= {"nominal", *worlds}
        assert row["tokens_per_second_least"] <= row["tokens_per_second"] <= row["tokens_per_second_greatest"]
    told = "\n".join(answer_lines(answer))
    names = {one["world"] for one in worlds.values() if one["fastest"] != answer["fastest"]}
    assert all(name in told for name in names)


def test_the_advised_option_is_the_fastest_and_its_flags_are_what_was_played(answer: dict[str, Any]) -> None:
    found = answer["deploy"]
    options = {row["name"]: row for row in found["options"]}
    advised = options[found["advised"]]
    assert advised["step_seconds"] == min(row["step_seconds"] for row in options.values())
    assert f"--max-seqlen-per-dp-cp-rank {advised['keys']['pack_tokens']}" in advised["flags"]
    tensor = advised["model"].get("tensor_parallel", 1)
    assert f"--tensor-model-parallel-size {tensor}" in advised["flags"]
    assert "d48bd6be" in found["version"]
    fastest = next(row for row in answer["systems"] if row["name"] == answer["fastest"])
    assert found["share_of_fastest"] == pytest.approx(fastest["step_seconds"] / advised["step_seconds"])


def test_settings_that_no_flags_say_are_named_below_them(path: str, answer: dict[str, Any]) -> None:
    said = "All of this is played with sharding.window=1, which none of these flags sets: add what your framework has"
    assert all(option["notes"][-1].startswith(said) for option in answer["deploy"]["options"])
    assert said in "\n".join(answer_lines(answer))
    words = ("overlap=none", "sharding=zero1", "recompute=full", "parallel.tensor_parallel=2", "experts=sequential")
    assert read_question(path, (*TINY, *words)).without_flags == []
    other = ("overlap=sliced", "parallel=tp2", "sharding=fsdp2", "mask=full")
    assert read_question(path, (*TINY, *other)).without_flags == [other[0], *other[2:]]
    assert read_question(path, (*TINY, "sync=co2", "sync.steps=1")).without_flags == ["sync=co2", "sync.steps=1"]


def test_contract_and_scheduler_costs_make_up_the_whole_gap(answer: dict[str, Any]) -> None:
    found = answer["contract"]
    assert found is not None
    assert found["contract"] == "aligned_pow2_rings"
    options = {row["name"]: row for row in answer["deploy"]["options"]}
    whole = found["any_plan"]["tokens_per_second"] / options[found["option"]]["tokens_per_second"]
    assert found["contract_costs"] * found["scheduler_costs"] == pytest.approx(whole)
    assert found["inside"]["tokens_per_second"] <= found["bound_tokens_per_second"]
    assert found["default_costs"] >= 1 - 1e-9


def test_the_planner_inside_was_played_within_the_limit_that_its_flags_have(answer: dict[str, Any]) -> None:
    found = answer["contract"]
    limit = found["keys"]["max_tokens"]
    assert found["keys"] == found["inside"]["keys"]
    assert f"--max-seqlen-per-dp-cp-rank {limit}" in found["flags"]
    tensor = found["inside"]["model"].get("tensor_parallel", 1)
    assert f"--tensor-model-parallel-size {tensor}" in found["flags"]
    told = list(answer_lines(answer))
    assert f"  The planner inside was played with tensor parallelism {tensor}; in place of the flags" in "\n".join(told)
    assert told.count(f"    --max-seqlen-per-dp-cp-rank {limit}") == 1


def test_reasons_name_both_and_their_seconds(answer: dict[str, Any]) -> None:
    assert answer["why"]
    for sentence in answer["why"]:
        assert sentence.startswith(f"With {answer['fastest']} a step takes ")
        assert "It saves " in sentence


def test_what_an_iteration_of_rollouts_goes_to_is_told(answer: dict[str, Any]) -> None:
    stages = {"reshard": 0.5, "generate": 60.0, "score": 3.0, "train": 8.0}
    rows = [{**row, "stages": stages, "generation_imbalance": 1.9} for row in answer["systems"]]
    told = list(answer_lines({**answer, "systems": rows}))
    at = next(number for number, line in enumerate(told) if line.startswith("  Of an iteration, stages by themselves:"))
    assert "generate 60 s, train 8 s, score 3 s, reshard 0.5 s." in told[at]
    assert told[at + 1] == "  The slowest replica generates 1.90 times as long as the mean."
    assert {(row["stages"], row["generation_imbalance"]) for row in answer["systems"]} == {(None, None)}


def test_the_answer_reads_as_text_and_as_a_section_of_a_page(answer: dict[str, Any], tmp_path: Path) -> None:
    told = list(answer_lines(answer))
    assert told[0].startswith("SIMULATED: tiny on local_2x2, 4 GPUs")
    assert any(line.strip().startswith("--context-parallel-size") for line in told)
    file = tmp_path / "advice.json"
    file.write_text(json.dumps(answer, indent=1))
    assert is_advice(str(file))
    page = advice_told(str(file))
    assert [len(row) for row in page["rows"]] == [len(COLUMNS)] * 5
    assert page["lines"] == [line.strip() for line in told]
    for broken, told in (
        (
            {"format": "zbench-advice/1", "question": {}},
            "is no whole answer of zbench advise --json: it has no 'deploy'",
        ),
        (
            answer | {"format": "zbench-advice/2"},
            "has the format 'zbench-advice/2'; this zbench reads 'zbench-advice/1'",
        ),
        (answer | {"worlds": 5}, "is no whole answer of zbench advise --json: one of its values is of another type"),
    ):
        file.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=re.escape(told)):
            advice_told(str(file))
    assert not is_advice(str(tmp_path / "none.json"))


def _at_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def _at_ctrl_c_in_compiled_code(*_: object) -> None:
    raise SystemError("returned a result with an exception set") from KeyboardInterrupt()


@pytest.mark.parametrize("stopped", [_at_ctrl_c, _at_ctrl_c_in_compiled_code])
def test_what_is_finished_is_told_when_somebody_stops_it(
    stopped: Callable[..., None], path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finding, "play_world", stopped)
    with pytest.raises((KeyboardInterrupt, SystemError)) as raised:
        advise([path, *TINY[:3], "steps=1", "systems=ring"])
    assert stop_in(raised.value)
    told = capsys.readouterr().out
    assert "INCOMPLETE: it was stopped" in told
    assert "simulated tokens/s; 1" not in told  # no interval of one batch, and none is made up
    assert "Fastest of static_best, ring: static_best" in told
    assert "zbench plan" in told
    assert "system=mesh system.method=" in told


def test_what_nothing_has_room_for_is_one_sentence(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = "cluster.device.memory_bytes='1 MB'"
    assert run_sub_command("advise", [path, *TINY[:3], "steps=1", "systems=ring", small]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "LENGTHS has 300 tokens at most, and no system has room for that on 4 GPUs; static_best: " in said


def test_who_stops_it_at_once_has_no_answer(path: str) -> None:
    advice = Advice(question_values(read_question(path, TINY)))
    assert list(answer_lines(advice.values()))[-1] == "No system has been played to its end."


def test_a_choice_is_of_what_the_file_holds_and_not_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "lengths.txt"
    for count, text in enumerate(("30\n20\n", "30\n10\n", "30\n10\n"), 1):
        file.write_text(text)
        settle(read_question(str(file), TINY), "slime_schedule", lambda _: None)
        assert len(list(choices_folder().glob("*.json"))) == min(count, 2)


def test_a_system_that_cannot_be_played_says_why(path: str) -> None:
    question = read_question(path, TINY)
    found = play(question, PinnedSystem("mesh", "mesh", {"degree": 3}), lambda _: None)
    assert found.problem.startswith("system.degree is 3; it takes a divisor of the 4 ranks")
    assert not found.fits


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["framework=megatro"], "framework is 'megatro'; it takes one of"),
        (["systems=rign"], "systems is 'rign'; it takes one of"),
        (["systems=static_best"], "systems is 'static_best'; it takes one of"),
        (["clustr=a800_4x8"], "'clustr=a800_4x8' is no setting of zbench advise"),
        (["system=ring"], "'system=ring' is no setting of zbench advise"),
        (["workload.path=x.txt"], "'workload.path=x.txt' is no setting of zbench advise"),
        (["cluster=nowhere"], "cluster is 'nowhere'"),
        (["cluster.nodes=2"], "cluster.nodes is not a key of cluster"),
        (["steps=0"], "steps is 0"),
        (["tokens_per_gpu=4", "cluster=local_2x2"], "LENGTHS has a sequence of 300 tokens"),
    ],
)
def test_bad_settings_are_one_sentence(
    words: list[str], told: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_sub_command("advise", [path, *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert told in captured.err


@pytest.mark.parametrize(
    ("content", "told"), [("", "holds no lengths"), ("12\n-3\n", "line 2"), ("12\nx\n", "line 2"), (None, "LENGTHS is")]
)
def test_bad_files_are_one_sentence(
    content: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lengths.txt"
    if content is not None:
        file.write_text(content)
    assert run_sub_command("advise", [str(file), "cluster=local_2x2", "model=tiny"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert told in said
    assert "workload.path" not in said
