"""The report's data: what records say, steps made again, and what a page leaves out and says so."""

import json
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.record.test_record import step_line
from zbench import __main__ as zbench_main
from zbench.console.command import ran
from zbench.console.sheet import Sheet
from zbench.critical import __main__ as critical
from zbench.record.flops import Facts
from zbench.record.iterations import STAGES
from zbench.record.record import Line, Run, read
from zbench.record.rows import rows
from zbench.record.words import PARTS
from zbench.report import __main__ as report
from zbench.report import inside
from zbench.report.overview import SHARES, overview, rounded, shares_of, step_overview
from zbench.report.page import encoded, page
from zbench.run.replay import Replay

SMALL = [
    "tracker=none",
    "baseline=ring",
    "cluster=a800_2x8",
    "model=llama_3b",
    "model.num_layers=2",
    "tokens_per_gpu=1024",
    "steps=2",
]


def made(folder: Path, *settings: str) -> str:
    """A record in `folder` of a small run."""
    path = folder / "r.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["zbench", *SMALL, f"out={path}", *settings])
        assert zbench_main.main() == 0
    return str(path)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ring and zeppelin, then hydraulis, whose plans have pipelines."""
    folder = tmp_path_factory.mktemp("report")
    made(folder, "system=zeppelin", "workload=prolong64k")
    return made(folder, "system=hydraulis", "workload=prolong64k", "baseline=null")


@pytest.fixture
def runs(record: str) -> dict[str, Run]:
    return {run.start["config"]["choices"]["system"]: run for run in read(record)[0]}


# -- what records say -----------------------------------------------------------------------------
def test_a_ranks_shares_add_up_to_the_step(runs: dict[str, Run]) -> None:
    for run in runs.values():
        for step in run.steps:
            shares = shares_of(step)
            assert shares.shape == (len(SHARES), 16)
            assert (shares >= 0).all()
            assert shares.sum(axis=0) == pytest.approx(step["seconds"])


def part(step: Line, name: str) -> list[float]:
    found: list[float] = shares_of(step)[SHARES.index(name)].tolist()
    return found


def test_exposed_communication_is_told_apart_by_link_where_the_record_does() -> None:
    step = step_line(
        seconds=10.0,
        attention_seconds=[1.0, 1.0],
        linear_seconds=[2.0, 2.0],
        exposed_seconds=[5.0, 3.0],
        phases={"gradients": 1.0, "optimizer": 0.5},
    )
    assert part(step, "communication, not hidden") == [4.0, 2.0]
    assert part(step, "parameters and gradients, not hidden") == [1.0, 1.0]
    assert part(step, "waiting") == [1.5, 3.5]
    step["exposed_nic_seconds"] = [3.0, 0.0]
    assert part(step, "communication across nodes, not hidden") == [3.0, 0.0]
    assert part(step, "communication inside the node, not hidden") == [1.0, 2.0]
    assert part(step, "communication, not hidden") == [0.0, 0.0]
    step["exposed_seconds"] = [50.0, 3.0]  # layers that overlap
    assert part(step, "communication inside the node, not hidden")[0] == 2.5
    assert part(step, "waiting")[0] == 0.0


def test_the_baseline_and_who_else_had_the_same_batches(runs: dict[str, Run]) -> None:
    ring, zeppelin, hydraulis = overview(list(runs.values()), "zbench")
    assert (ring["speedup"], zeppelin["baseline"], hydraulis["baseline"]) == (1.0, "ring", None)
    assert ring["same"] == zeppelin["same"] == hydraulis["same"]
    assert zeppelin["numbers"] == [0, 1]
    assert zeppelin["series"]["step_seconds"] == rounded([step["seconds"] for step in runs["zeppelin"].steps])
    other = Run({**runs["ring"].start, "config": {**runs["ring"].start["config"], "seed": 1}}, runs["ring"].steps)
    assert overview([other], "zbench")[0]["same"] != ring["same"]


def test_measured_curves_and_steps_that_do_not_count(runs: dict[str, Run]) -> None:
    run = runs["ring"]
    facts = Facts.of(run.start["facts"])
    series = {"interval": 1e-3, "tx": [[25_000_000, 0]], "rx": [[0, 12_500_000]]}  # NICs of 25 GB/s: 25 MB an interval
    told = step_overview(facts, {**run.steps[0], "nic_series": series, "valid": False})
    assert told["curves"] == {"interval": 1e-3, "lines": {"NIC 0 sends": [1.0, 0.0], "NIC 0 receives": [0.0, 0.5]}}
    assert told["valid"] is False
    assert step_overview(facts, run.steps[0])["curves"] is None
    late = {**run.steps[1], "valid": False, "linear_seconds": [9.0] * 16}
    (whole,) = overview([Run(run.start, run.steps[:1])], "zbench")
    (left,) = overview([Run(run.start, [run.steps[0], late])], "zbench")
    assert left["shares"] == whole["shares"]
    assert left["series"]["mfu"][1] is None


def test_rounded() -> None:
    assert rounded([1.23456789, None, 7, np.float64(2e-9), [3]]) == [1.2346, None, 7, 2e-9, [3]]


# -- steps made again -----------------------------------------------------------------------------
@pytest.mark.parametrize("system", ["ring", "zeppelin", "hydraulis"])
def test_a_timeline_holds_what_the_record_sums(system: str, runs: dict[str, Run]) -> None:
    """The model has as many layers as are drawn: attends sum to the attention seconds, NICs' events to their bytes, and
    the last one ends with the step."""
    run = runs[system]
    told = report.look_inside(run, run.steps[0], {})
    assert not {"problem", "undrawn", "again_seconds"} & set(told)
    of = told["timeline"]
    assert (of["layers"], of["of_layers"]) == (inside.LAYERS, 2)
    attending, sent = np.zeros(16), np.zeros(8)
    for track, name, length, size in zip(of["track"], of["name"], of["length"], of["bytes"], strict=True):
        title = of["tracks"][track].split()
        if of["names"][name].startswith("attend"):
            assert title[0] == "GPU"
            attending[int(title[1])] += length * 1e-6
        elif title[0] == "NIC" and title[2] == "sends":
            sent[int(title[1])] += size
    step = run.steps[0]
    assert attending.reshape(len(step["attention_seconds"]), -1).mean(axis=1) == pytest.approx(
        step["attention_seconds"], abs=2e-6
    )
    assert sent.tolist() == step["nic_tx_bytes"]
    assert {
        "attend forward",
        "matmul queries, forward",
        "optimizer query weights",
        "matmul gradients of head weights, backward",
    } <= set(of["names"])
    assert max(np.add(of["begin"], of["length"])) == pytest.approx(1e6 * step["seconds"], rel=1e-6)


def of_attention(path: str, run: int, **memory: object) -> None:
    """Makes a record's run one of executor=simulated_attention, as there were such runs. memory: keys of that group."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    start = [line for line in lines if line["kind"] == "start"][run]
    start["config"]["executor"] = {"_target_": "zbench.simulator.estimate.step.StepEstimate"}
    start["config"]["choices"]["executor"] = "simulated_attention"
    start["config"]["memory"] |= memory
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_runs_of_attention_alone_are_drawn_as_whole_steps_where_there_are_some(tmp_path: Path) -> None:
    settings = ["system=ring", "baseline=null", "steps=1"]
    of_attention(made(tmp_path, *settings), 0)
    hosts = ["memory.offload=optimizer", "cluster=h100_4x8", "cluster.num_nodes=2"]
    path = made(tmp_path, *settings, *hosts, "sharding=zero1")
    of_attention(path, 1, parameter_layers=2)  # which no whole step has with ZeRO-1
    some, none = (report.look_inside(run, run.steps[0], {}) for run in read(path)[0])
    assert "attend forward" in some["timeline"]["names"]
    assert "again_seconds" not in some  # another clock told its seconds
    assert "cannot be made again from its record: memory.parameter_layers is 2 with" in none["problem"]
    steps, told = report.looked_into(report.steps_to_show(read(path)[0], "first"))
    assert (len(steps), told) == (2, [])


