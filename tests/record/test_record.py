"""Records are read back; what is broken in them is named, and the rest is read."""

import gzip
import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.record.test_metrics import TINY, step
from zbench.record.fields import FIELDS
from zbench.record.flops import Facts
from zbench.record.record import Line, read
from zbench.record.rows import rows
from zbench.record.writer import RecordWriter
from zbench.report.overview import overview, step_overview
from zbench.track.names import of_run, tracked
from zbench.track.names import step_figures as tracked_step

PLACE = {"simulated": True, "cluster": "c", "device": "d", "num_nodes": 1, "gpus_per_node": 2, "nics_per_node": 2}


def start_line(run: str = "r1", **changes: object) -> Line:
    facts = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__} | PLACE
    return {
        "kind": "start",
        "run": run,
        "time": "2026-01-01T00:00:00",
        "config": {"steps": 2},
        "baseline": None,
        "fingerprint": {"sources": "s"},
        "facts": facts,
        **changes,
    }


def step_line(run: str = "r1", number: int = 0, **changes: object) -> Line:
    return {"kind": "step", "run": run, **step(number, **changes)}


def end_line(run: str = "r1", status: str = "finished") -> Line:
    return {"kind": "end", "run": run, "status": status, "message": ""}


# Of a run whose last step left something to update.
ENDED = {
    **end_line(),
    "first_step": {"seconds": 1.0},
    "last_update": {"seconds": 0.5, "bytes": {"host": 8}},
    "window": {"step": 0, "fits": 2},
}


def write(path: Path, *lines: Line) -> None:
    writer = RecordWriter.open(str(path))
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


def test_a_compressed_record_is_read_as_any_other(tmp_path: Path) -> None:
    path, packed = tmp_path / "r.jsonl", tmp_path / "r.jsonl.gz"
    write(path, start_line(), step_line(number=0), end_line())
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (run,), problems = read(str(packed))
    assert problems == []
    assert run.path == str(packed)
    assert (run.start, run.steps, run.end) == (read(str(path))[0][0].start, [step_line(number=0)], end_line())
    with pytest.raises(
        ValueError, match=r"out is '.*r\.jsonl\.gz'; that file is not a record of runs, so nothing is added"
    ):
        RecordWriter.open(str(packed))


