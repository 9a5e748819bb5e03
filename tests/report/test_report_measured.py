"""A measured step's own trace in the report: what ranks noted, with the blocks that the plans know."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.report.test_report import made
from zbench.cost.cost import Cost
from zbench.describe.model import TENSOR_NAMES
from zbench.plans.plan import ATTEND, Ops, Plan
from zbench.record.record import Line, Run, read
from zbench.report import __main__ as report
from zbench.report.measured import measured_timeline
from zbench.run.replay import Replay
from zbench.runtime.clocks.events import OPTIMIZER, REDUCE, Events, Message, Span
from zbench.runtime.measured_trace import write_measured
from zbench.simulator.hops import hops
from zbench.trace.file import recorded, trace_reference

RANKS = 16


def noted(plans: Sequence[Plan], cost: Cost) -> list[Events]:
    """What ranks would note that do one thing after another, a millisecond each; every layer a run of a program."""
    ranks, number, moment = [Events() for _ in range(RANKS)], 0, 0.0
    for plan in plans:
        for ops in [plan.forward] * cost.model.num_layers + [plan.backward] * cost.model.num_layers:
            parts = hops(plan, ops, cost.message_bytes(plan, ops), cost.cluster)
            for hop, op in enumerate(parts.op.tolist()):
                moment += 1e-3
                if ops.kind[op] == ATTEND:
                    name = "attend forward" if ops is plan.forward else "attend backward"
                    ranks[parts.rank[hop]].spans.append(Span(name, moment, moment + 1e-3, number, op))
                else:
                    _pass(ranks, ops, parts.bytes[hop], (op, hop, number), moment)
            number += 1
    for events in ranks:
        events.spans += [
            Span(REDUCE, moment, moment + 2e-3, -1, -1),
            Span(OPTIMIZER, moment + 2e-3, moment + 3e-3, -1, -1),
        ]
    return ranks


def _pass(ranks: Sequence[Events], ops: Ops, size: int, which: tuple[int, int, int], moment: float) -> None:
    """A direct message: ring's are."""
    op, hop, run = which
    source, target = int(ops.src[op]), int(ops.dst[op])
    ranks[source].sent.append(Message(target, run, hop, int(size), moment))
    ranks[target].arrived.append(Message(source, run, hop, int(size), moment + 5e-4))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A record of a step as if it had been measured, and traced."""
    folder = tmp_path_factory.mktemp("measured")
    (run,) = read(made(folder, "system=ring", "workload=prolong64k", "steps=1"))[0]
    as_if_measured(run, folder / "t.json")
    return run


def as_if_measured(run: Run, trace: Path) -> None:
    """Of a simulated run of `ring`: as a record of the torch executor would be that noted `trace`."""
    replay = Replay.of(run)
    _, plans = replay.step(run.steps[0])
    reports = [SimpleNamespace(began=0.0, events=one, nic_series={}) for one in noted(plans, replay.cost)]
    write_measured(trace, replay.cost.cluster, cast(Any, reports), True)
    run.steps[0]["trace"] = trace_reference(str(trace))
    run.start["facts"]["simulated"] = False


def found(run: Run) -> Line:
    return report.look_inside(run, run.steps[0], {})


def test_it_is_the_timeline_and_names_what_the_plans_know(run: Run) -> None:
    of = found(run)["timeline"]
    replay = Replay.of(run)
    batch, (plan,) = replay.step(run.steps[0])
    assert of["measured"]
    assert of["tracks"][:4] == ["GPU 0", "GPU 0 receives", "GPU 1", "GPU 1 receives"]
    assert of["per_node"] == 16
    attends = np.zeros((2, RANKS), int)
    for track, name, layer, micro, what, size, route in zip(
        *(of[key] for key in ("track", "name", "layer", "micro", "what", "bytes", "route")), strict=True
    ):
        kind, rank = of["names"][name], track // 2
        lists = [of["lists"][number] for number in what]
        if kind in (REDUCE, OPTIMIZER):
            assert (layer, micro, lists) == (-1, -1, [])
        elif kind.startswith("attend"):
            attends[layer, rank] += 1
            assert [len(lists), size] == [2, 0]
        else:
            assert track % 2 == 1
            assert kind.startswith("message between nodes: " if route[0] // 8 != rank // 8 else "message inside the ")
            assert kind.partition(": ")[2] in TENSOR_NAMES
            assert (route[1], size > 0, len(lists)) == (rank, True, 1)
        assert all(batch.lengths[seq] == length for one in lists for seq, length, _ in one["sequences"])
    each = np.bincount(plan.forward.src[plan.forward.kind == ATTEND], minlength=RANKS)
    assert (attends == 2 * each).all()


def test_backwards_begin_with_the_last_layer(run: Run) -> None:
    of = found(run)["timeline"]
    layers = [
        [layer for name, layer in zip(of["name"], of["layer"], strict=True) if of["names"][name] == f"attend {way}"]
        for way in ("forward", "backward")
    ]
    assert [layers[0][0], layers[0][-1], layers[1][0], layers[1][-1]] == [0, 1, 1, 0]


def test_without_the_plans_nothing_is_named(run: Run) -> None:
    events = recorded(run.steps[0]["trace"], Path())
    of = measured_timeline(events, (), None)
    assert of is not None
    assert of["lists"] == []
    assert set(of["layer"]) == {-1}
    assert "message between nodes" in of["names"]


def test_a_trace_too_dense_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    events = recorded(run.steps[0]["trace"], Path())
    for most in (10, len([one for one in events if one["ph"] == "X"]) + 1):
        monkeypatch.setattr("zbench.report.measured.MOST_EVENTS", most)
        assert measured_timeline(events, (), None) is None


def test_a_trace_beside_the_record_is_found_and_another_refused(run: Run, tmp_path: Path) -> None:
    trace = run.steps[0]["trace"]
    moved = {**trace, "file": "elsewhere/t.json"}
    assert recorded(moved, Path(trace["file"]).parent) == json.loads(Path(trace["file"]).read_text())["traceEvents"]
    with pytest.raises(ValueError, match=r"its trace elsewhere/t\.json is not there"):
        recorded(moved, tmp_path)
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ValueError, match=r"t\.json is another than the one that the record tells of"):
        recorded(moved, tmp_path)


def test_without_its_trace_a_measured_step_says_why(run: Run, tmp_path: Path) -> None:
    other = Run(run.start, run.steps, path=str(tmp_path / "r.jsonl"))
    line = {**run.steps[0], "trace": {"file": str(tmp_path / "t.json"), "digest": "x"}}
    gone = report.look_inside(other, line, {})
    assert gone["untraced"] == f"its trace {tmp_path / 't.json'} is not there"
    assert gone["timeline"]["measured"] is False