def test_a_whole_step_s_critical_path_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same words; what would take minutes to play has none, nor has a step of another clock."""
    path, out = made(tmp_path, "system=ring", "workload=prolong64k", "baseline=null", "steps=1"), tmp_path / "path.md"
    (run,) = read(path)[0]
    told = report.look_inside(run, run.steps[0], {})["critical"]
    monkeypatch.setattr(sys, "argv", ["zbench critical", path, "-o", str(out)])
    assert critical.main() == 0
    sheets = [Sheet(one["title"], one["columns"], one["rows"]).markdown() for one in told["sheets"]]
    assert "\n".join([f"{told['head']}\n", *sheets]) == out.read_text()
    monkeypatch.setattr(inside, "MOST_OPERATIONS", 100)
    assert report.look_inside(run, run.steps[0], {})["critical"] is None
    of_attention(made(tmp_path, "baseline=null", "steps=1"), 1)
    other = read(path)[0][-1]
    assert "critical" not in report.look_inside(other, other.steps[0], {})


def test_a_whole_step_s_shares_are_its_account_and_a_window_of_several_layers_is_drawn(tmp_path: Path) -> None:
    """Three layers gathered ahead are more than are drawn otherwise; shares are what the record's seconds went to."""
    settings = ["system=ring", "executor=simulated", "workload=prolong64k", "baseline=null", "steps=1"]
    path = made(tmp_path, *settings, "model.num_layers=5", "sharding.window=3", "sharding=zero3")
    (run,) = read(path)[0]
    told = report.look_inside(run, run.steps[0], {})
    assert not {"problem", "again_seconds"} & set(told)
    assert told["timeline"]["layers"] == 3
    shares = shares_of(run.steps[0])
    assert shares.sum(axis=0) == pytest.approx(run.steps[0]["seconds"], rel=1e-12)
    for name in ("attention", "waiting_link", "waiting_parameters"):
        assert shares[SHARES.index(PARTS[name])].tolist() == run.steps[0]["seconds_for"][name]