@pytest.mark.parametrize("torn", [lambda data: data[:-9], lambda data: data[:20] + b"\xff" * 8 + data[28:]])
def test_a_damaged_compressed_record_is_one_sentence(torn: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(torn(gzip.compress(json.dumps(start_line()).encode() + b"\n")))
    with pytest.raises(ValueError, match=r"r\.jsonl\.gz' cannot be read: \S+"):
        read(str(path))


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


def test_lines_that_are_none_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    good = [json.dumps(line) for line in (start_line(), step_line(), end_line())]
    broken = [
        ("{nonsense}", "not a line of JSON"),
        ("[1, 2]", "not a line of a record (it has no kind; it takes start, about, step, end)"),
        (json.dumps({"kind": "stop"}), "not a line of a record (kind is 'stop'; it takes start, about, step, end)"),
        (json.dumps(step_line(seconds=float("nan"))), "NaN is not JSON"),
        (json.dumps({**step_line(), "run": 7}), "run of a step line is 7; it takes a name"),
        ("[" * 100_000, "not a line of JSON"),
        ('{"kind": "step", "run": "r1", "step": ' + "9" * 5000 + "}", "not a line of JSON"),
    ]
    path.write_text("\n".join([*good[:2], "", *(text for text, _ in broken), good[2]]) + "\n")
    (run,), problems = read(str(path))
    assert (len(run.steps), run.status) == (1, "finished")
    assert len(problems) == len(broken)
    for number, (problem, (_, reason)) in enumerate(zip(problems, broken, strict=True), 4):
        assert problem.startswith(f"{path}:{number}: ")
        assert reason in problem


NO_NAMES = [
    "",
    "..",
    ".",
    "../../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a b",
    "-rf",
    ".hidden",
    "a\0b",
    "a\nb",
    "a\n",
    "\x1b[2J",
    "é",
    "x" * 101,
    "a:b",
    "~",
    "$HOME",
    7,
    None,
    ["r1"],
    {"r1": 1},
]


@pytest.mark.parametrize("run", NO_NAMES, ids=repr)
def test_a_run_s_id_is_a_name_and_never_a_path(run: object, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = [{**line, "run": run} for line in (start_line(), step_line(), end_line())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs, problems = read(str(path))
    assert runs == []
    assert [problem.partition(" a ")[2].partition(" line ")[0] for problem in problems] == ["start", "step", "end"]
    assert all("it takes a name of at most 100 letters, digits, _, . and -" in problem for problem in problems)


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


def test_iterations_of_older_records_are_read_as_today_s(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    then = {"responses": 6, "given_up": 2, "off_policy": 3}
    kept = {name: value for name, value in ITERATION.items() if not name.endswith("_tokens")}
    write(path, start_line(), step_line(rollouts={**kept, **then}), end_line())
    ((run,), problems) = read(str(path))
    assert (problems, run.steps[0]["rollouts"]) == ([], ITERATION)


def test_a_bottomless_configuration_is_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    deep = '{"a":' * 500 + "1" + "}" * 500
    path.write_text(json.dumps(start_line()).replace('{"steps": 2}', deep) + "\n")
    runs, problems = read(str(path))
    assert (runs, len(problems)) == ([], 1)
    assert "levels deep; the line is skipped" in problems[0]


def changed(line: Line, name: str, value: object) -> Line:
    """The line with the field of a dotted name at `value`; ... for without it."""
    first, _, rest = name.partition(".")
    if rest:
        return {**line, first: changed(line[first], rest, value)}
    return {key: one for key, one in {**line, first: value}.items() if one is not ...}


FAULTS = [
    ("step", "seconds", 0, "seconds is 0; it takes a number above 0"),
    ("step", "tokens", "many", "tokens is 'many'; it takes a number above 0"),
    ("step", "tokens", 10**300, "tokens is 1000000000"),
    ("step", "tokens", True, "tokens is True; it takes a number above 0"),
    ("step", "tokens", ..., "tokens is missing; it takes a number above 0"),
    ("step", "sum_squared", -1, "sum_squared is -1"),
    ("step", "step", 0.5, "step is 0.5; it takes a whole number of at least 0"),
    ("step", "step", 0, "step is 0, which the run has already, with other values"),
    ("step", "peak_bytes", [1, None], "peak_bytes[1] is None; it takes a number of at least 0"),
    ("step", "peak_bytes", [], "peak_bytes is []; it takes a list that is not empty"),
    ("step", "linear_seconds", [1], "linear_seconds has 1 elements; it takes as many as attention_seconds, 2"),
    ("step", "loss", "nan", "loss is 'nan'; it takes a number"),
    ("step", "phases", "late", "phases is 'late'; it takes an object"),
    ("step", "phases", None, "phases is None; it takes an object"),
    ("step", "phases", {"late": [1]}, "phases['late'] is [1]; it takes a number"),
    ("step", "valid", 1, "valid is 1; it takes true or false"),
    ("step", "seconds_for", {"a": [1, 1]}, "seconds_for is {'a': [1, 1]}; it takes an object of lists, by names of"),
    ("step", "seconds_for", {"end": [1, -1]}, "seconds_for['end'][1] is -1; it takes a number of at least 0"),
    ("step", "seconds_for", {"end": [1]}, "seconds_for['end'] has 1 elements; it takes 2"),
    ("step", "nic_series", {"interval": 1}, "nic_series is {'interval': 1}; it takes {} or an object with interval"),
    ("step", "rollouts", {"seconds": {}}, "rollouts is {'seconds': {}}; it takes {} or an object with seconds, tokens"),
    ("step", "trace", {"file": "t"}, "trace is {'file': 't'}; it takes an object with file, digest"),
    ("start", "facts", {}, "facts.simulated is missing; it takes true or false"),
    ("start", "facts.num_ranks", 0, "facts.num_ranks is 0; it takes a number of at least 1"),
    ("start", "facts", None, "facts is None; it takes an object"),
    ("start", "config.choices", [1], "config.choices is [1]; it takes an object"),
    ("start", "config.steps", "two", "config.steps is 'two'; it takes a whole number of at least 1"),
    ("start", "fingerprint", 5, "fingerprint is 5; it takes an object"),
    ("start", "time", 0, "time is 0; it takes text"),
    ("end", "status", "done", "status is 'done'; it takes finished, interrupted or failed"),
    ("end", "last_update", {"bytes": {}}, "last_update is {'bytes': {}}; it takes an object with seconds"),
    ("end", "window", {"fits": 2}, "window is {'fits': 2}; it takes an object with step, fits"),
    ("end", "message", [], "message is []; it takes text"),
]


@pytest.mark.parametrize(("kind", "name", "value", "told"), FAULTS, ids=lambda one: one if isinstance(one, str) else "")
def test_a_field_that_cannot_be_costs_its_own_run(
    kind: str, name: str, value: object, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    lines = {"start": start_line("bad"), "step": step_line("bad", 1), "end": end_line("bad")}
    lines[kind] = changed(lines[kind], name, value)
    bad = [lines["start"], step_line("bad"), lines["step"], lines["end"]]
    good = [start_line("good"), step_line("good"), end_line("good")]
    path.write_text("".join(json.dumps(line) + "\n" for line in (*bad, *good)))
    (run,), (problem,) = read(str(path))
    assert (run.start["run"], run.steps, run.status) == ("good", [step_line("good")], "finished")
    number = {"start": 1, "step": 3, "end": 4}[kind]
    assert problem.startswith(f"{path}:{number}: {kind} line: {told}")
    assert problem.endswith("; run bad is left out")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([step_line("bad")], "the run has no start line before it in this file"),
        ([start_line("bad"), start_line("bad", time="later")], "run is 'bad', which started in line 1"),
        ([start_line("bad"), step_line("bad", 1), step_line("bad", 0)], "step is 0, after step 1"),
        ([start_line("bad"), end_line("bad"), step_line("bad")], "step is 0, after the run's end"),
        ([start_line("bad"), end_line("bad"), end_line("bad", "failed")], "the run has another end line"),
    ],
    ids=["no start", "two starts", "order", "after the end", "two ends"],
)
def test_lines_that_do_not_go_together_cost_their_run(lines: list[Line], told: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, *lines, start_line("good"), step_line("good"))
    (run,), (problem,) = read(str(path))
    assert run.start["run"] == "good"
    assert told in problem


def test_a_record_twice_in_one_file_counts_once_and_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, start_line(), step_line(), step_line(number=1), end_line(), start_line("r2"), step_line("r2"))
    once, _ = read(str(path))
    path.write_bytes(2 * path.read_bytes())
    twice, (told,) = read(str(path))
    assert twice == once
    assert told == f"{path}:7: lines of run r1 and 1 more are here a second time; they count once"


def test_a_copy_goes_on_where_the_first_was_cut(tmp_path: Path) -> None:
    """The record of a run under way, and the whole one behind it."""
    path = tmp_path / "r.jsonl"
    lines = [start_line(), step_line(), step_line(number=1), end_line()]
    write(path, *lines[:2], *lines)
    (run,), (told,) = read(str(path))
    assert ([step["step"] for step in run.steps], run.status) == ([0, 1], "finished")
    assert "they count once" in told


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_whatever_a_field_holds_a_run_is_whole_or_left_out(kind: str, tmp_path: Path) -> None:
    """Of what is read a row, a browser's table and a tracker's numbers can be made, and all of them are finite."""
    path = tmp_path / "r.jsonl"
    for name, value in product(FIELDS[kind], VALUES):
        lines = {"start": start_line(), "about": {"kind": "about", "run": "r1"}, "step": SAMPLED, "end": ENDED}
        lines[kind] = changed(lines[kind], name, value)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
        runs, problems = read(str(path))
        assert runs or problems, (name, value)
        found = rows(runs)
        json.dumps([found, overview(runs, "zbench")], allow_nan=False)
        for run, row in zip(runs, found, strict=True):
            facts = Facts.of(run.start["facts"])
            json.dumps([step_overview(facts, step) for step in run.steps], allow_nan=False)
            assert tracked(run.start).name
            numbers = [
                *of_run(row).values(),
                *(one for step in run.steps for one in tracked_step(facts, step).values()),
            ]
            assert all(map(math.isfinite, numbers)), (name, value)


VALUES = (
    ...,
    None,
    True,
    "nan",
    "",
    [],
    [None],
    [[]],
    [1],
    [-1.0, 2],
    [1e300, 1],
    {},
    {"a": None},
    {"a": 1},
    0,
    1,
    2.5,
    -1,
    1e-320,
    1e300,
    10**400,
)
SERIES = {"interval": 0.5, "tx": [[1, 2], [3, 4]], "rx": [[1, 2], [3, 4]]}
ITERATION = {
    "seconds": {"generate": 3.0, "train": 1.0},
    "tokens": {"generate": 6, "train": 8},
    "waited_seconds": 3.0,
    "generation_imbalance": 1.5,
    "response_tokens": 6,
    "given_up_tokens": 2,
    "off_policy_tokens": 3,
    "policy_age": 1,
    "layouts": {"prefill": 1.0, "decode": 1.5, "change": 0.5, "changes": 1},
}
SAMPLED = step_line(
    rollouts=ITERATION,
    phases={"optimizer": 0.1, "late": 0.1},
    loss=5.0,
    valid=True,
    nic_series=SERIES,
    exposed_nic_seconds=[0.1, 0.0],
    plan_notes=[{"a": 1}],
    octaves={"tokens": [1]},
    trace={"file": "f", "digest": "d"},
    checks={"exact": 1e-13},
    expert_chunks={"forward": 2, "backward": 4, "gradients": {"inside": 1, "beside": 2, "count": 8, "apart": True}},
    exchange_slices={"slices": 8},
    expert_rows={"dropped": 0.125, "padded": 0.25, "kept": 0.875},
    recompute={"level": "full", "layers": [1], "of_layers": 2},
    host_bytes=[1],
    store_bytes=[1],
)


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
