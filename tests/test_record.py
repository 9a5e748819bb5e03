"""Records are read back; what is broken in them is named, and the rest is read."""

import json
from pathlib import Path

import pytest
from test_metrics import TINY, step

from zbench.record import Line, read
from zbench.writer import Writer


def start_line(run: str = "r1", **changes: object) -> Line:
    facts = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__}
    return {"kind": "start", "run": run, "time": "2026-01-01T00:00:00", "config": {"steps": 2}, "baseline": None,
            "fingerprint": {"sources": "s"}, "facts": facts, **changes}  # fmt: skip


def step_line(run: str = "r1", number: int = 0, **changes: object) -> Line:
    return {"kind": "step", "run": run, **step(number, **changes)}


def end_line(run: str = "r1", status: str = "finished") -> Line:
    return {"kind": "end", "run": run, "status": status, "message": ""}


def write(path: Path, *lines: Line) -> None:
    writer = Writer.open(str(path))
    for line in lines:
        writer.append(line)
    writer.close()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, start_line(), step_line(number=0), step_line(number=1), end_line())
    write(path, start_line("r2"), step_line("r2"))
    (first, second), problems = read(str(path))
    assert problems == []
    assert (first.status, [line["step"] for line in first.steps], first.line) == ("finished", [0, 1], 1)
    assert (second.status, second.line, second.path) == ("interrupted", 5, str(path))


def test_a_torn_last_line_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, start_line(), step_line(number=0))
    path.write_bytes(path.read_bytes() + b'{"kind":"step","run":"r1","step":1,"tok')
    write(path, start_line("r2"), step_line("r2"), end_line("r2"))
    runs, problems = read(str(path))
    assert [(len(run.steps), run.status) for run in runs] == [(1, "interrupted"), (1, "finished")]
    assert problems == [f"{path}:3: not a line of JSON (cut off); the line is skipped"]


def test_no_part_of_a_line_reads_as_a_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, start_line())
    start, whole = path.read_bytes(), json.dumps(step_line()).encode()
    for cut in range(1, len(whole)):
        path.write_bytes(start + whole[:cut])
        runs, problems = read(str(path))
        assert (len(runs[0].steps), len(problems)) == (0, 1)


def test_broken_lines_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    good = [json.dumps(line) for line in (start_line(), step_line(), end_line())]
    broken = [
        ("{nonsense}", "not a line of JSON"),
        ("[1, 2]", "not a line of a record"),
        (json.dumps({"kind": "stop"}), "not a line of a record"),
        (json.dumps(step_line(seconds=0)), "a step line whose seconds is not a number above 0"),
        (json.dumps(step_line(tokens="many")), "a step line whose tokens is not a number above 0"),
        (json.dumps(step_line(peak_bytes=[1, None])), "a step line whose peak_bytes is not a list of numbers"),
        (json.dumps(step_line(seconds=float("nan"))), "NaN is not JSON"),
        (json.dumps(step_line()).replace("5000", "1e999"), "sum_squared is not a number above 0"),
        (json.dumps(step_line("r9")), "a line of run r9, whose start is not in this file"),
        (json.dumps(start_line()), "a second start of run r1"),
        ("[" * 100_000, "not a line of JSON"),
    ]
    path.write_text("\n".join([*good[:2], "", *(text for text, _ in broken), good[2]]) + "\n")
    (run,), problems = read(str(path))
    assert (len(run.steps), run.status) == (1, "finished")
    assert len(problems) == len(broken)
    for number, (problem, (_, reason)) in enumerate(zip(problems, broken, strict=True), 4):
        assert problem.startswith(f"{path}:{number}: ")
        assert reason in problem


NO_NAMES = [
    "", "..", ".", "../../x", "/etc/passwd", "a/b", "a\\b", "a b", "-rf", ".hidden", "a\0b", "a\nb", "a\n", "\x1b[2J",
    "é", "x" * 101, "a:b", "~", "$HOME", 7, None, ["r1"], {"r1": 1},
]  # fmt: skip


@pytest.mark.parametrize("run", NO_NAMES, ids=repr)
def test_a_run_s_id_is_a_name_and_never_a_path(run: object, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = [{**line, "run": run} for line in (start_line(), step_line(), end_line())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs, problems = read(str(path))
    assert runs == []
    assert [problem.partition(" a ")[2].partition(" line ")[0] for problem in problems] == ["start", "step", "end"]
    assert all("run is not a name of letters, digits, dots and dashes" in problem for problem in problems)


@pytest.mark.parametrize("run", ["20261122-014715-c0ac698e", "r1", "0", "A_b.c-d", "x" * 100])
def test_names_are_names(run: str, tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", start_line(run))
    assert read(str(tmp_path / "r.jsonl"))[0][0].start["run"] == run


def test_names_of_older_records_are_read_as_today_s(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    ring = {"_target_": "systems.ring.Ring"}
    write(path, start_line(config={"system": ring, "steps": 2}, baseline={"name": "ring", "system": ring}))
    seen: list[Line] = []
    ((run,), _) = read(str(path), lambda start: not seen.append(start))  # type: ignore[func-returns-value]
    assert run.start["config"]["system"] == run.start["baseline"]["system"] == {"_target_": "zbench.systems.ring.Ring"}
    assert seen == [run.start]


def test_a_bottomless_configuration_is_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    deep = '{"a":' * 500 + "1" + "}" * 500
    path.write_text(json.dumps(start_line()).replace('{"steps": 2}', deep) + "\n")
    runs, problems = read(str(path))
    assert (runs, len(problems)) == ([], 1)
    assert "levels deep; the line is skipped" in problems[0]


def test_undecodable_bytes_are_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"kind":"start","run":"\xff\xfe"}\n\x00\x00\n')
    assert len(read(str(path))[1]) == 2


def test_unwanted_runs_are_passed_over_unread(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, start_line("no"), start_line("yes"))
    path.write_bytes(path.read_bytes() + b'{"kind":"step","run":"no",broken}\n')
    write(path, step_line("no"), step_line("yes"), end_line("no"))
    runs, problems = read(str(path), lambda start: start["run"] == "yes")
    assert [(run.start["run"], len(run.steps)) for run in runs] == [("yes", 1)]
    assert problems == []


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read: No such file"):
        read(str(tmp_path / "missing.jsonl"))
