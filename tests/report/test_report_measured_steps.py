"""A measured whole step's own trace in the report: operations by name, on tracks that have something."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.report.test_report import made
from zbench.record.record import Line, Run, read
from zbench.report import __main__ as report
from zbench.run.replay import Replay
from zbench.runtime.clocks.step_notes import NotedCompute, NotedMessage, NotedOperation, NotedWait, RankNotes
from zbench.runtime.measured_steps import RanPart, write_measured_steps
from zbench.step.operations import COMPUTE, MOVE, SEND
from zbench.step.template import Step
from zbench.trace.file import trace_reference


def noted(step: Step) -> list[Any]:
    """What ranks would note of the computes and the transfers of a step's templates, a millisecond each."""
    ranks = [RankNotes(1.0, [], [], [], []) for _ in range(step.num_gpus)]
    moment = 0.0
    for number, template in enumerate(step.templates):
        for op, row in enumerate(template.operations.table.tolist()):
            moment += 1e-3
            if row[0] == COMPUTE:
                of = NotedOperation(number, op, 0, row[2], row[2])
                ranks[row[2]].computes.append(NotedCompute(of, moment, moment + 1e-3))
            elif row[0] in (SEND, MOVE):
                of = NotedOperation(number, op, 0, row[2], row[3])
                one = NotedMessage(of, row[8], row[3], 1000, moment, float("inf"))
                ranks[row[2]].sent.append(one)
                got = one._replace(peer=row[2], ended=moment + 1e-3)
                ranks[row[3]].received.append(got)
                waits = ranks[row[3]].waits
                waits += [NotedWait(of, row[8], moment, moment + 5e-4), NotedWait(None, row[8], moment, moment)]
    return [SimpleNamespace(began=5.0, notes=one, nic_series={}) for one in ranks]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A record of a step as if it had been measured, and traced."""
    folder = tmp_path_factory.mktemp("measured")
    (run,) = read(made(folder, "system=zeppelin", "workload=prolong64k", "steps=1", "baseline=null"))[0]
    replay = Replay.of(run)
    batch, plans = replay.step(run.steps[0])
    step = replay.whole_steps.built(batch, plans)
    write_measured_steps(folder / "t.json", replay.cost.gpus.cluster, [RanPart(step, 0, noted(step))], True)
    run.steps[0]["trace"] = trace_reference(str(folder / "t.json"))
    run.start["facts"]["simulated"] = False
    return run


def found(run: Run) -> Line:
    return report.look_inside(run, run.steps[0], {})


def test_operations_have_names_and_what_they_are_about(run: Run) -> None:
    told = found(run)
    of = told["timeline"]
    assert (of["measured"], of["gpus"], "untraced" in told) == (True, 16, False)
    assert of["per_node"] * 2 == len(of["tracks"])
    used = {of["tracks"][track].split(" ", 2)[-1] for track in of["track"]}
    assert {"sends", "receives", "NVLink sends", "NVLink receives"} <= used
    named = {track.split(" ", 2)[-1] for track in of["tracks"] if not track.split(" ")[-1].isdigit()}
    assert named <= used  # nothing that no GPU has anything on
    names, lists = of["names"], of["lists"]
    assert {"attend forward", "keys and values, forward", "matmul queries, forward"} <= set(names)
    assert "waiting for keys and values, forward" in names
    lengths = Replay.of(run).step(run.steps[0])[0].lengths
    for name, what, size, route in zip(*(of[key] for key in ("name", "what", "bytes", "route")), strict=True):
        kind = names[name]
        if kind.startswith("attend"):
            assert len(what) == 2
        elif size and "keys and values" in kind:
            assert (len(what), len(route)) == (1, 2)
        elif not kind.startswith("waiting"):
            assert len(what) <= (size > 0)
        for one in what:
            assert all(lengths[seq] == length for seq, length, _ in lists[one]["sequences"])


def test_without_the_plans_operations_have_names_alone(run: Run) -> None:
    start = {**run.start, "config": run.start["config"] | {"system": {"_target_": "mine.Mine"}}}
    told = found(replace(run, start=start))
    assert "problem" in told
    assert told["timeline"]["lists"] == []
    assert "attend forward" in told["timeline"]["names"]


def test_a_trace_too_dense_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zbench.report.measured_steps.MOST_EVENTS", 10)
    assert found(run)["timeline"] is None


def test_a_trace_with_operations_that_the_step_has_not_names_no_blocks(run: Run, tmp_path: Path) -> None:
    """A trace whose templates are another version's is drawn without blocks."""
    old = Path(run.steps[0]["trace"]["file"]).read_text()
    (tmp_path / "t.json").write_text(old.replace('"template":"forward', '"template":"before'))
    line = {**run.steps[0], "trace": trace_reference(str(tmp_path / "t.json"))}
    told = report.look_inside(run, line, {})["timeline"]
    pairs = zip(told["name"], told["what"], strict=True)
    attends = [what for name, what in pairs if told["names"][name] == "attend forward"]
    assert attends
    assert not any(attends)