@pytest.mark.parametrize("system", ["ring", "zeppelin", "hydraulis"])
def test_homes_hold_every_token_once(system: str, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay.of(runs[system])
    batch, plans = replay.step(runs[system].steps[0])
    monkeypatch.setattr(inside, "_DRAWN", 2)
    for plan, of in zip(plans, inside.homes(plans, replay.cost), strict=True):
        assert (of["owner"], of["owners"]) == ("rank", plan.num_ranks)
        here = np.zeros(plan.num_ranks, np.int64)
        for rank, seq, tokens, *_ in of["rows"]:
            here[rank] += tokens
            assert seq == -1 or of["sequences"][seq][0] == batch.lengths[seq]
        assert (here == plan.tokens_per_rank).all()
        assert max(sum(row[0] == rank for row in of["rows"]) for rank in range(plan.num_ranks)) <= 3


def test_with_tensor_parallelism_bars_are_of_gpus_and_homes_of_groups(tmp_path: Path) -> None:
    settings = ["system=ring", "executor=simulated", "workload=prolong64k", "baseline=null", "steps=1", "parallel=tp2"]
    (run,) = read(made(tmp_path, *settings))[0]
    told = report.look_inside(run, run.steps[0], {})
    assert not {"problem", "undrawn"} & set(told)
    gpus = run.start["facts"]["num_gpus"]
    assert told["timeline"]["gpus"] == len(told["record"]["shares"][0]) == len(told["record"]["peak_bytes"]) == gpus
    assert {(of["owner"], of["owners"]) for of in told["homes"]} == {("tensor-parallel group", gpus // 2)}


# -- the command ----------------------------------------------------------------------------------
def call(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["report", *arguments])
        return ran(report.main, "")


def data_of(path: Path) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert text is not None
    found: dict[str, Any] = json.loads(text[1])
    return found


def test_a_page_is_one_file_that_names_no_host(record: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert call(record, "-o", str(out)) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 3 runs, 3 steps to look into, ")
    data = data_of(out)
    assert len(data["runs"]) == len(data["steps"]) == 3
    assert data["left_out"] == []
    assert all("problem" not in step and "again_seconds" not in step for step in data["steps"].values())
    assert re.findall(r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//[^"'\s>]*""", out.read_text()) == []


@pytest.mark.parametrize(("steps", "found"), [("all", 6), ("1", 3), ("0,1", 6), ("first", 3)])
def test_steps_are_chosen(steps: str, found: int, record: str) -> None:
    assert len(report.steps_to_show(read(record)[0], steps)) == found


def test_every_runs_first_step_comes_before_any_second(record: str) -> None:
    assert [line["step"] for _, line in report.steps_to_show(read(record)[0], "all")] == [0, 0, 0, 1, 1, 1]


def test_what_does_not_fit_is_left_out_and_told(record: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = read(record)[0]
    wanted = report.steps_to_show(runs, "all")
    size = len(encoded(report.look_inside(*wanted[0], {})))
    monkeypatch.setattr(report, "MOST_BYTES", size + 1)
    steps, told = report.looked_into(wanted)
    assert list(steps) == [f"{runs[0].start['run']}/0"]
    assert told == [
        "5 of 6 steps are left out: the page would be larger than "
        f"{(size + 1) / 1e6:.0f} MB. Fewer runs or --steps have room for others."
    ]


def test_a_timeline_too_dense_is_left_out_and_told(record: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "MOST_EVENTS", 10)
    monkeypatch.setattr(report, "MOST_EVENTS", 10)
    runs = read(record)[0]
    steps, told = report.looked_into(report.steps_to_show(runs, "first"))
    assert told == [
        "The timelines of 3 steps are left out: they have more than 10 events. trace=FILE writes one for Perfetto."
    ]
    assert all(step["timeline"] is None and step["homes"] for step in steps.values())


def test_a_run_that_cannot_be_made_again_keeps_what_the_record_says(runs: dict[str, Run]) -> None:
    run = runs["ring"]
    run.start["config"]["workload"]["context_limit"] = "none"
    found = report.look_inside(run, run.steps[0], {})
    assert "cannot be made again from its record" in found["problem"]
    assert found["record"]["seconds"] == run.steps[0]["seconds"]
    assert "homes" not in found


def test_a_class_that_is_not_zbench_s_runs_only_where_it_is_trusted(
    record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_ring_of_mine.py").write_text("from zbench.systems.ring import Ring\n\n\nclass Mine(Ring): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = tmp_path / "theirs.jsonl"
    theirs.write_text(Path(record).read_text().replace("zbench.systems.ring.Ring", "a_ring_of_mine.Mine"))
    (ring,) = [run for run in read(record)[0] if run.start["config"]["choices"]["system"] == "ring"]
    refused = f"run {ring.start['run']} names a_ring_of_mine.Mine, which is not part of zbench; --trust runs it"
    assert call(str(theirs), "-o", str(tmp_path / "page.html")) == 0
    assert refused in capsys.readouterr().out.splitlines()
    assert "a_ring_of_mine" not in sys.modules
    assert refused in (tmp_path / "page.html").read_text()
    assert call(str(theirs), "-o", str(tmp_path / "page.html"), "--trust") == 0
    assert "not part of zbench" not in capsys.readouterr().out + (tmp_path / "page.html").read_text()


def test_a_step_that_now_takes_another_time_says_so(runs: dict[str, Run]) -> None:
    step = {**runs["ring"].steps[0], "seconds": 1e-3}
    assert report.look_inside(runs["ring"], step, {})["again_seconds"] == rounded(runs["ring"].steps[0]["seconds"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["RECORD", "--steps", "some"], "--steps is 'some'; it takes first, all, or numbers"),
        (["RECORD", "--steps", "9"], "--steps is '9'; no run of the records has such a step"),
        (["missing.jsonl"], "'missing.jsonl' cannot be read: No such file"),
        (["RECORD", "-o", "missing/page.html"], "its folder missing does not exist"),
        (["RECORD", "-o", "/dev/full"], "--out is '/dev/full'; that is a device, and it takes a file"),
        (["RECORD", "-o", "RECORD"], "that file is not a report of zbench's, so it is not replaced"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: Sequence[str], reason: str, record: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [record if word == "RECORD" else word for word in arguments]
    assert call("-o", str(tmp_path / "page.html"), *words) == 2
    assert reason in capsys.readouterr().err.splitlines()[-1]


def test_without_plotly_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ValueError, match="a report needs the package plotly, which is not installed: pip install"):
        page({})


def test_columns_of_runs_are_what_a_row_has(runs: dict[str, Run]) -> None:
    code = (files("zbench.report") / "page" / "runs.js").read_text()
    every, with_tokens = (
        re.findall(r'"(\w+)"', found) for found in re.findall(r"(?:STAGES = |concat\()\[([^\[\]]*)\]\.map", code)
    )
    keys = [*(f"{one}_seconds" for one in every), *(f"{one}_tokens_per_second" for one in with_tokens)]
    keys += re.findall(r'\["[^"]*", "(\w+)", [^"]', code)
    (row,) = rows([runs["zeppelin"]])
    assert (tuple(every), set(keys) - row.keys()) == (STAGES, {"state"})


def test_no_data_can_take_the_place_of_a_part_of_the_page() -> None:
    assert page({"system": "{{CODE}} {{STYLE}}"}).count("{{CODE}} {{STYLE}}") == 1


def test_no_data_can_end_its_script() -> None:
    words = {"system": "</script><script>alert(1)</script>\u2028"}
    assert "<" not in encoded(words)
    assert json.loads(encoded(words)) == json.loads(json.dumps(words, ensure_ascii=False).replace("<", "\u2039"))


def test_every_share_has_a_colour_and_a_hatching_of_its_own() -> None:
    """Of what is in one bar: an account's parts, or those of steps without one."""
    script = (Path(report.__file__).parent / "page" / "base.js").read_text()
    colours, patterns = (
        re.search(rf"const SHARE_{name} = \[(.*)\];", script)[1].split(", ") for name in ("COLOURS", "PATTERNS")
    )
    assert len(colours) == len(patterns) == len(SHARES)
    looks = dict(zip(SHARES, zip(colours, patterns, strict=True), strict=True))
    for drawn in (SHARES[:8], list(PARTS.values())):
        assert len({looks[name] for name in drawn}) == len(drawn)
